"""Rule: gradients, or parameters in local SGD, are reduced one by one; send them as a few flat buckets."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.advice.training_thread import BACKWARD
from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_begins, optimizer_ends
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime, difference, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_ddp

FEWEST_CALLS: Final = 32
"""Least all-reduces of a burst: buckets of 25 MiB are fewer, up to models of a billion parameters. A choice."""
FEWEST_AFTER: Final = 16
"""The same of calls without a device that are seen to come between backward and the optimizer: of unknown sizes, they
reduce gradients, not activations of layers. Or, where ..."""
FEWER: Final = 8
"""... all sizes are known, so many times as many as buckets of 25 MiB would be. A choice."""
LEAST_BYTES: Final = 64 << 10
"""Fewer calls than FEWEST_CALLS, of known sizes that are less in all, are metrics. A choice: a job has few ..."""
NUMBER_BYTES: Final = 8
"""... and each is a number: of more calls that are no larger, too."""
ODD_ONES: Final = 2
"""Among few layers' calls so many may have another size: one at each end."""
ALIKE: Final = 0.9
"""Calls of which this share has one known size may be of layers. A choice."""
AT_ONCE: Final = 0.5
"""Calls of unknown sizes are no layers' where this share begins before the one before it ends: a layer needs the result
of the one below it. A choice."""
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
    """All-reduces of a step, from the first start to the last end; nanoseconds."""

    window: int
    """Number of the step."""
    averages: bool
    """Whether they follow on the optimizer: they average parameters."""
    calls: int
    length_ns: int
    waits_ns: int
    """What of it the rank waited for late ones, and neither computed nor had come to another call; 0 where that is not
    known."""
    comm_ns: int
    compute_ns: int
    exposed_ns: int | None
    """What of the calls is exposed, where the host goes on to compute beside them; None in a row."""

    @property
    def lost_ns(self) -> int:
        """What could be saved, at most."""
        return (self.length_ns if self.exposed_ns is None else self.exposed_ns) - self.waits_ns


def flatten_gradients(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where most windows of a rank hold such a burst, or some that average parameters; None
    for inference."""
    bursts = _bursts_of_a_rank(given)
    if not bursts:
        return None
    lost, averages = _a_step(given, bursts), bursts[0].averages
    having = len({each.window for each in bursts})
    calls, burst, comm, compute = (
        round(sum(getattr(each, part) for each in bursts) / having)
        for part in ("calls", "length_ns", "comm_ns", "compute_ns")
    )
    what = "Reduce gradients as a few flat buckets"
    if averages:
        what = "Reduce what follows the optimizer (parameters?) as a few flat tensors"
    step = f"a {ms(given.step_ns)} {given.per}"
    in_a_row = all(each.exposed_ns is None for each in bursts)
    rows = round(len(bursts) / having)
    row = "a row" if rows < 2 else f"{rows} rows"
    step += " besides waiting for late ranks" * any(each.waits_ns for each in bursts)
    why = f"{calls} all-reduces in {row} take {ms(lost)} of {step}, and next to nothing is computed beside them"
    if not in_a_row:
        why = f"{ms(lost)} of {step} are exposed in {calls} all-reduces"
    return recommended(
        given,
        id="flatten_gradients",
        title=f"{what}{' during backward' if in_a_row and not averages else ''}: {why}",
        at_most_ns=lost,
        apply=AVERAGE if averages else REDUCE,
        evidence={
            "of": "parameters" if averages else "gradients",
            "calls": calls,
            "burst_ns": burst,
            "comm_ns": comm,
            "compute_ns": compute,
        },
        measured=["the time from the first start to the last end, and what is computed in it"]
        if in_a_row
        else ["time in these calls beside which nothing is computed"],
        assumed=["that all of it can be overlapped or avoided: the gain is an upper bound"],
    )


def idle_in_bursts(given: RuleInput) -> int:
    """Return the time in bursts, mean over them, in which the device neither communicates nor computes; 0 without."""
    bursts = _bursts_of_a_rank(given) if given.run_has_device else []
    having = len({each.window for each in bursts})
    return round(sum(each.length_ns - each.comm_ns - each.compute_ns for each in bursts) / having) if bursts else 0


def _bursts_of_a_rank(given: RuleInput) -> list[_Burst]:
    """Return the bursts, of one kind, of the rank that has the longest; empty where they are rare, or take next to
    nothing.

    Without a device, and where a straggler is known, of the rank that has the shortest: calls of the others last with
    the wait for it.
    """
    if given.job.serves:
        return []
    found = [_bursts(timeline, given, own) for timeline, own in given.some_ranks()]
    chosen = max if given.run_has_device and not given.analysis.skew.stragglers else min
    kinds = []
    for averages in (False, True):
        of_ranks = [[each for each in own if each.averages is averages] for own in found]
        often = [own for own in of_ranks if _are_often(given, own)]
        kinds.append(chosen(often, key=lambda own: _a_step(given, own), default=[]))
    bursts = max(kinds, key=lambda own: _a_step(given, own))
    return bursts if given.is_worth(_a_step(given, bursts)) else []


def _are_often(given: RuleInput, bursts: Sequence[_Burst]) -> bool:
    """Return whether most steps have bursts, or some, of averages of parameters."""
    having = len({each.window for each in bursts})
    return having >= FEWEST_AVERAGES if bursts and bursts[0].averages else 2 * having > given.steps


def _a_step(given: RuleInput, bursts: Sequence[_Burst]) -> float:
    """Return what bursts lose in a step, in ns: where most steps have some, in the median one that has, as the step
    that it is held against is a median; else in the mean of all."""
    lost: dict[int, int] = defaultdict(int)
    for each in bursts:
        lost[each.window] += each.lost_ns
    return median(lost.values()) if 2 * len(lost) > given.steps else sum(lost.values()) / max(given.steps, 1)


def _bursts(timeline: RankTimeline, given: RuleInput, windows: Windows) -> list[_Burst]:
    """Return the bursts of a rank: of each window at most one before each optimizer ends, and one after the last."""
    calls, names = timeline.collectives, timeline.names
    reduces = names.index("all_reduce") if "all_reduce" in names else -2
    data = [-1, *(code for code, name in enumerate(names) if name == DATA)]
    forward, backward = (rows_named(calls.phase, names, phase.__eq__) for phase in ("forward", "backward"))
    rows = (calls.op == reduces) & (calls.end_ns != NONE) & np.isin(calls.dimension, data)
    rows = np.flatnonzero(rows & ~forward)  # no gradient is reduced there
    begun, ended = optimizer_begins(timeline), optimizer_ends(timeline)
    after = np.searchsorted(ended, launch_times(timeline, rows), side="right")
    # Of DDP's buckets, and of a device's queue, replays say what others would save.
    hooks = not timeline.has_device and not shows_ddp(given.run)
    sees_backward = hooks and any(map(BACKWARD.match, names))
    transfer_ns = given.transfers[timeline.rank].transfer_ns
    since_ns = np.where(transfer_ns == NONE, calls.start_ns, calls.end_ns - transfer_ns)
    compute, found = BusyTime(given.coverage[timeline.rank].compute), []
    for window, (begin, until) in enumerate(windows):
        inside = (calls.start_ns[rows] >= begin) & (calls.start_ns[rows] < until)
        first, last = np.searchsorted(ended, (begin, until)).tolist()
        for number in unique(after[inside]).tolist():
            own = rows[inside & (after == number)]
            # The last optimizer of a window may end after it.
            follows = np.searchsorted(begun, calls.start_ns[own].max()) < np.searchsorted(begun, until)
            averages = number == last > first and not follows
            in_backward = hooks and not averages and bool(backward[own].all())
            follows_backward = sees_backward and not averages and not bool(backward[own].any())
            burst = _burst(
                timeline,
                compute,
                since_ns,
                own,
                window,
                averages=averages,
                in_backward=in_backward,
                after_backward=follows_backward,
            )
            found += [] if burst is None else [burst]
    return found


def _are_small_parts(sizes: Ints, fewest: int = FEWEST_CALLS) -> bool:
    """Return whether calls of these bytes are many more than buckets would be: of unknown sizes, `fewest` or more."""
    known = bool((sizes != NONE).all())
    total = int(sizes.sum()) if known else 0
    if sizes.size >= (FEWEST_CALLS if known else fewest):
        return bool(np.median(sizes) < BUCKET_BYTES) and not (known and sizes.max() <= NUMBER_BYTES)
    return known and total >= LEAST_BYTES and sizes.size >= FEWER * -(-total // BUCKET_BYTES)


def _may_be_layers(sizes: Ints, start: Ints, end: Ints) -> bool:
    """Return whether calls may reduce activations of layers over ranks, which have one size."""
    if (sizes == NONE).all():
        order = np.argsort(start, kind="stable")
        return bool((start[order][1:] < end[order][:-1]).mean() < AT_ONCE)
    return bool(np.unique(sizes, return_counts=True)[1].max() >= min(ALIKE * sizes.size, sizes.size - ODD_ONES))


def _burst(
    timeline: RankTimeline, compute: BusyTime, since_ns: Ints, rows: Ints, window: int, *, averages: bool,
    in_backward: bool, after_backward: bool,
) -> _Burst | None:  # fmt: skip
    """Return the burst that these calls are; None where they are few, large, or layers' over ranks, or compute goes on
    beside them and they are not hooks' `in_backward`. `since_ns` is from when on each call transfers."""
    calls = timeline.collectives
    if not _are_small_parts(calls.bytes[rows], FEWEST_AFTER if after_backward else FEWEST_CALLS):
        return None
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    # A device computes between activations of layers over ranks.
    if not timeline.has_device and not after_backward and _may_be_layers(calls.bytes[rows], start, end):
        return None
    first, last = int(start.min()), int(end.max())
    computed = int(compute.within(np.array([first]), np.array([last]))[0])
    comm = int((end - start).sum())
    in_a_row = computed <= min(BESIDE * (last - first), comm)
    if not in_a_row and not in_backward:
        return None
    times = union((start, end))
    exposed = length(times) - int(compute.within(times.starts, times.ends).sum())
    waits = difference(times, union((since_ns[rows], end))) if timeline.has_device else union()
    return _Burst(
        window=window, averages=averages, calls=rows.size, length_ns=last - first, comm_ns=comm, compute_ns=computed,
        waits_ns=length(waits) - int(compute.within(waits.starts, waits.ends).sum()),
        exposed_ns=None if in_a_row else exposed,
    )  # fmt: skip
