"""Find how long ranks did nothing at the end of a recording: there a profiler stops, which no step before it shows."""

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


def _idle_at_end(window: tuple[int, int], busy: Intervals) -> int:
    start, end = window
    before = int(np.searchsorted(busy.starts, end)) - 1
    return max(0, end - max(start, int(busy.ends[before]) if before >= 0 else start))
