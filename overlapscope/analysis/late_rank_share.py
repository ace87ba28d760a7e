"""Exposed wait time of a step that is caused by late ranks, and the rank that the others waited for most."""

from statistics import fmean

import msgspec

from overlapscope.analysis.analyze import Analysis
from overlapscope.analysis.cause_table import WAITS_FOR_LATE_RANK


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed wait time per step in nanoseconds: the mean over ranks of the means over their complete steps."""

    step_ns: float
    most_for: int | None
    """The rank with the most blame; None where no rank has any."""


def waited(analysis: Analysis) -> Waited | None:
    """Return the exposed wait time of a run; None where no collective was matched, or no step is complete."""
    of_ranks = [
        fmean(sum(step.causes.get(cause, 0) for cause in WAITS_FOR_LATE_RANK) for step in complete)
        for rank in analysis.ranks
        if (complete := [step for step in rank.steps if step.complete and step.window_ns is not None])
    ]
    if not analysis.skew.matched or not of_ranks:
        return None
    late = max(analysis.skew.ranks, key=lambda each: each.blame_ns)
    return Waited(step_ns=fmean(of_ranks), most_for=late.rank if late.blame_ns else None)
