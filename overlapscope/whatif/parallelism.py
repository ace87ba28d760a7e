"""Recognise from its collectives how a recorded job distributes its model over ranks, and list what can be replayed."""

import re
from typing import Final, Literal

import numpy as np

from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, FORWARD, TENSOR
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import Column, factorize_rows, unique
from overlapscope.timeline.run import RankTimeline, Run

DDP_NAMES: Final = re.compile(r"DistributedDataParallel\.|torch\.distributed\.ddp\.reducer::")
"""Names of ranges by which torch's DistributedDataParallel is seen."""
FRAMEWORK_NAMES: Final = {
    "ddp": DDP_NAMES,
    "fsdp2": re.compile(r"FSDP::"),
    "deepspeed": re.compile(
        r"(?:^|/)deepspeed/|DeepSpeed(?:Engine|ZeroOptimizer)"
        r"|^PartitionedParameterCoordinator\.|^reduce_partition_and_remove_grads$"
    ),
    "megatron": re.compile(r"(?:^|/)megatron/(?:core|training)/"),
    "horovod": re.compile(r"^(?:void )?horovod|^Horovod[A-Z]"),
}
"""Names of ranges and operations by which a framework is seen, by its key in `Recommendation.apply`."""
MEGATRON_GROUP: Final = re.compile(r"(?:MODEL|CONTEXT|TENSOR|DATA)_PARALLEL(?:_GROUP|_RANK)?")
"""Descriptions of Megatron's groups (`megatron/core/parallel_state.py`)."""
SERVES: Final = re.compile(
    r"^(?:void )?(?:vllm|sglang|sgl_kernel|tensorrt_llm|flashinfer|lmdeploy)(?:::|\.)|^execute_context"
)
"""Names of inference servers."""
FSDP_RANGES: Final = re.compile(r"^FSDP::|FullyShardedDataParallel\.")
"""Names of ranges of both versions of FSDP, which no other framework has, ..."""
FSDP_OPERATIONS: Final = re.compile(r"^fsdp::")
"""... and of torch's operations that copy for the second."""
NOT_DDP: Final = {
    "FSDP2": FRAMEWORK_NAMES["fsdp2"],
    "FSDP": FSDP_RANGES,
    "Horovod": FRAMEWORK_NAMES["horovod"],
    "DeepSpeed": FRAMEWORK_NAMES["deepspeed"],
    "operations of FSDP": FSDP_OPERATIONS,
    "Megatron": FRAMEWORK_NAMES["megatron"],
    "an inference server": SERVES,
}
"""What reduces gradients, or has none, without DistributedDataParallel, by its name in a sentence: the first that is
seen."""
Parallelism = Literal["ddp", "fsdp", "tensor", "pipeline", "mixed", "other"]
ALWAYS: Final = {
    "link_speed": "faster links; hypothetical, no setting can do it",
    "straggler_removed": "the straggler works as fast as the other ranks; hypothetical",
    "host_pauses_ms": "no host pause is longer; hypothetical",
}
KNOBS: Final[dict[Parallelism, dict[str, str]]] = {
    "ddp": {
        "bucket_cap_mb": "size of a bucket, and a list of sizes, one for each (bucket_cap_mb_list)",
        "gradient_as_bucket_view": "gradients are views of their buckets",
        "accumulation, no_sync": "backward passes of a step that do not reduce gradients",
        "hook": "gradients sent in 16 bits",
        "zero_stage": "optimizer, gradients, parameters sharded (--zero-stage 1,2,3)",
        "partition_mb": "buckets in pieces (--partition-mb)",
        "priority": "buckets sent as the next forward needs them (--priority)",
        "link_speed": "links twice as fast, always replayed; hypothetical, no setting can do it",
        "late_ranks": "all ranks begin their step at the same time; hypothetical",
        "host_pauses_ms": "no host pause is longer; hypothetical",
    },
    "fsdp": {
        "reshard_after_forward": "parameters stay gathered until backward, which then gathers nothing",
        "forward_prefetch, backward_prefetch": "how many modules ahead parameters are gathered",
        "modules_per_group": "neighbouring modules gathered and reduced as one",
        "reduce_dtype": "gradients reduced in 16 bits",
        "ranks": "more ranks, by a formula",
        **ALWAYS,
    },
    "tensor": {
        "traffic_dtype": "traffic between layers in 16 bits",
        "algorithm": "another algorithm, by a formula",
        **ALWAYS,
    },
    "pipeline": {"traffic_dtype": "traffic between stages in 16 bits", **ALWAYS},
    "mixed": ALWAYS,
    "other": ALWAYS,
}
"""Settings that can be replayed, with descriptions, by kind of recording."""

OPTIONS: Final = (
    "--bucket-cap-mb", "--no-search", "--zero-stage", "--partition-mb", "--priority", "--link-speed", "--algorithm",
    "--channels",
)  # fmt: skip
"""Options of `overlapscope whatif`."""

NOT_REPLAYED: Final = (
    "averaging parameters every k steps (local SGD), channels (--channels shows how to try them), protocols, and "
    "compressed gradients, except with `overlapscope plan --compress`"
)


def unsupported_options(kind: Parallelism, *, is_ddp: bool) -> dict[str, str]:
    """Return the options that do not apply to any recording of a kind, and why; `is_ddp`: whether `shows_ddp`."""
    if kind == "ddp":
        return {
            "--link-speed": "for DDP, links twice as fast are always replayed, and no other speed",
            "--algorithm": "for DDP, transfer times are the recorded ones; `overlapscope plan` accepts formulas",
        }
    no_buckets = (
        "its buckets cannot be replayed"
        if is_ddp and kind == "other"
        else "not recognised as DDP, so it has no buckets"
    )
    return dict.fromkeys(("--bucket-cap-mb", "--no-search", "--zero-stage", "--partition-mb", "--priority"), no_buckets)


def shows_ddp(run: Run) -> bool:
    """Return whether torch's DistributedDataParallel is seen in a run: by the names of its ranges, or by capture."""
    return any(each.recorded.get("ddp") or any(map(DDP_NAMES.search, each.names)) for each in run.ranks.values())


def no_ddp_settings(run: Run) -> str:
    """Return words that precede the reason why no setting of DistributedDataParallel is replayed of a run."""
    if shows_ddp(run):
        return "recognised as DDP, but none of its settings is replayed"
    return "not recognised as DDP, so none of its settings is replayed"


def other_framework(run: Run) -> str | None:
    """Return the name of what is seen in a run instead of torch's DistributedDataParallel; None where that is seen, or
    nothing is."""
    if shows_ddp(run):
        return None
    names = {name for each in run.ranks.values() for name in each.names}
    seen = next((key for key, pattern in NOT_DDP.items() if any(map(pattern.search, names))), None)
    if seen is None and has_megatron_groups(run):
        return "groups of Megatron"
    if seen is None and run.ranks and all(map(_gathers_after_optimizer, run.ranks.values())):
        return "what looks like a sharded optimizer (reductions before it, gathers of parameters after it)"
    return seen


def _gathers_after_optimizer(timeline: RankTimeline) -> bool:
    """Return whether gradients are reduced before, and parameters gathered after each optimizer began, and only so."""
    calls, names = timeline.collectives, timeline.names
    rows = np.flatnonzero((calls.step != NONE) & (calls.op >= 0))
    ops = np.array([names[code] for code in calls.op[rows].tolist()], np.str_)
    gathers, reduces = ops == "all_gather", np.isin(ops, ("all_reduce", "reduce_scatter"))
    begun_ns = optimizer_ns(timeline, calls.step[rows])
    after = launch_times(timeline, rows) >= begun_ns
    return bool(gathers.any() and after[gathers].all() and (reduces & ~after).any())


def noted_no_ddp(timeline: RankTimeline) -> bool:
    """Return whether capture recorded the gradients of a model, and noted that it has no DistributedDataParallel."""
    return timeline.recorded.get("ddp") == {} and bool((timeline.gradients.elements > 0).any())


def parallelism_of(run: Run) -> Parallelism:
    """Return the kind of a recording. One with only all-reduces and gradients is assumed to be DDP."""
    found = set()
    gradients = False
    for timeline in run.ranks.values():
        found |= _kinds(timeline)
        gradients = gradients or bool((timeline.gradients.elements > 0).any())
    kinds = found - {"ddp"}
    if "fsdp" in kinds and _shards_otherwise(run):
        kinds = (kinds - {"fsdp"}) | {"other"}
    if len(kinds) > 1:
        return "mixed"
    if kinds:
        (kind,) = kinds
        return kind
    return "ddp" if "ddp" in found and gradients else "other"


def shows_fsdp(timeline: RankTimeline) -> bool:
    """Return whether FSDP is seen in a rank by name: by its ranges, or, where no DeepSpeed is, by its operations."""
    names = timeline.names
    if any(map(FSDP_RANGES.search, names)):
        return True
    return any(map(FSDP_OPERATIONS.search, names)) and not any(map(FRAMEWORK_NAMES["deepspeed"].search, names))


def _shards_otherwise(run: Run) -> bool:
    """Return whether gathers and scatters are those of DeepSpeed, or of Megatron's sharded optimizer, none of which has
    settings of FSDP; Megatron's FSDP gathers in backward, too."""
    if any(map(shows_fsdp, run.ranks.values())):
        return False
    names = {name for each in run.ranks.values() for name in each.names}
    if any(map(FRAMEWORK_NAMES["deepspeed"].search, names)):
        return True
    megatron = any(map(FRAMEWORK_NAMES["megatron"].search, names)) or has_megatron_groups(run)
    return megatron and not any(map(_gathers_in_backward, run.ranks.values()))


def has_megatron_groups(run: Run) -> bool:
    """Return whether a group of a run has a description that Megatron gives."""
    return any(MEGATRON_GROUP.search(f"{each.name} {each.description or ''}") for each in run.groups)


def _gathers_in_backward(timeline: RankTimeline) -> bool:
    calls, names = timeline.collectives, timeline.names
    rows = rows_named(calls.op, names, "all_gather".__eq__) & rows_named(calls.phase, names, BACKWARD.__eq__)
    return bool((rows & ((calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__))).any())


def _kinds(timeline: RankTimeline) -> set[Parallelism]:
    calls, names = timeline.collectives, timeline.names
    rows = np.flatnonzero((calls.step != NONE) & (calls.op >= 0))
    shards = _gathers_parameters(timeline, rows)
    columns: list[Column] = [calls.op[rows], calls.dimension[rows], calls.phase[rows], calls.module[rows] >= 0]
    _, first = factorize_rows(columns)
    found: set[Parallelism] = set()
    for op, dimension, phase, in_module in zip(*(each[first].tolist() for each in columns), strict=True):
        what, where = names[op], timeline.name(dimension)
        if what in POINT_TO_POINT:
            found.add("pipeline")
        elif where == TENSOR:
            found.add("tensor")
        elif what in ("all_gather", "reduce_scatter"):
            found.add("fsdp" if in_module or where is not None or shards else "tensor")
        elif what == "all_reduce":
            found.add("tensor" if timeline.name(phase) == FORWARD and where is None else "ddp")
    # FSDP gathers the parameters of the root module, which belong to no submodule, without a name.
    return found - {"tensor"} if "fsdp" in found and not _splits_layers(timeline) else found


def _gathers_parameters(timeline: RankTimeline, rows: Ints) -> bool:
    """Return whether FSDP is seen by name, and all gathers and scatters among these calls have one group: with another
    one, layers may be split, too."""
    if not shows_fsdp(timeline):
        return False
    calls = timeline.collectives
    codes = [code for code, name in enumerate(timeline.names) if name in ("all_gather", "reduce_scatter")]
    return unique(calls.group[rows][np.isin(calls.op[rows], codes)]).size == 1


def _splits_layers(timeline: RankTimeline) -> bool:
    calls, names = timeline.collectives, timeline.names
    if TENSOR in names and bool((calls.dimension == names.index(TENSOR)).any()):
        return True
    reduces = [code for code, name in enumerate(names) if name == "all_reduce"]
    forward = names.index(FORWARD) if FORWARD in names else -2
    return bool((np.isin(calls.op, reduces) & (calls.phase == forward) & (calls.step != NONE)).any())
