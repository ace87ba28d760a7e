"""Decide whether a rank is late for a reason of its own, which chance would not repeat.

It computes longer over the whole recording, is late by as much each time, or what is recorded of it alone explains it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.stragglers.chance import occasions_of
from overlapscope.analysis.stragglers.core_waits import waited_for_cores
from overlapscope.analysis.stragglers.host_cause import ran_longer_each_time
from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.analysis.stragglers.straggler_cause import compared_peers, longer_by_step
from overlapscope.timeline.intervals import BusyTime, length
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import Run

LASTING: Final = 1.15
OF_COMPUTE: Final = frozenset({"slower_compute", "throttled", "more_work", "longer_compute"})
"""With one of these causes and LASTING times its peers' compute over the whole recording, lateness is not by chance,
even with few steps. Without a device ..."""
LONGER: Final = 1.05
IN_STEPS: Final = 0.75
"""... it must also compute LONGER times as long in this share of its steps: long pauses of a host look like compute."""
OF_ITS_OWN: Final = frozenset({"garbage_collector", "busy_core"})
TIMES_ITS_PEERS: Final = 2.0
"""A rank that in all collected garbage, or waited for a core that its own threads took, so many times as long as those
that it delayed is not late for that by chance, from FEWEST_ALIKE steps on in which it delayed them much: by ..."""
MUCH: Final = 0.2
"""... this share of its longest delay."""
FEWEST_ALIKE: Final = 3
AS_MUCH, MOSTLY_ALIKE = 0.8, 0.9
"""Its delays of at least the first share of the largest hold the second share of them all."""
MOST_OF_DELAYS: Final = 0.5
TURNS_NS: Final = 12_000_000
"""It is late by more than two turns on a core in a step, of 2 to 6 ms each: equal hosts that share cores may take them
in the same order each time."""


def is_its_own(cause: str | None, theirs: Sequence[LateArrivals], run: Run) -> bool:
    """Return whether a rank was late in several steps for what is recorded of it far more than of those it delayed."""
    delays = occasions_of(theirs, by_step=True)
    if cause not in OF_ITS_OWN or (delays >= MUCH * delays.max()).sum() < FEWEST_ALIKE:
        return False
    rank, peers = theirs[0].rank, compared_peers(theirs)
    recorded_ns = (
        waited_for_cores(run.ranks)
        if cause == "busy_core"
        else {each: length(recorded_pauses(run.ranks[each], COLLECTOR)) for each in (rank, *peers)}
    )
    usual_ns = float(np.median([recorded_ns.get(each, 0) for each in peers]))
    return bool(recorded_ns.get(rank, 0) >= TIMES_ITS_PEERS * usual_ns)


def late_alike(theirs: Sequence[LateArrivals], cause: str | None, run: Run, coverage: Mapping[int, Coverage]) -> bool:
    """Return whether a rank was late in several steps, by about as much in each, or ran longer before each late call.

    As much may be how late it was, or how much longer it computed, copied or idled, if that is most of it. Short delays
    beside those do not count.
    """
    delays = occasions_of(theirs, by_step=True)
    if delays.size < FEWEST_ALIKE:
        return False
    for did in (delays, *longer_by_step(theirs, run, coverage)):
        alike = did[did >= AS_MUCH * did.max()]
        most = max(MOSTLY_ALIKE * float(np.abs(did).sum()), MOST_OF_DELAYS * float(delays.sum()))
        if alike.size >= FEWEST_ALIKE and did.max() >= TURNS_NS and alike.sum() >= most:
            return True
    return cause == "more_work" and ran_longer_each_time(theirs[0].rank, run, [each.met for each in theirs])


def computes_longer(
    rank: int, late: Sequence[LateArrivals], run: Run, coverage: Mapping[int, Coverage], work: Mapping[int, RankCompute]
) -> bool:
    """Return whether a rank computes LASTING times as long as the peers that it delayed, without a device in most
    steps."""
    peers = [each for each in compared_peers(late) if each in work]
    usual = float(np.median([work[each].compute_ns for each in peers])) if peers else np.inf
    if rank not in work or work[rank].compute_ns < LASTING * usual:
        return False
    return run.ranks[rank].has_device or _in_most_steps(rank, peers, run, coverage)


def _in_most_steps(rank: int, peers: Sequence[int], run: Run, coverage: Mapping[int, Coverage]) -> bool:
    """Return whether a rank computes LONGER times its peers' median in most of the steps; True where none is known."""
    took: dict[int, dict[int, int]] = {}
    for each in (rank, *peers):
        known = [(own.step, own.window) for own in step_windows(run.ranks[each]) if own.window and own.complete]
        starts, ends = (np.array([window[side] for _, window in known], np.int64) for side in (0, 1))
        computed = BusyTime(coverage[each].compute).within(starts, ends)
        took[each] = dict(zip([step for step, _ in known], computed.tolist(), strict=True))
    longer = []
    for step, own_ns in took[rank].items():
        others = [took[each][step] for each in peers if step in took[each]]  # of a rank not all steps may be recorded
        if others:
            longer.append(own_ns >= LONGER * np.median(others))
    return not longer or float(np.mean(longer)) >= IN_STEPS
