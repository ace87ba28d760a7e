"""When the optimizers of a rank began and ended on its host, when its calls were launched, and which follow them."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.run import RankTimeline

LATEST: Final = int(np.iinfo(np.int64).max)


def launch_times(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return when calls were launched, or their start where that is not known; ns."""
    calls = timeline.collectives
    return np.where(calls.launch_ns[rows] == NONE, calls.start_ns[rows], calls.launch_ns[rows])


def optimizer_ns(timeline: RankTimeline, steps: Ints) -> Ints:
    """Return for each step when its optimizer began on the host, in ns; the largest int64 without an optimizer."""
    found = np.full(steps.size, LATEST)
    begun = np.sort(_optimizers(timeline)[0])
    if not begun.size or not timeline.steps.step.size:
        return found
    table = timeline.steps
    first = np.append(begun, LATEST)[np.searchsorted(begun, table.start_ns)]
    first = np.where(first < table.end_ns, first, LATEST)
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


def follow_optimizer(timeline: RankTimeline) -> Flags:
    """Return which calls were launched after the last optimizer of their step, without most of its compute between
    them: in steps whose marks begin after backward, gradients follow that. Without marks of optimizers no call does."""
    calls, steps = timeline.collectives, timeline.steps
    launch = launch_times(timeline, np.arange(calls.op.size))
    step = np.searchsorted(steps.start_ns, launch, side="right") - 1
    begun, ended = optimizer_begins(timeline), optimizer_ends(timeline)
    if not ended.size or not steps.step.size:
        return np.zeros(calls.op.size, np.bool_)
    before = np.append(NONE, ended)[np.searchsorted(ended, launch, side="right")]
    after = np.append(begun, LATEST)[np.searchsorted(begun, launch)]
    begin, end = steps.start_ns[step], steps.end_ns[step]
    follows = (step >= 0) & (launch < end) & (before >= begin) & (after >= end)
    most = 2 * compute_launched(timeline, before, launch) > compute_launched(timeline, begin, end)
    return np.asarray(follows & ~most, np.bool_)


def compute_launched(timeline: RankTimeline, begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return how long the compute lasts that was launched in each of these times on the host, in ns."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    launch = np.where(spans.launch_ns[rows] == NONE, spans.start_ns[rows], spans.launch_ns[rows])
    order = np.argsort(launch, kind="stable")
    until = np.append(0, np.cumsum((spans.end_ns - spans.start_ns)[rows[order]]))
    at = np.searchsorted(launch[order], np.stack((begin_ns, end_ns)))
    return np.asarray(until[at[1]] - until[at[0]], np.int64)


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
