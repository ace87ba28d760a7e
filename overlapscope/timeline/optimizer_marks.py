"""Find the marks of optimizer steps among a rank's annotations."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import smallest_by
from overlapscope.timeline.run import RankTimeline

OPTIMIZER_MARK: Final = re.compile(r"^(Optimizer\.step#|optimizer$|overlapscope\.optimizer)")
"""torch's annotation around every optimizer step, and OverlapScope's own mark of the phase."""


def optimizer_marks(timeline: RankTimeline) -> Ints:
    """Return the rows of the annotations that mark an optimizer, by begin, without marks inside others: a range of the
    user around torch's own is one."""
    notes = timeline.annotations
    rows = np.flatnonzero(rows_named(notes.name, timeline.names, OPTIMIZER_MARK.match))
    rows = rows[np.lexsort((-notes.end_ns[rows], notes.start_ns[rows]))]
    ends = notes.end_ns[rows]
    outer = np.ones(rows.size, np.bool_)
    outer[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    return rows[outer]


class OptimizersOnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The compute that optimizers launch inside their marks; one row each, by the begin of the mark."""

    mark: Ints
    """Which of the rows that `optimizer_marks` returns."""
    start_ns: Ints
    """When the first of it begins on the device."""
    kernels: Ints
    busy_ns: Ints
    """How long its spans last in sum."""


def optimizers_on_device(timeline: RankTimeline) -> OptimizersOnDevice:
    """Return the optimizers of a rank that launched compute in their marks; none without a device."""
    spans, notes = timeline.spans, timeline.annotations
    marks = optimizer_marks(timeline)
    if not timeline.has_device or not marks.size:
        return OptimizersOnDevice(**dict.fromkeys(("mark", "start_ns", "kernels", "busy_ns"), np.empty(0, np.int64)))
    of = np.searchsorted(notes.start_ns[marks], spans.launch_ns, side="right") - 1
    launched = np.flatnonzero((spans.kind == COMPUTE) & (of >= 0) & (spans.launch_ns < notes.end_ns[marks[of]]))
    which, place = np.unique(of[launched], return_inverse=True)
    busy_ns = np.zeros(which.size, np.int64)
    np.add.at(busy_ns, place, (spans.end_ns - spans.start_ns)[launched])
    return OptimizersOnDevice(
        mark=which,
        start_ns=smallest_by(place, spans.start_ns[launched], which.size),
        kernels=np.bincount(place, minlength=which.size),
        busy_ns=busy_ns,
    )
