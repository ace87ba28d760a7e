"""Rule: gradients, or parameters in local SGD, are reduced one by one; send them as a few flat buckets."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.ddp.no_sync import averages_parameters

FEWEST_CALLS: Final = 32
"""Least all-reduces of a burst: buckets of 25 MiB are fewer, up to models of a billion parameters. A choice."""
FEWEST_AVERAGES: Final = 2
"""Local SGD averages parameters every few steps: least steps that do."""
BUCKET_BYTES: Final = 25 << 20
"""DistributedDataParallel's own bucket cap: calls as large are no longer small."""
BESIDE: Final = 0.1
"""Largest share of a burst in which the device computes, which is no longer than the calls either. A choice: clones and
casts take less; backward, or layers whose launches are late, take more."""
REDUCE: Final = {
    "torch": "flat = torch._utils._flatten_dense_tensors([p.grad for p in model.parameters()])  # one a dtype\n"
    "torch.distributed.all_reduce(flat)  # then torch._utils._unflatten_dense_tensors(flat, gradients)",
    "ddp": "DistributedDataParallel(model)  # buckets of 25 MiB, each sent while backward goes on",
    "horovod": "HOROVOD_FUSION_THRESHOLD=134217728 HOROVOD_CYCLE_TIME=5",
}
AVERAGE: Final = {
    "torch": "flat = torch._utils._flatten_dense_tensors([p.data for p in model.parameters()])  # one a dtype\n"
    "torch.distributed.all_reduce(flat)  # divide, then torch._utils._unflatten_dense_tensors(flat, parameters)",
}


class _Burst(msgspec.Struct, frozen=True, kw_only=True):
    """The all-reduces of a window, from the first start to the last end; nanoseconds."""

    calls: int
    length_ns: int
    comm_ns: int
    compute_ns: int


def flatten_gradients(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where most windows of a rank hold such a burst, or some in local SGD; None for
    inference."""
    bursts, averages = _bursts_of_a_rank(given)
    if not bursts:
        return None
    length = _a_step(given, bursts)
    calls, comm = (round(fmean(getattr(each, part) for each in bursts)) for part in ("calls", "comm_ns"))
    what = "Average parameters as a few flat tensors" if averages else "Reduce gradients as a few flat buckets"
    return recommended(
        given,
        id="flatten_gradients",
        title=f"{what}{'' if averages else ' during backward'}: {calls} all-reduces in a row take {ms(length)} of a "
        f"{ms(given.step_ns)} {given.per}, and next to nothing is computed beside them",
        at_most_ns=length,
        apply=AVERAGE if averages else REDUCE,
        evidence={
            "of": "parameters" if averages else "gradients",
            "calls": calls,
            "burst_ns": round(length),
            "comm_ns": comm,
            "compute_ns": round(fmean(each.compute_ns for each in bursts)),
        },
        measured=["the time from the first start to the last end, and what is computed in it"],
        assumed=["that all of it can be overlapped or avoided: the gain is an upper bound"],
    )


def idle_in_bursts(given: RuleInput) -> int:
    """Return the time in bursts, mean over them, in which the device neither communicates nor computes; 0 without."""
    bursts = _bursts_of_a_rank(given)[0] if given.run_has_device else []
    return round(fmean(each.length_ns - each.comm_ns - each.compute_ns for each in bursts)) if bursts else 0


def _bursts_of_a_rank(given: RuleInput) -> tuple[list[_Burst], bool]:
    """Return the bursts of the rank that has the longest, and whether they average parameters; empty where they are
    rare, or take next to nothing.

    Without a device of the rank that has the shortest: a call lasts from where it is made, with the wait for others.
    """
    if given.job.serves:
        return [], False
    found = {timeline.rank: _bursts(timeline, given, own) for timeline, own in given.some_ranks()}
    chosen = max if given.run_has_device else min
    rank = chosen(found, key=lambda each: sum(burst.length_ns for burst in found[each]), default=None)
    if rank is None or not given.is_worth(_a_step(given, found[rank])):
        return [], False
    averages = averages_parameters(given.run.ranks[rank])
    enough = len(found[rank]) >= FEWEST_AVERAGES if averages else 2 * len(found[rank]) > given.steps
    return (found[rank], averages) if enough else ([], False)


def _a_step(given: RuleInput, bursts: Sequence[_Burst]) -> float:
    """Return how long bursts take in a step, in ns: where they are in most steps, in one that has them."""
    steps = len(bursts) if 2 * len(bursts) > given.steps else given.steps
    return sum(each.length_ns for each in bursts) / max(steps, 1)


def _bursts(timeline: RankTimeline, given: RuleInput, windows: Windows) -> list[_Burst]:
    """Return the bursts of a rank, one for each window that has one."""
    calls, names, cover = timeline.collectives, timeline.names, given.coverage[timeline.rank]
    reduces = names.index("all_reduce") if "all_reduce" in names else -2
    data = [-1, *(code for code, name in enumerate(names) if name == DATA)]
    rows = np.flatnonzero((calls.op == reduces) & (calls.end_ns != NONE) & np.isin(calls.dimension, data))
    compute, found = BusyTime(cover.compute), []
    for begin, until in windows:
        own = rows[(calls.start_ns[rows] >= begin) & (calls.start_ns[rows] < until)]
        sizes = unique(calls.bytes[own])
        # Activations of layers over ranks have one size; a device computes between such calls.
        alike = sizes.size == 1 and not (timeline.has_device and sizes[0] == NONE)
        if own.size < FEWEST_CALLS or alike or np.median(calls.bytes[own]) >= BUCKET_BYTES:
            continue
        start, end = int(calls.start_ns[own].min()), int(calls.end_ns[own].max())
        computed = int(compute.within(np.array([start]), np.array([end]))[0])
        comm = int((calls.end_ns[own] - calls.start_ns[own]).sum())
        if computed <= min(BESIDE * (end - start), comm):
            found.append(_Burst(calls=own.size, length_ns=end - start, comm_ns=comm, compute_ns=computed))
    return found
