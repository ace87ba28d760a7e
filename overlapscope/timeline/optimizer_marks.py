"""Find the marks of optimizer steps among a rank's annotations."""

import re
from typing import Final

import numpy as np

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.names import rows_named
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
