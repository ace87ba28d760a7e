"""What held a late rank: what it did more of than its peers since they last met, and what that was.

Between two calls that a group makes together, each member computes, communicates with others or is idle; what the late
one had more of than the median of its peers is what held it. Computing is looked into by the kernels, idleness by the
host: what capture noted of it, what its ranges say, and when its first launch of a step came.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.host_cause import (
    SHARED_CORES,
    Met,
    clocks_down,
    more_than_peers,
    noted,
    recording_cost,
    retried,
)
from overlapscope.analysis.kernels import Work
from overlapscope.analysis.lateness import Late
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, union
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""An explanation must account for this share of the leads."""
MORE: Final = 1.05
"""A rank computes more than its peers from this factor of their median."""
EVEN: Final = 0.85
"""A slow device slows down this share of what runs on it; less, and the work may have changed instead."""
SOME_LARGER: Final = 0.05
"""Share of the compute time, beyond the peers', in larger grids from which the work is taken to be larger."""
BESIDE_MOST: Final = 0.2
"""Only sets of ranks that it held up by this share of what it held up most are compared with."""
AT_ONCE_NS: Final = 50_000
"""A call that starts within this after its launch has waited for its host, not for its device."""
HELD_BY: Final[Mapping[str, str]] = {
    "host": "it was idle, its host had not given it more to do",
    "data_loading": "it was between two steps, as in loading data",
    "garbage_collector": "its interpreter collected garbage",
    "allocator": "its device's memory was full: the allocator gave memory back and asked again",
    "throttled": "its clocks were held down, or its processes' share of the cores",
    "more_work": "it ran more kernels than its peers",
    "slower_compute": "its kernels took longer than its peers'",
    "unknown": "by what is not known",
}


def held_by(
    late: Sequence[Late],
    run: Run,
    coverage: Mapping[int, Coverage],
    work: Mapping[int, Work],
    not_launched: Mapping[int, Intervals],
) -> tuple[str | None, dict[str, Any]]:
    """Return what held the rank whose late calls these are, with the figures; None where it is no culprit itself.

    `not_launched` holds what `before_first_launch` gives for every rank.
    `host`, `data_loading`, `garbage_collector`, `allocator`, `throttled`, `more_work`, `slower_compute` or `unknown`.
    """
    most = max(int(each.lead_ns.sum()) for each in late)
    late = [each for each in late if each.lead_ns.sum() >= BESIDE_MOST * most]
    rank, met = late[0].rank, [each.met for each in late]
    lead_ns = sum(int(each.lead_ns.sum()) for each in late)
    computed, communicated, idle = _more_of(rank, met, coverage)
    evidence: dict[str, Any] = {
        "computed_more_ns": computed, "communicated_more_ns": communicated, "idle_more_ns": idle,
    }  # fmt: skip
    if communicated > MOST * lead_ns:
        return None, evidence  # it waited for others elsewhere
    told, more = noted(rank, run, met, lead_ns)
    if told == SHARED_CORES:
        return None, evidence | more  # the system's scheduler chose it, and may choose another one next time
    if told is not None and (idle > MOST * lead_ns or not run.ranks[rank].has_device):
        return _refined(told, rank, run, met, lead_ns, evidence | more)
    if computed > MOST * lead_ns:
        told, more = _by_compute(rank, met, work)
        if told == "unknown" and more["compute_ns"] < MORE * more.get("peers_compute_ns", np.inf):
            at_once = more["launched_late_ns"] = _launched_late(late)
            told = "host" if at_once > MOST * lead_ns else told
        return _refined(told, rank, run, met, lead_ns, evidence | more)
    if idle > MOST * lead_ns:
        members = {each for group in met for each in group.ranks}
        before = more_than_peers(rank, met, {each: BusyTime(_idle(not_launched[each], coverage[each]))
                                             for each in members})  # fmt: skip
        return _refined("host", rank, run, met, lead_ns, {**evidence, "before_first_launch_ns": before})
    return "unknown", evidence


def _more_of(rank: int, met: Sequence[Met], coverage: Mapping[int, Coverage]) -> tuple[int, int, int]:
    """Give how much more than the median of its peers the rank computed, communicated without computing, and idled."""
    sums = np.zeros(3)
    for each in met:
        begin, end = each.begin_ns, np.maximum(each.begin_ns, each.end_ns)
        row = each.ranks.index(rank)
        compute, comm = _busy(coverage, each.ranks, begin, end)
        for at, did in enumerate((compute, comm, end - begin - compute - comm)):
            sums[at] += float((did[row] - np.median(np.delete(did, row, axis=0), axis=0)).sum())
    computed, communicated, idle = np.rint(sums).astype(np.int64).tolist()
    return computed, communicated, idle


def _busy(coverage: Mapping[int, Coverage], ranks: Sequence[int], begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return what each member computed in its stretches, and communicated without computing."""
    compute = [BusyTime(coverage[rank].compute).within(b, e) for rank, b, e in zip(ranks, begin, end, strict=True)]
    comm = [
        BusyTime(difference(coverage[rank].comm, coverage[rank].compute)).within(b, e)
        for rank, b, e in zip(ranks, begin, end, strict=True)
    ]
    return np.array(compute), np.array(comm)


def _by_compute(rank: int, met: Sequence[Met], work: Mapping[int, Work]) -> tuple[str, dict[str, Any]]:
    """Tell more work from slower work, by the kernels."""
    mine = work[rank]
    peers = [work[each] for each in sorted({each for group in met for each in group.ranks} - {rank}) if each in work]
    if not peers:
        return "unknown", {"compute_ns": mine.compute_ns}
    usual_compute = float(np.median([each.compute_ns for each in peers]))
    usual_work = float(np.median([each.usual_ns for each in peers]))
    evidence = {
        "compute_ns": mine.compute_ns, "peers_compute_ns": usual_compute, "slowness": mine.slowness,
        "work_ns": round(mine.usual_ns), "peers_work_ns": usual_work, "in_larger_grids": mine.larger,
    }  # fmt: skip
    if mine.compute_ns < MORE * usual_compute:
        return "unknown", evidence  # it computed meanwhile, but in all no more than its peers
    slower, more = mine.compute_ns - mine.usual_ns, mine.usual_ns - usual_work
    if more >= slower:
        return "more_work", evidence
    if mine.evenness >= EVEN:
        return "slower_compute", evidence
    larger = mine.larger - float(np.median([each.larger for each in peers]))
    return ("more_work" if larger >= SOME_LARGER else "unknown"), evidence


def _launched_late(late: Sequence[Late]) -> int:
    """Return the leads of calls that the rank's host launched no earlier than they started."""
    total = 0
    for each in late:
        started = each.met.end_ns[each.met.ranks.index(each.rank)]
        at_once = (each.launched_ns != NONE) & (started - each.launched_ns < AT_ONCE_NS)
        total += int(each.lead_ns[at_once].sum())
    return total


def before_first_launch(timeline: RankTimeline) -> Intervals:
    """Return when a step had begun and its host had launched nothing.

    Where a batch is fetched without a range that says so, this is all that shows of it.
    """
    steps, spans = timeline.steps, timeline.spans
    launches = np.sort(spans.launch_ns[spans.launch_ns != NONE])
    if launches.size == 0:
        return union()
    first = launches[np.minimum(np.searchsorted(launches, steps.start_ns), launches.size - 1)]
    return union((steps.start_ns, np.minimum(np.maximum(first, steps.start_ns), steps.end_ns)))


def _idle(times: Intervals, cover: Coverage) -> Intervals:
    """Return when the device had nothing to do of these times."""
    return difference(difference(times, cover.compute), cover.comm)


def _refined(
    told: str, rank: int, run: Run, met: Sequence[Met], lead_ns: int, evidence: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Look for what made a host late, or computing slow; and whether recording itself may have done it."""
    if told == "slower_compute":
        peers = sorted({each for group in met for each in group.ranks} - {rank})
        clocks = clocks_down(rank, peers, run, evidence["slowness"])
        return ("throttled", evidence | clocks) if clocks else (told, evidence)
    if told != "host":
        return told, evidence
    retries = retried(rank, run, met)
    if retries > 0:
        return "allocator", {**evidence, "allocator_retries_more": retries}
    cost = recording_cost(run.ranks[rank])
    if cost is None:
        return told, evidence
    steps = np.unique(np.concatenate([each.step for each in met])).size
    return told, {
        **evidence,
        "recording_cost_ns": round(cost * steps),
        "recording_may_explain": cost * steps > MOST * lead_ns,
    }
