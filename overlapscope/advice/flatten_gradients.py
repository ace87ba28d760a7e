"""Rule: gradients are reduced one by one after backward; send them as a few flat buckets, during backward."""

from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.run import RankTimeline

FEWEST_CALLS: Final = 32
"""Least all-reduces of a burst: buckets of 25 MiB are fewer, up to models of a billion parameters. A choice."""
BUCKET_BYTES: Final = 25 << 20
"""DistributedDataParallel's own bucket cap: calls as large are no longer small."""
BESIDE: Final = 0.1
"""Largest share of a burst in which the device computes, which is no longer than the calls either. A choice: clones and
casts take less; backward, or layers whose launches are late, take more."""


class _Burst(msgspec.Struct, frozen=True, kw_only=True):
    """The all-reduces of a window, from the first start to the last end; nanoseconds."""

    calls: int
    length_ns: int
    comm_ns: int
    compute_ns: int


def flatten_gradients(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where most windows of a rank hold such a burst; None for inference and CPU runs."""
    bursts = _longest_bursts(given)
    if not bursts:
        return None
    length = fmean(each.length_ns for each in bursts)
    calls, comm = (round(fmean(getattr(each, part) for each in bursts)) for part in ("calls", "comm_ns"))
    return recommended(
        given,
        id="flatten_gradients",
        title=f"Reduce gradients as a few flat buckets during backward: {calls} all-reduces one after the other take "
        f"{ms(length)} of a {ms(given.step_ns)} {given.per}, and next to nothing is computed beside them",
        at_most_ns=length,
        apply={
            "torch": "flat = torch._utils._flatten_dense_tensors([p.grad for p in model.parameters()])  # one a dtype\n"
            "torch.distributed.all_reduce(flat)  # then torch._utils._unflatten_dense_tensors(flat, gradients)",
            "ddp": "DistributedDataParallel(model)  # buckets of 25 MiB, each sent while backward goes on",
            "horovod": "HOROVOD_FUSION_THRESHOLD=134217728 HOROVOD_CYCLE_TIME=5",
        },
        evidence={
            "calls": calls,
            "burst_ns": round(length),
            "comm_ns": comm,
            "compute_ns": round(fmean(each.compute_ns for each in bursts)),
        },
        measured=["the time from the first start to the last end, and what the device computes in it"],
        assumed=["that all of it can be overlapped or avoided: the gain is an upper bound"],
    )


def idle_in_bursts(given: RuleInput) -> int:
    """Return the time in bursts, mean over them, in which the device neither communicates nor computes; 0 without."""
    bursts = _longest_bursts(given)
    return round(fmean(each.length_ns - each.comm_ns - each.compute_ns for each in bursts)) if bursts else 0


def _longest_bursts(given: RuleInput) -> list[_Burst]:
    """Return the bursts of the rank that has the longest; empty where they are rare, or take next to nothing."""
    if given.job.serves:
        return []
    found = [_bursts(timeline, given, own) for timeline, own in given.some_ranks() if timeline.has_device]
    bursts = max(found, key=lambda each: sum(burst.length_ns for burst in each), default=[])
    length = fmean([each.length_ns for each in bursts] or [0])
    return bursts if given.is_worth(length) and 2 * len(bursts) > given.steps else []


def _bursts(timeline: RankTimeline, given: RuleInput, windows: Windows) -> list[_Burst]:
    """Return the bursts of a rank, one for each window that has one."""
    calls, names, cover = timeline.collectives, timeline.names, given.coverage[timeline.rank]
    reduces = names.index("all_reduce") if "all_reduce" in names else -2
    data = [-1, *(code for code, name in enumerate(names) if name == DATA)]
    rows = np.flatnonzero((calls.op == reduces) & (calls.end_ns != NONE) & np.isin(calls.dimension, data))
    compute, found = BusyTime(cover.compute), []
    for begin, until in windows:
        own = rows[(calls.start_ns[rows] >= begin) & (calls.start_ns[rows] < until)]
        if own.size < FEWEST_CALLS or np.median(calls.bytes[own]) >= BUCKET_BYTES:
            continue
        start, end = int(calls.start_ns[own].min()), int(calls.end_ns[own].max())
        computed = int(compute.within(np.array([start]), np.array([end]))[0])
        comm = int((calls.end_ns[own] - calls.start_ns[own]).sum())
        if computed <= min(BESIDE * (end - start), comm):
            found.append(_Burst(calls=own.size, length_ns=end - start, comm_ns=comm, compute_ns=computed))
    return found
