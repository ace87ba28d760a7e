"""What capture read beside the steps: series of a reading, and the pauses that one tells of."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import RankTimeline

ON_CORE: Final = "thread_cpu_ns"
"""How long the training thread had run on a core ..."""
QUEUED: Final = "thread_queue_ns"
"""... and waited for one, by the system's account."""
THROTTLED_US: Final = "cpu_throttled_us"
"""How long the process's control group was stopped for having used up its share of the CPU."""
COLLECTOR: Final = "gc_pause_ns"
"""Read at the end of each garbage collection of the interpreter, with its length."""
LONGEST_NS: Final = 1e15
"""Pauses longer than some days are damaged data, as are those of less than nothing."""


def reading_series(timeline: RankTimeline, reading: str) -> tuple[Ints, Floats]:
    """Return the times and values of a reading, in order of time."""
    if reading not in timeline.names:
        return np.zeros(0, np.int64), np.zeros(0)
    table = timeline.telemetry
    rows = (table.name == timeline.names.index(reading)) & (table.time_ns != NONE) & np.isfinite(table.value)
    rows = np.flatnonzero(rows)
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    return table.time_ns[rows], table.value[rows]


def recorded_pauses(timeline: RankTimeline, reading: str) -> Intervals:
    """Return the intervals of a pause reading, which telemetry records at the end of each pause, with its length."""
    ends, value = reading_series(timeline, reading)
    whole = (value > 0) & (value < LONGEST_NS)
    return union((ends[whole] - np.rint(value[whole]).astype(np.int64), ends[whole]))


def computes_on_one_thread(timeline: RankTimeline) -> bool:
    """Return whether a rank is known to run its operations on one thread (`OMP_NUM_THREADS=1`)."""
    settings = timeline.recorded.get("settings")
    environment = settings.get("environment") if isinstance(settings, Mapping) else None
    return isinstance(environment, Mapping) and environment.get("OMP_NUM_THREADS") == "1"
