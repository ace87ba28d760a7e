"""Find what the end of a recording makes of its last step: how long ranks did nothing, as a profiler stops there, and
how far ahead of others they were, which they pay there.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median

import numpy as np

from overlapscope.analysis.common.user_ranges import range_of_step
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import Run


def idle_at_stops(
    run: Run, coverage: Mapping[int, Coverage], windows: Mapping[int, Sequence[StepWindow]]
) -> dict[tuple[int, int], float]:
    """Return, by (rank, step), how much longer a rank idled at the end of the last step of a recording than at the ends
    of the steps before. None where it did not, or a range, which this step alone has, says what it did."""
    found = {}
    for rank, every in windows.items():
        busy = union(coverage[rank].comm, coverage[rank].compute, coverage[rank].copy)
        for _, own in groupby(every, key=lambda each: each.recording):
            idle = [(each.step, _idle_at_end(each.window, busy)) for each in own if each.complete and each.window]
            if len(idle) < 2:
                continue
            step, more_ns = idle[-1][0], idle[-1][1] - median(ns for _, ns in idle[:-1])
            if more_ns > 0 and range_of_step(run.ranks[rank], step) is None:
                found[rank, step] = more_ns
    return found


def leads_at_stops(windows: Mapping[int, Sequence[StepWindow]]) -> dict[tuple[int, int], float]:
    """Return, by (rank, step), how much earlier than the last other rank a rank began the last step of a recording,
    beyond how they began the first one; of those that lead.

    A rank that needs nothing of the others for some steps begins each of them earlier than they do, and waits for them
    when all end together: that is no longer step of the job. The lengths of windows show it on any clock.
    """
    begun: dict[int, dict[int, dict[int, int]]] = {}
    ends: dict[int, dict[int, StepWindow]] = {}
    for rank, every in windows.items():
        for each in every:
            ends.setdefault(each.recording, {})[rank] = each
            if each.window is not None:
                begun.setdefault(each.recording, {}).setdefault(rank, {})[each.step] = each.window[0]
    found: dict[tuple[int, int], float] = {}
    for recording, ranks in begun.items():
        first = max(min(own) for own in ranks.values())
        last = ends[recording]
        for step in {each.step for each in last.values()}:
            took = {rank: own[step] - own[first] for rank, own in ranks.items() if {first, step} <= own.keys()}
            longest_ns = max(took.values(), default=0)
            found |= {
                (rank, step): float(longest_ns - ns)
                for rank, ns in took.items()
                if ns < longest_ns and last[rank].step == step and last[rank].complete
            }
    return found


def _idle_at_end(window: tuple[int, int], busy: Intervals) -> int:
    start, end = window
    before = int(np.searchsorted(busy.starts, end)) - 1
    return max(0, end - max(start, int(busy.ends[before]) if before >= 0 else start))
