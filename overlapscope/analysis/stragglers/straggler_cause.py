"""Find the cause of a straggler: what it did longer than its peers since their previous common call.

Between two calls of a group, each member computes, communicates in other groups, copies or is idle. The cause is what
the late rank did longer than the median of its peers. More compute is explained from the kernels; more idle time from
the host: capture's records, named ranges, and the first launch of a step. `STRAGGLER_CAUSES` holds the text of each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.stragglers.compared_operations import (
    by_sizes,
    longer_operation,
    more_operations,
    same_operations,
)
from overlapscope.analysis.stragglers.core_waits import waits_on_their_own
from overlapscope.analysis.stragglers.host_cause import (
    SHARED_CORES,
    SharedInterval,
    extra_allocator_retries,
    lowered_clock,
    more_than_peers,
    recorded_cause,
    recording_cost,
)
from overlapscope.analysis.stragglers.larger_grids import GRIDS_TIMES, larger_grids
from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.analysis.stragglers.new_kernels import kernels_alone
from overlapscope.analysis.stragglers.optimizer_kernels import times_in_optimizer
from overlapscope.analysis.stragglers.slow_in_steps import SLOW_STEPS, TIMES_IN_SLOW_STEPS, slow_in_steps
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, length, union
from overlapscope.timeline.rows import ascending
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""A cause must explain more than this share of the lateness."""
MORE: Final = 1.05
"""A rank computes longer than its peers from this factor of their median."""
EVEN: Final = 0.85
"""A slow device slows down at least this share of its kernels; with less, the work may differ instead."""
SIZED: Final = 0.25
"""Least share of the compute time in kernels whose grids may measure work, for more work to be told from slower one:
where sizes differ from step to step, as tokens of experts do, other kernels have the same grids in each."""
SOME_LARGER: Final = 0.05
"""From this share of the compute time in larger grids (more than the peers' share), the work is taken to be larger."""
SLOWER_TOO: Final = 0.5
"""A device is slower if kernels of the optimizer, whose work no batch changes, take longer than its peers' by at least
this share of what all its compute does. A choice: those that wait for memory slow down less with a lower clock."""
BESIDE_MOST: Final = 0.2
"""Only sets of ranks that it delayed by at least this share of its largest delay of a set are used."""
OFTENER: Final = 2.0
"""A rank pauses for a reason of its own from this many times its peers' median."""
AT_ONCE_NS: Final = 50_000
"""A call that starts within this after its launch waited for its host, not for its device."""
STRAGGLER_CAUSES: Final[Mapping[str, str]] = {
    "host": "host stall (it was idle, as its host started nothing)",
    "copies": "copies (its device copied, to or from its host or within its memory, while nothing else ran there)",
    "data_loading": "data loading (it fetched a batch, or was between two steps)",
    "garbage_collector": "garbage collection pauses of its interpreter",
    "allocator": "device memory was full (the allocator freed cached memory and retried)",
    "busy_core": "waiting for its core (other threads of its process, or other programs, ran there)",
    "paused": "pauses inside its operations (its core, or its interpreter's lock, was taken)",
    "throttled": "throttling (of its clocks, or of its processes' CPU share)",
    "more_work": "more work (it ran more or larger kernels than its peers)",
    "slower_compute": "slower compute (the same work took it longer than its peers)",
    "longer_compute": "longer compute (more to compute, or slower: which is not known)",
    "unknown": "cause not known",
}


def find_straggler_cause(
    late: Sequence[LateArrivals],
    run: Run,
    coverage: Mapping[int, Coverage],
    work: Mapping[int, RankCompute],
    not_launched: Mapping[int, Intervals],
    core_waits: Mapping[int, Intervals],
    paused: Mapping[int, Intervals],
    operation_ns: Mapping[int, Mapping[str, int]],
) -> tuple[str | None, dict[str, Any]]:
    """Return the cause (a key of STRAGGLER_CAUSES) of one rank's late arrivals, with evidence; None where it is not its
    fault.

    `not_launched` holds the result of `before_first_launch` for every rank; `core_waits`, for those that share too few
    cores by what their traces show, when each paused for lack of one; `paused`, when ranks without a device paused
    inside operations, for whatever reason, where that is known; `operation_ns`, how long such ranks computed in the
    operations of each name.
    """
    late = _delayed(late)
    rank, met = late[0].rank, [each.met for each in late]
    lead_ns = sum(int(each.lead_ns.sum()) for each in late)
    computed, communicated, copied, idle, unrecorded = _more_of(rank, met, run, coverage)
    evidence: dict[str, Any] = {
        "computed_more_ns": computed, "communicated_more_ns": communicated, "copied_more_ns": copied,
        "idle_more_ns": idle, "unrecorded_more_ns": unrecorded,
    }  # fmt: skip
    if communicated > MOST * lead_ns:
        return None, evidence  # it waited for others elsewhere
    cause, more = recorded_cause(rank, run, met, lead_ns)
    if copied > MOST * lead_ns:
        return "copies", evidence | more
    if cause == SHARED_CORES:
        # Else the operating system's scheduler made it late, and may choose another rank next.
        return "busy_core" if rank in waits_on_their_own(run) else None, evidence | more
    outside = idle + copied + unrecorded > MOST * lead_ns  # of what is recorded as computing
    if cause is not None and (outside or not run.ranks[rank].has_device):
        cause, sized = _by_work(cause, late, run, work, outside=outside)
        return _refined(cause, rank, run, met, lead_ns, evidence | more | sized)
    if computed > MOST * lead_ns:
        cause, more = _of_longer_compute(late, run, coverage, work, core_waits, paused, operation_ns, computed)
        if cause == "more_work" and run.ranks[rank].has_device:
            more |= kernels_alone(rank, run, met, computed)
        return _refined(cause, rank, run, met, lead_ns, evidence | more)
    if idle > MOST * lead_ns and run.ranks[rank].has_device:
        evidence["before_first_launch_ns"] = _before_first_launch_ns(late, coverage, not_launched)
    cause = "host" if idle > MOST * lead_ns else "unknown"
    return _refined(cause, rank, run, met, lead_ns, evidence)


def _before_first_launch_ns(
    late: Sequence[LateArrivals], coverage: Mapping[int, Coverage], not_launched: Mapping[int, Intervals]
) -> int:
    """Return how much longer than its peers a rank idled before the first launches of steps."""
    rank, members = late[0].rank, (late[0].rank, *compared_peers(late))
    waited = {each: BusyTime(_idle(not_launched[each], coverage[each])) for each in members}
    return more_than_peers(rank, [each.met for each in late], waited)


def _by_work(
    cause: str, late: Sequence[LateArrivals], run: Run, work: Mapping[int, RankCompute], *, outside: bool
) -> tuple[str, dict[str, Any]]:
    """Return a recorded cause, corrected by the operations of the rank and of its peers, with their evidence; `outside`
    says that it was late by what is not recorded as computing."""
    rank, peers = late[0].rank, compared_peers(late)
    if cause == "more_work" and (outside or same_operations(rank, peers, run)):
        cause = "host" if outside else "longer_compute"
    if cause != "longer_compute":
        return cause, {}
    return by_sizes(rank, peers, run, _times_as_long(late, work), _by_step(late))


def _of_longer_compute(
    late: Sequence[LateArrivals], run: Run, coverage: Mapping[int, Coverage], work: Mapping[int, RankCompute],
    core_waits: Mapping[int, Intervals], paused: Mapping[int, Intervals],
    operation_ns: Mapping[int, Mapping[str, int]], computed_ns: int,
) -> tuple[str | None, dict[str, Any]]:  # fmt: skip
    """Return why a rank computed longer than its peers, by `computed_ns` before its late calls, with evidence."""
    rank, peers = late[0].rank, compared_peers(late)
    lead_ns = sum(int(each.lead_ns.sum()) for each in late)
    cause, more = _by_compute(rank, peers, work, device=run.ranks[rank].has_device)
    in_steps = slow_in_steps(rank, peers, run, _by_step(late)) if run.ranks[rank].has_device else {}
    if cause == "unknown" and not in_steps and more["compute_ns"] < MORE * more.get("peers_compute_ns", np.inf):
        at_once = more["launched_late_ns"] = _launched_late(late)
        return ("host" if at_once > MOST * lead_ns else cause), more
    if in_steps or cause != "longer_compute":
        # Grids are not always the work: an optimizer's kernels have the same on each rank.
        by_optimizer = cause == "more_work" and not in_steps
        shown = _by_optimizer(rank, peers, run, _times_as_long(late, work))[1] if by_optimizer else in_steps
        return ("slower_compute" if shown else cause), more | shown
    longer_ns = more["compute_ns"] - more["peers_compute_ns"]
    ran = more_operations(late, peers, run, coverage, min(computed_ns, round(longer_ns)))
    cause, sized = ("more_work", ran) if ran else by_sizes(rank, peers, run, _times_as_long(late, work), _by_step(late))
    more |= sized
    if cause == "longer_compute" and run.ranks[rank].has_device:
        cause, shown = _by_optimizer(rank, peers, run, _times_as_long(late, work))
        shown = shown or larger_grids(rank, peers, run)
        cause = "more_work" if GRIDS_TIMES in shown else cause
        more |= shown
    if cause == "more_work" or "optimizer_times" in more:
        return cause, more
    more |= longer_operation(rank, peers, operation_ns, longer_ns)
    pauses_ns, late_ns = _paused_longer(late, paused)
    more["paused_more_ns"] = pauses_ns
    merely = same_operations(rank, peers, run)
    if merely and (pauses_ns > MOST * longer_ns or late_ns > MOST * lead_ns):
        return "paused", more
    if _on_cores_of_others(late, run, work, core_waits, lead_ns):
        return None, more  # others had the cores
    return cause, more


def _by_optimizer(rank: int, peers: Sequence[int], run: Run, times_as_long: float) -> tuple[str, dict[str, Any]]:
    """Return whether a device that computed `times_as_long` as its peers is slower, or whether that is not known, by
    the kernels of its optimizer; with evidence where these show it."""
    times = times_in_optimizer(rank, peers, run)
    if times is None or times - 1 < SLOWER_TOO * (times_as_long - 1):
        return "longer_compute", {}
    return "slower_compute", {"optimizer_times": times, "slowness": times}  # that by grids was of few kernels


def _times_as_long(late: Sequence[LateArrivals], work: Mapping[int, RankCompute]) -> float:
    """Return how many times as long as its peers the rank computed; infinite where that is not known."""
    rank, peers = late[0].rank, [work[each].compute_ns for each in compared_peers(late) if each in work]
    usual = float(np.median(peers)) if peers else 0.0
    return work[rank].compute_ns / usual if usual and rank in work else np.inf


def _by_step(late: Sequence[LateArrivals]) -> dict[int, int]:
    """Return by how much the rank was late in each step, in ns."""
    found: dict[int, int] = {}
    for each in late:
        for step, ns in zip(each.met.step.tolist(), each.lead_ns.tolist(), strict=True):
            found[step] = found.get(step, 0) + ns
    return found


def _paused_longer(late: Sequence[LateArrivals], paused: Mapping[int, Intervals]) -> tuple[int, int]:
    """Return how much longer a rank paused than the median of its peers: in all, and before its late calls.

    0 where in all that is less than OFTENER times as long, as where ranks take turns on cores; or is not known.
    """
    rank, peers = late[0].rank, compared_peers(late)
    if not paused.keys() >= {rank, *peers}:
        return 0, 0
    own_ns, usual_ns = length(paused[rank]), float(np.median([length(paused[each]) for each in peers]))
    if own_ns < OFTENER * usual_ns:
        return 0, 0
    before_ns = 0.0
    for met in (each.met for each in late):
        did = [
            BusyTime(paused[each]).within(begin, np.maximum(begin, end))
            for each, begin, end in zip(met.ranks, met.begin_ns, met.end_ns, strict=True)
        ]
        row = met.ranks.index(rank)
        before_ns += float((did[row] - np.median(np.delete(did, row, axis=0), axis=0)).sum())
    return round(own_ns - usual_ns), round(before_ns)


def _on_cores_of_others(
    late: Sequence[LateArrivals], run: Run, work: Mapping[int, RankCompute], core_waits: Mapping[int, Intervals],
    lead_ns: int,
) -> bool:  # fmt: skip
    """Return whether a rank made the same calls as its peers, and computed longer only while others had the cores.

    Over the whole recording: a pause moves what calls lie between two collectives of a thread that runs meanwhile.
    """
    rank, peers = late[0].rank, [each for each in compared_peers(late) if each in work]
    if not core_waits.keys() >= {rank, *peers} or not same_operations(rank, peers, run):
        return False
    ran_ns = {each: work[each].compute_ns - length(core_waits[each]) for each in (rank, *peers)}
    return ran_ns[rank] - float(np.median([ran_ns[each] for each in peers])) <= MOST * lead_ns


def _delayed(late: Sequence[LateArrivals]) -> list[LateArrivals]:
    most = max(int(each.lead_ns.sum()) for each in late)
    return [each for each in late if each.lead_ns.sum() >= BESIDE_MOST * most]


def compared_peers(late: Sequence[LateArrivals]) -> list[int]:
    """Return the ranks with which the cause of one rank's late arrivals compares it: whom it delayed, by rank."""
    return sorted({rank for each in _delayed(late) for rank in each.met.ranks} - {late[0].rank})


def _more_of(rank: int, met: Sequence[SharedInterval], run: Run, coverage: Mapping[int, Coverage]) -> tuple[int, ...]:
    """Return how much longer than the median of its peers the rank computed, communicated without computing, copied
    without either, idled, and had nothing recorded yet."""
    sums = np.zeros(5)
    for each in met:
        begin, end = each.begin_ns, np.maximum(each.begin_ns, each.end_ns)
        row = each.ranks.index(rank)
        for at, did in enumerate(_did(run, coverage, each.ranks, begin, end)):
            sums[at] += float((did[row] - np.median(np.delete(did, row, axis=0), axis=0)).sum())
    return tuple(np.rint(sums).astype(np.int64).tolist())


def longer_by_step(
    late: Sequence[LateArrivals], run: Run, coverage: Mapping[int, Coverage]
) -> tuple[Floats, Floats, Floats]:
    """Return how much longer than the median of its peers a rank computed, copied, and idled, before its late calls of
    each step: in ns, by step, of the set of ranks that it delayed most."""
    most = max(late, key=lambda each: int(each.lead_ns.sum()))
    met = most.met
    row = met.ranks.index(most.rank)
    _, place = np.unique(met.step, return_inverse=True)

    def summed(did: Ints) -> Floats:
        more = did[row] - np.median(np.delete(did, row, axis=0), axis=0)
        return np.bincount(place, weights=more).astype(np.float64)

    compute, _, copy, idle, _ = _did(run, coverage, met.ranks, met.begin_ns, np.maximum(met.begin_ns, met.end_ns))
    return summed(compute), summed(copy), summed(idle)


def _did(run: Run, coverage: Mapping[int, Coverage], ranks: Sequence[int], begin: Ints, end: Ints) -> tuple[Ints, ...]:
    """Return how long each member computed in its intervals (ranks by calls), communicated without computing, copied
    without either, did none of these, and was a device whose first recorded span had not begun: before that it may have
    worked off what had been launched before the recording.
    """

    def within(times: Callable[[Coverage], Intervals]) -> Ints:
        parts = zip(ranks, begin, end, strict=True)
        return np.array([BusyTime(times(coverage[rank])).within(own, until) for rank, own, until in parts])

    compute = within(lambda own: own.compute)
    comm = within(lambda own: difference(own.comm, own.compute))
    copy = within(lambda own: difference(own.copy, union(own.comm, own.compute)))
    devices = np.array([[run.ranks[rank].has_device] for rank in ranks])
    first = np.array([[coverage[rank].first_ns] for rank in ranks], np.int64)
    unrecorded = np.where(devices, np.maximum(np.minimum(first, end) - begin, 0), 0)
    return compute, comm, copy, end - begin - compute - comm - copy - unrecorded, unrecorded


def _by_compute(
    rank: int, others: Sequence[int], work: Mapping[int, RankCompute], *, device: bool
) -> tuple[str, dict[str, Any]]:
    """Decide between more work and slower compute, from the kernels where there are any."""
    mine = work[rank]
    peers = [work[each] for each in others if each in work]
    if not peers:
        return "unknown", {"compute_ns": mine.compute_ns}
    usual_compute = float(np.median([each.compute_ns for each in peers]))
    usual_work = float(np.median([each.usual_ns for each in peers]))
    evidence = {
        "compute_ns": mine.compute_ns, "peers_compute_ns": usual_compute, "slowness": mine.slowness,
        "work_ns": round(mine.usual_ns), "peers_work_ns": usual_work, "in_larger_grids": mine.larger,
    }  # fmt: skip
    if mine.compute_ns < MORE * usual_compute:
        return "unknown", evidence  # it computed in these intervals, but in total not longer than its peers
    if not device and not mine.compared:
        return "longer_compute", {"compute_ns": mine.compute_ns, "peers_compute_ns": usual_compute}
    if min(mine.sized, *(each.sized for each in peers)) < SIZED:
        return "longer_compute", evidence
    return _more_or_slower(mine, peers, usual_work), evidence


def _more_or_slower(mine: RankCompute, peers: Sequence[RankCompute], usual_work: float) -> str:
    slower, more = mine.compute_ns - mine.usual_ns, mine.usual_ns - usual_work
    if more >= slower:
        return "more_work"
    if mine.evenness >= EVEN:
        return "slower_compute"
    larger = mine.larger - float(np.median([each.larger for each in peers]))
    return "more_work" if larger >= SOME_LARGER else "unknown"


def _launched_late(late: Sequence[LateArrivals]) -> int:
    """Return the sum of leads of calls that started immediately after the rank's host launched them."""
    total = 0
    for each in late:
        started = each.met.end_ns[each.met.ranks.index(each.rank)]
        at_once = (each.launched_ns != NONE) & (started - each.launched_ns < AT_ONCE_NS)
        total += int(each.lead_ns[at_once].sum())
    return total


def before_first_launch(timeline: RankTimeline) -> Intervals:
    """Return when a step had begun and its host had not launched anything yet.

    Where a batch is fetched outside a named range, this is all that shows it.
    """
    steps, spans = timeline.steps, timeline.spans
    launches = ascending(spans.launch_ns[spans.launch_ns != NONE])
    if launches.size == 0:
        return union()
    first = launches[np.minimum(np.searchsorted(launches, steps.start_ns), launches.size - 1)]
    return union((steps.start_ns, np.minimum(np.maximum(first, steps.start_ns), steps.end_ns)))


def _idle(times: Intervals, cover: Coverage) -> Intervals:
    """Return the parts of these times in which the device was idle: none before its first recorded span."""
    known = union((np.maximum(times.starts, cover.first_ns), np.maximum(times.ends, cover.first_ns)))
    return difference(known, union(cover.compute, cover.comm, cover.copy))


def _refined(
    cause: str | None, rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int, evidence: dict[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Refine the cause: why the host was late or compute slow, and whether the recording overhead may explain it."""
    if cause == "slower_compute" and run.ranks[rank].has_device:
        peers = sorted({each for group in met for each in group.ranks} - {rank})
        times = evidence.get(TIMES_IN_SLOW_STEPS, evidence["slowness"])
        clocks = lowered_clock(rank, peers, run, times, evidence.get(SLOW_STEPS))
        return ("throttled", evidence | clocks) if clocks else (cause, evidence)
    if cause != "host":
        return cause, evidence
    retries = extra_allocator_retries(rank, run, met)
    if retries > 0:
        return "allocator", {**evidence, "allocator_retries_more": retries}
    cost = recording_cost(run.ranks[rank])
    if cost is None:
        return cause, evidence
    steps = np.unique(np.concatenate([each.step for each in met])).size
    return cause, {
        **evidence,
        "recording_cost_ns": round(cost * steps),
        "recording_may_explain": cost * steps > MOST * lead_ns,
    }
