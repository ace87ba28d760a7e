"""Find steps that reduce no gradients (accumulation under no_sync), and all-reduces without gradients (local SGD)."""

import numpy as np

from overlapscope.analysis.per_rank.following_compute import OPTIMIZER
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.run import RankTimeline


def unsynced_steps(timeline: RankTimeline) -> set[int]:
    """Return the complete steps with gradients that launch no all-reduce before their optimizer."""
    rows = _all_reduces(timeline)
    calls = timeline.collectives
    reducing = calls.step[rows[launch_times(timeline, rows) < optimizer_ns(timeline, calls.step[rows])]]
    whole = {each.step for each in step_windows(timeline) if each.complete}
    return (whole & set(timeline.gradients.step.tolist())) - set(reducing.tolist())


def averages_parameters(timeline: RankTimeline) -> bool:
    """Return whether there are all-reduces and all run after the optimizer of their step: local SGD."""
    rows = _all_reduces(timeline)
    after = launch_times(timeline, rows) >= optimizer_ns(timeline, timeline.collectives.step[rows])
    return bool(rows.size) and bool(after.all())


def launch_times(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return when calls were launched, or their start where that is not known; ns."""
    calls = timeline.collectives
    return np.where(calls.launch_ns[rows] == NONE, calls.start_ns[rows], calls.launch_ns[rows])


def optimizer_ns(timeline: RankTimeline, steps: Ints) -> Ints:
    """Return for each step when its optimizer began on the host, in ns; the largest int64 without an optimizer."""
    never = np.iinfo(np.int64).max
    found = np.full(steps.size, never)
    begun = np.sort(_optimizers(timeline)[0])
    if not begun.size or not timeline.steps.step.size:
        return found
    table = timeline.steps
    first = np.append(begun, never)[np.searchsorted(begun, table.start_ns)]
    first = np.where(first < table.end_ns, first, never)
    order = np.argsort(table.step, kind="stable")
    place = np.minimum(np.searchsorted(table.step[order], steps), order.size - 1)
    here = table.step[order[place]] == steps
    found[here] = first[order[place[here]]]
    return found


def optimizer_ends(timeline: RankTimeline) -> Ints:
    """Return when optimizers, or pieces of them, ended on the host, in ns, ascending."""
    return np.sort(_optimizers(timeline)[1])


def _optimizers(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return when ranges of optimizers, and their compute, began and ended on the host, in ns: with a device compute
    was launched at one moment."""
    named = np.array([OPTIMIZER.match(name) is not None for name in timeline.names], np.bool_)
    if not named.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    notes, spans = timeline.annotations, timeline.spans
    own = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
    own = own[named[spans.name[own]]]
    begun = np.where(spans.launch_ns[own] == NONE, spans.start_ns[own], spans.launch_ns[own])
    ended = begun if timeline.has_device else spans.end_ns[own]
    ranges = named[notes.name]
    return np.concatenate((notes.start_ns[ranges], begun)), np.concatenate((notes.end_ns[ranges], ended))


def _all_reduces(timeline: RankTimeline) -> Ints:
    calls = timeline.collectives
    reduces = np.array([name == "all_reduce" for name in timeline.names], np.bool_)
    return np.flatnonzero((calls.op >= 0) & reduces[calls.op] & (calls.step != NONE) & (calls.start_ns != NONE))
