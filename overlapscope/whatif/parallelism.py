"""How a recorded job splits its model over ranks, as its collectives tell."""

from typing import Final, Literal

import numpy as np

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import FORWARD, TENSOR
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.graph import P2P

Kind = Literal["ddp", "fsdp", "tensor", "pipeline", "mixed", "other"]
EVERY: Final = {
    "link_speed": "links so many times as fast; no setting brings it about",
    "straggler_removed": "the rank that the others waited for most does its work as fast as they do",
}
KNOBS: Final[dict[Kind, dict[str, str]]] = {
    "ddp": {
        "bucket_cap_mb": "size of a bucket, and a list of sizes, one for each (bucket_cap_mb_list)",
        "gradient_as_bucket_view": "gradients stay in their buckets",
        "accumulation, no_sync": "passes of a step that leave gradients unreduced",
        "hook": "gradients sent in 16 bits",
        "zero_stage": "optimizer, gradients, parameters sharded (--zero-stage 1,2,3)",
        "partition_mb": "buckets in pieces (--partition-mb)",
        "priority": "buckets sent as the next forward needs them (--priority)",
        "link_speed": "links twice as fast, in every answer; no setting brings it about",
        "late_ranks": "all ranks begin their step at once",
    },
    "fsdp": {
        "reshard_after_forward": "parameters stay gathered until backward, which gathers nothing then",
        "forward_prefetch, backward_prefetch": "how many modules ahead parameters are gathered",
        "modules_per_group": "so many neighbouring modules gathered and reduced as one",
        "reduce_dtype": "gradients reduced in 16 bits",
        "ranks": "more ranks, by a formula",
        **EVERY,
    },
    "tensor": {"traffic_dtype": "what layers exchange in 16 bits", "algorithm": "a formula's", **EVERY},
    "pipeline": {"traffic_dtype": "what stages exchange in 16 bits", **EVERY},
    "mixed": EVERY,
    "other": EVERY,
}
"""What can be replayed of a recording of each kind."""

OPTIONS: Final = (
    "--bucket-cap-mb", "--no-search", "--zero-stage", "--partition-mb", "--priority", "--link-speed", "--algorithm",
    "--channels",
)  # fmt: skip
"""What `whatif` can be asked."""

NOT_REPLAYED: Final = (
    "averaging parameters every k steps (local SGD), channels (--channels says how to try them) and protocols, and of "
    "gradients that are compressed only what `overlapscope plan --compress` describes"
)


def unfit_options(kind: Kind) -> dict[str, str]:
    """Return the options that no recording of a kind has a use for, and why."""
    if kind == "ddp":
        return {
            "--link-speed": "of DDP links twice as fast stand in every answer, and no others are replayed",
            "--algorithm": "of DDP transfers take what was recorded; `overlapscope plan` takes formulas",
        }
    no_buckets = "it has no buckets of DistributedDataParallel"
    return dict.fromkeys(("--bucket-cap-mb", "--no-search", "--zero-stage", "--partition-mb", "--priority"), no_buckets)


def kind_of(run: Run) -> Kind:
    """Return the kind of a recording. One of all-reduces and gradients alone is taken to be DDP's."""
    found = set()
    gradients = False
    for timeline in run.ranks.values():
        found |= _kinds(timeline)
        gradients = gradients or bool((timeline.gradients.elements > 0).any())
    kinds = found - {"ddp"}
    if len(kinds) > 1:
        return "mixed"
    if kinds:
        (kind,) = kinds
        return kind
    return "ddp" if "ddp" in found and gradients else "other"


def _kinds(timeline: RankTimeline) -> set[Kind]:
    calls, names = timeline.collectives, timeline.names

    def named(code: int) -> str | None:
        return names[code] if code >= 0 else None

    rows = np.flatnonzero((calls.step != NONE) & (calls.op >= 0))
    columns = np.stack([calls.op[rows], calls.dimension[rows], calls.phase[rows], calls.module[rows] >= 0])
    found: set[Kind] = set()
    for op, dimension, phase, in_module in np.unique(columns, axis=1).T.tolist():
        what, where = names[op], named(dimension)
        if what in P2P:
            found.add("pipeline")
        elif where == TENSOR:
            found.add("tensor")
        elif what in ("all_gather", "reduce_scatter"):
            found.add("fsdp" if in_module or where is not None else "tensor")
        elif what == "all_reduce":
            found.add("tensor" if named(phase) == FORWARD and where is None else "ddp")
    # FSDP gathers what belongs to no module of its own, the root's, without a name.
    return found - {"tensor"} if "fsdp" in found and not _splits_layers(timeline) else found


def _splits_layers(timeline: RankTimeline) -> bool:
    calls, names = timeline.collectives, timeline.names
    if TENSOR in names and bool((calls.dimension == names.index(TENSOR)).any()):
        return True
    reduces = [code for code, name in enumerate(names) if name == "all_reduce"]
    forward = names.index(FORWARD) if FORWARD in names else -2
    return bool((np.isin(calls.op, reduces) & (calls.phase == forward) & (calls.step != NONE)).any())
