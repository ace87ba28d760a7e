"""Which calls of a rank were launched before its recording began: they are of the step before."""

import numpy as np

from overlapscope.timeline.columns import NONE, Flags
from overlapscope.timeline.rows import MOST, factorize_rows, smallest_by
from overlapscope.timeline.run import RankTimeline


def in_flight_at_start(timeline: RankTimeline) -> Flags:
    """Return which calls begin without a recorded launch before all calls of their group and recording that have one;
    none where the group has no recorded launch."""
    calls = timeline.collectives
    kind, at = factorize_rows([calls.recording, calls.group])
    timed, launched = calls.start_ns != NONE, calls.launch_ns != NONE
    first = smallest_by(kind[timed & launched], calls.start_ns[timed & launched], at.size)[kind]
    return np.asarray(timed & ~launched & (first != MOST) & (calls.start_ns < first), np.bool_)
