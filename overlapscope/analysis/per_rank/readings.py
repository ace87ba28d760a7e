"""Look up what telemetry recorded of a rank over time, by the name of the reading."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.run import RankTimeline

ON_CORE: Final = "thread_cpu_ns"
"""Counter of how long the training thread ran on a core ..."""
QUEUED: Final = "thread_queue_ns"
"""... and of how long it waited for one, by the system's account."""


def reading_series(timeline: RankTimeline, reading: str) -> tuple[Ints, Floats]:
    """Return the times and values of a reading, in order of time."""
    if reading not in timeline.names:
        return np.zeros(0, np.int64), np.zeros(0)
    table = timeline.telemetry
    rows = (table.name == timeline.names.index(reading)) & (table.time_ns != NONE) & np.isfinite(table.value)
    rows = np.flatnonzero(rows)
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    return table.time_ns[rows], table.value[rows]
