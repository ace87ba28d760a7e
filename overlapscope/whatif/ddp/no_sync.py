"""Find steps that reduce no gradients (accumulation under no_sync), and all-reduces without gradients (local SGD)."""

import numpy as np

from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import NONE, OPERATION, Ints
from overlapscope.timeline.lazy_host_spans import select_host_spans
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

    Those inside of operations are of an optimizer that gets its gradients in parts, as of DTensor.
    """
    rows = _all_reduces(timeline)
    launched = launch_times(timeline, rows)
    after = launched >= optimizer_ns(timeline, timeline.collectives.step[rows])
    return bool(rows.size) and bool(after.all()) and not _inside_operations(timeline, launched)


def _inside_operations(timeline: RankTimeline, time_ns: Ints) -> bool:
    """Return whether a thread was in an operation on tensors at any of these times; False where that is not known."""
    if not timeline.has_host_events or timeline.host_is_lost:
        return False
    computes = np.array([name.startswith("aten::") for name in timeline.names], np.bool_)
    try:
        around = select_host_spans(timeline.host, (OPERATION,), computes, [(at, at) for at in time_ns.tolist()])
    except HostEventsError:
        return False
    return bool(around.start_ns.size)


def _all_reduces(timeline: RankTimeline) -> Ints:
    calls = timeline.collectives
    reduces = np.array([name == "all_reduce" for name in timeline.names], np.bool_)
    return np.flatnonzero((calls.op >= 0) & reduces[calls.op] & (calls.step != NONE) & (calls.start_ns != NONE))
