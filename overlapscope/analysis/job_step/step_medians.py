"""The headline's figures that need no causes: what a replay starts from, at the price of a few unions for each rank."""

from typing import Self

import msgspec

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.job_step.metrics import DEFINITIONS, STEP_TIME
from overlapscope.analysis.job_step.step_table import RankWindows, main_figures
from overlapscope.analysis.per_rank.breakdown import Breakdown, Coverage
from overlapscope.analysis.per_rank.steps import step_windows, whole_windows
from overlapscope.timeline.run import RankTimeline, Run


class StepMedians(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the headline, in ns, over whole recordings where no step is complete."""

    step_ns: int
    exposed_comm_ns: int
    overlapped_ns: int

    @classmethod
    def of(cls, run: Run, cross_rank: CrossRank) -> Self | None:
        """Return the figures of a run; None without times, or without communication beside which they are known."""
        found = {rank: _windows(timeline) for rank, timeline in run.ranks.items()}
        timed = {rank: own for rank, own in found.items() if own.whole.window_ns}
        table = main_figures(timed, cross_rank).of_most_ranks()
        if not table.ranks:
            return None
        names = (STEP_TIME, "exposed_comm_ns", "overlapped_ns")
        step, exposed, overlapped = (DEFINITIONS[name].median(table) for name in names)
        if not step or exposed is None or overlapped is None:
            return None
        return cls(step_ns=round(step), exposed_comm_ns=round(exposed), overlapped_ns=round(overlapped))


def _windows(timeline: RankTimeline) -> RankWindows:
    covered, windows, whole = Coverage.of(timeline.spans), step_windows(timeline), whole_windows(timeline)
    return RankWindows(
        steps=[(each, covered.breakdown(each.window) if each.window else Breakdown()) for each in windows],
        whole=covered.breakdown(*whole) if whole else Breakdown(),
        recordings=whole,
    )
