"""Find steps that reduce no gradients (accumulation under no_sync), and all-reduces without gradients (local SGD)."""

import numpy as np

from overlapscope.analysis.per_rank.optimizers import inside_optimizer, launch_times, optimizer_ns
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import RankTimeline


def unsynced_steps(timeline: RankTimeline) -> set[int]:
    """Return the complete steps with gradients that launch no all-reduce before their optimizer."""
    rows = _all_reduces(timeline)
    calls = timeline.collectives
    reducing = calls.step[rows[launch_times(timeline, rows) < optimizer_ns(timeline, calls.step[rows])]]
    whole = {each.step for each in step_windows(timeline) if each.complete}
    return (whole & set(timeline.gradients.step.tolist())) - set(reducing.tolist())


def averages_parameters(timeline: RankTimeline) -> bool:
    """Return whether there are all-reduces and all run after the optimizer of their step: local SGD.

    Those of the optimizer itself are of gradients that it gets in parts, as of DTensor.
    """
    rows = _all_reduces(timeline)
    launched = launch_times(timeline, rows)
    after = launched >= optimizer_ns(timeline, timeline.collectives.step[rows])
    return bool(rows.size) and bool(after.all()) and not inside_optimizer(timeline, launched).any()


def _all_reduces(timeline: RankTimeline) -> Ints:
    calls = timeline.collectives
    reduces = np.array([name == "all_reduce" for name in timeline.names], np.bool_)
    return np.flatnonzero((calls.op >= 0) & reduces[calls.op] & (calls.step != NONE) & (calls.start_ns != NONE))
