"""Find how often the optimizer ran in a recording without marks of steps, whose figures are of the whole recording."""

from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.timeline.columns import Ints, size
from overlapscope.timeline.optimizer_marks import optimizer_marks
from overlapscope.timeline.run import RankTimeline, Run

FEWEST: Final = 3
"""Optimizers from which their period is known to be even or not."""
EVEN: Final = 0.1
"""Longest and shortest time between two differ at most by this share of the median. A choice: a job with two optimizers
in a step, or with steps of several kinds, has more."""


def unmarked_steps(run: Run) -> list[Finding]:
    """Return a finding where no rank has marks of steps, and on each its optimizer begins at an even period."""
    ranks = [each for each in run.ranks.values() if each.num_spans]
    if not ranks or any(size(each.steps) for each in ranks):
        return []
    begun = [_begins(each.at_hand()) for each in ranks]
    if not all(map(_is_even, begun)):
        return []
    periods = [float(np.median(np.diff(each))) for each in begun]
    times = sorted({each.size for each in begun})
    often = f"{times[0]} times" if len(times) == 1 else f"{times[0]} to {times[-1]} times"
    period_ns = float(np.median(periods))
    return [
        Finding(
            id="unmarked_steps",
            severity="info",
            title=f"no step marks: the optimizer runs every {format_ms(period_ns)} ({often}), and figures are of the "
            "whole recording; mark steps: prof.step() after each with torch's profiler, an NVTX range around each with "
            "others",
            evidence={"period_ns": round(period_ns), "optimizers": times[0]},
            known_from="trace",
        )
    ]


def _begins(timeline: RankTimeline) -> Ints:
    """Return when a rank's optimizers began on the host, ascending."""
    return timeline.annotations.start_ns[optimizer_marks(timeline)]


def _is_even(begun: Ints) -> bool:
    if begun.size < FEWEST:
        return False
    between = np.diff(begun)
    return bool(np.ptp(between) <= EVEN * np.median(between))
