"""Rule: many collectives take only their latency, whatever their size; send fewer, larger ones, or, where a server
computes between them, shorten each."""

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Final

import numpy as np

from overlapscope.advice.calls.direct_calls import are_direct
from overlapscope.advice.job_kind import uses_rocm
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Collectives, Ints, size
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, POINT_TO_POINT
from overlapscope.timeline.rows import factorize_rows, sort_order, unique
from overlapscope.timeline.run import Run
from overlapscope.whatif.parallelism import noted_no_ddp

MOVING: Final = 0.2
"""A call is latency-bound where its bytes would take at most this share of its time at the best speed of its group. A
choice: at most a fifth of the time is then misjudged."""
TINY_BYTES: Final = 64 << 10
"""Calls up to this size are latency-bound on any training network (52 us at 10 Gbit/s)."""
SHORT_NS: Final = 30_000
"""A call of unknown size that takes no longer is latency-bound: NCCL's latency is 7 to 14 us plus some for each hop
(`src/graph/tuning.cc`)."""
BEHIND: Final = 0.5
"""A call that spends this share of its time behind earlier ones of its group takes their time, not its latency: gloo
counts a call from where it is made, and works off few at a time. A choice."""
FEWEST_CALLS: Final = 8
"""Least calls a step. A choice: fusing fewer is not worth the work."""
ALREADY: Final = ", in custom, one-shot or two-shot kernels already"
FUSE: Final = (
    "fuse the call with the norm that follows (vLLM: fuse_allreduce_rms in pass_config of the compilation config; "
    "SGLang: --enable-flashinfer-allreduce-fusion)"
)
FUSE_ON_ROCM: Final = "fuse the call with the norm that follows (SGLang: --enable-aiter-allreduce-fusion)"
FEWER: Final = "# fewer calls a token: a larger batch (--max-num-seqs), or fewer devices a replica where the model fits"
Kind = tuple[str, str | None, int | None]
"""Operation, group and bytes of calls."""
TORCH_NAMES: Final = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


def small_collectives(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where latency-bound calls are exposed for long enough on one rank.

    Groups make their calls at the same time, so only the calls of one rank are added up: the rank that loses most.
    """
    every = given.analysis.collectives
    sharded = any(row.op == "reduce_scatter" and row.dimension == DATA for row in every)
    rows = [row for row in every if _is_candidate(given, row, sharded=sharded)]
    fastest = _fastest(rows)
    slow = [row for row in rows if _is_latency(row, fastest.get((row.op, row.group)))]
    behind = _behind_others(given, {_kind(row) for row in slow})
    slow = [row for row in slow if _kind(row) not in behind]
    small = max(_by_rank(given.run, slow), key=_exposed_ns, default=[]) if slow else []
    calls = sum(row.count for row in small) / max(given.steps, 1)
    usual = _exposed_ns(small) / max(given.steps, 1)
    if calls < FEWEST_CALLS or not given.is_worth(usual):
        return None
    # Some calls stall, for a core: all of it may be saved, at most, but no waiting for late ranks.
    late_ns = sum(map(given.cause_ns, WAITS_FOR_LATE_RANK))
    exposed = max(sum(row.exposed_ns or 0 for row in small) / max(given.steps, 1) - late_ns, usual)
    ops, serves = _listed(small), given.job.serves
    direct = serves and are_direct(given, small)
    apart = ", without waiting for late ranks" if late_ns else ""
    sized = ", whatever their size" if all(row.bytes is not None for row in small) else ""
    return recommended(
        given,
        id="small_collectives",
        title=f"{'Shorten small' if serves else 'Send fewer, larger'} collectives: {calls:.0f} calls of "
        f"{', '.join(ops)} a {given.per} take their latency{sized}{ALREADY * direct}; {ms(exposed)} are exposed, "
        f"{exposed / calls / 1e3:.3g} us of each{apart}",
        at_most_ns=exposed if serves else exposed * (1 - 1 / calls),
        loss_ns=round(usual),
        apply=_serving(given, ops, direct=direct) if serves else _apply(ops),
        evidence={
            "calls": round(calls, 1),
            "exposed_ns": round(exposed),
            "by_op": {op: _sum_up(given, [row for row in small if row.op == op]) for op in ops},
        },
        measured=["calls, sizes, durations, and what of them is exposed"],
        assumed=[
            "that they would take no time" if serves else
            "that all of them can be sent as one, which calls that depend on each other cannot",
            "that stalls, which are in what is exposed, could be saved with them",
            *(["durations include waiting for ranks that were not matched"] if _unmatched(small) else []),
        ],
    )  # fmt: skip


def _by_rank(run: Run, rows: Sequence[CollectiveRow]) -> list[list[CollectiveRow]]:
    """Return the rows of each rank: those of the operations and groups that it calls."""
    places: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[row.op, row.group].append(place)
    found = []
    for timeline in run.ranks.values():
        calls, names = timeline.collectives, (*timeline.names, None)  # -1 is no name
        keys = unique((calls.op.astype(np.int64) + 1) * len(names) + calls.group + 1)
        kinds = {
            (names[op - 1] or "unknown", names[group - 1])
            for op, group in (divmod(key, len(names)) for key in keys.tolist())
        }
        found.append([rows[place] for place in sorted(at for kind in kinds for at in places.get(kind, ()))])
    return found


def _exposed_ns(rows: Sequence[CollectiveRow]) -> float:
    return sum(min(row.exposed_ns or 0, row.count * (row.transfer_ns_median or 0)) for row in rows)


def _is_candidate(given: RuleInput, row: CollectiveRow, *, sharded: bool) -> bool:
    """`sharded`: gradients are reduced by reduce-scatters."""
    # Each all-to-all of a layer needs what was computed from the one before.
    if row.op in (*POINT_TO_POINT, "all_to_all") or row.op in OPS_WITHOUT_VOLUME or not row.transfer_ns_median:
        return False
    # Bucket sizes are for the replay wherever gradients were recorded, and all-reduces of DDP carry them or may.
    reduces = row.op == "all_reduce" and row.dimension in (None, DATA) and not sharded
    buckets = reduces and any(size(each.gradients) and not noted_no_ddp(each) for each in given.run.ranks.values())
    return not buckets


def _fastest(rows: Sequence[CollectiveRow]) -> dict[tuple[str, str | None], float]:
    """Return the highest bytes per ns of matched calls, by operation and group."""
    found: dict[tuple[str, str | None], float] = {}
    for row in rows:
        if row.estimate == "matched" and row.bytes and row.transfer_ns_median:
            speed, kind = row.bytes / row.transfer_ns_median, (row.op, row.group)
            found[kind] = max(speed, found.get(kind, speed))
    return found


def _is_latency(row: CollectiveRow, bytes_per_ns: float | None) -> bool:
    spent = row.transfer_ns_median or 0
    if row.bytes is None:
        return spent <= SHORT_NS
    if row.bytes <= TINY_BYTES:
        return True
    return row.estimate == "matched" and bytes_per_ns is not None and row.bytes / bytes_per_ns <= MOVING * spent


def _kind(row: CollectiveRow) -> Kind:
    return row.op, row.group, row.bytes


def _behind_others(given: RuleInput, asked: Set[Kind]) -> set[Kind]:
    """Return which of the kinds of calls on some rank mostly stand behind others."""
    found = set()
    for timeline, _ in given.some_ranks() if asked else ():
        calls, names = timeline.collectives, (*timeline.names, None)  # -1 is no name
        rows = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
        rows = rows[sort_order(calls.group[rows], calls.start_ns[rows], calls.end_ns[rows])]
        lasted, stood = calls.end_ns[rows] - calls.start_ns[rows], _behind_ns(calls, rows)
        kind, first = factorize_rows([calls.op[rows], calls.group[rows], calls.bytes[rows]])
        for at, row in enumerate(rows[first].tolist()):
            volume = int(calls.bytes[row])
            this = names[calls.op[row]] or "unknown", names[calls.group[row]], None if volume == NONE else volume
            if this in asked:
                own = kind == at
                if np.median(stood[own]) > BEHIND * np.median(lasted[own]):
                    found.add(this)
    return found


def _behind_ns(calls: Collectives, rows: Ints) -> Ints:
    """Return for how long each call stood behind the one before it in its group; `rows` are sorted by group and start.

    Only behind calls that ended no later than it did: others went on beside it.
    """
    start, end, group = calls.start_ns[rows], calls.end_ns[rows], calls.group[rows]
    before = np.append(start[:1], end[:-1])
    follows = np.append(False, group[1:] == group[:-1]) & (before <= end)
    stood: Ints = np.where(follows, np.maximum(before - start, 0), 0)
    return stood


def _listed(rows: Sequence[CollectiveRow]) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.op] += row.count
    return sorted(counts, key=lambda op: -counts[op])


def _sum_up(given: RuleInput, rows: Sequence[CollectiveRow]) -> dict[str, int | float | None]:
    steps = max(given.steps, 1)
    sizes = [row.bytes for row in rows if row.bytes is not None]
    return {
        "calls": round(sum(row.count for row in rows) / steps, 1),
        "exposed_ns": round(sum(row.exposed_ns or 0 for row in rows) / steps),
        "least_bytes": min(sizes, default=None),
        "most_bytes": max(sizes, default=None),
    }


def _unmatched(rows: Sequence[CollectiveRow]) -> bool:
    return any(row.estimate == "upper_bound" for row in rows)


def _serving(given: RuleInput, ops: Sequence[str], *, direct: bool) -> dict[str, str]:
    """Return what shortens calls between which a server computes: the next layer needs each, so that none can be joined
    with another. `direct` kernels have the least latency already: fewer calls are left."""
    fuse = FUSE_ON_ROCM if uses_rocm(given.run) else FUSE
    if direct:
        return {"serving": "\n".join([f"# {fuse}"] * ("all_reduce" in ops) + [FEWER])}
    if "all_reduce" not in ops:
        return {
            "torch": "torch.distributed._symmetric_memory.enable_symm_mem_for_group(group.group_name)  # lower latency"
        }
    return {
        "serving": "vllm serve ...  # without --disable-custom-all-reduce: each rank reads its peers' memory at once\n"
        f"# or {fuse}",
        "torch": 'torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group_name)  # a tensor in symmetric memory',
    }


def _apply(ops: Sequence[str]) -> dict[str, str]:
    found = {
        "torch": "with torch.distributed._coalescing_manager(group):  # one launch for all of them\n"
        f"    for tensor in tensors:\n        torch.distributed.{TORCH_NAMES.get(ops[0], ops[0])}(..., group=group)"
    }
    if "all_reduce" in ops:
        found |= {
            "ddp": "DistributedDataParallel(model)  # buckets of 25 MiB instead of a call for each gradient",
            "horovod": "HOROVOD_FUSION_THRESHOLD=134217728 HOROVOD_CYCLE_TIME=5",
        }
    if {"all_gather", "reduce_scatter"} & set(ops):
        found |= {
            "fsdp2": "fully_shard([block_a, block_b])  # several modules share one all-gather and one reduce-scatter",
            "deepspeed": '{"zero_optimization": {"allgather_bucket_size": 5e8, "reduce_bucket_size": 5e8}}',
        }
    return found
