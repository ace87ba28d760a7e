"""When the optimizers of a rank began and ended on its host, and when its calls were launched."""

import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.run import RankTimeline


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


def optimizer_begins(timeline: RankTimeline) -> Ints:
    """Return when optimizers, or pieces of them, began on the host, in ns, ascending."""
    return np.sort(_optimizers(timeline)[0])


def _optimizers(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return when ranges of optimizers, and their compute, began and ended on the host, in ns: with a device compute
    was launched at one moment."""
    named = np.array([OPTIMIZER_MARK.match(name) is not None for name in timeline.names], np.bool_)
    if not named.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    notes, spans = timeline.annotations, timeline.spans
    own = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
    own = own[named[spans.name[own]]]
    begun = np.where(spans.launch_ns[own] == NONE, spans.start_ns[own], spans.launch_ns[own])
    ended = begun if timeline.has_device else spans.end_ns[own]
    ranges = named[notes.name]
    return np.concatenate((notes.start_ns[ranges], begun)), np.concatenate((notes.end_ns[ranges], ended))
