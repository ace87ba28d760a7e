"""Separate what the training thread computes outside the phases from its idling, by its time on a core or for one."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.capture.host.thread_times import QUEUED, RAN
from overlapscope.capture.records import StepRecord
from overlapscope.timeline.intervals import Intervals, complement, union

OTHER: Final = "other"
"""Name of the phase of what is neither forward, backward nor optimizer."""
SHORT_NS: Final = 1_000
IDLE, BUSY = 0.1, 0.9
"""Below and above these shares of a core a stretch counts as idle and as computed; between them it is not determined"""


def other_on_host(
    record: StepRecord, begin_ns: int, end_ns: int, known: Intervals, offset_ns: int
) -> tuple[Intervals, Intervals]:
    """Return where the training thread computed outside `known`, and where only its CPU time says that it partly did.

    The step lasted from `begin_ns` to `end_ns`; `known` is when the thread was in a phase, a call or a wait. All times
    are nanoseconds since the epoch; `offset_ns` is the epoch minus the monotonic clock.
    """
    gaps = complement(known, begin_ns, end_ns)
    long = gaps.ends - gaps.starts >= SHORT_NS
    starts, ends = gaps.starts[long], gaps.ends[long]
    # A thread that waits for a core computes: it does so in the phases, too.
    shares = sum(
        _shares([(at + offset_ns, value) for name, at, value in record.readings if name == counter], starts, ends)
        for counter in (RAN, QUEUED)
    )
    ran, partly = shares >= 0.5, (shares > IDLE) & (shares < BUSY)
    return union((starts[ran], ends[ran])), union((starts[partly], ends[partly]))


def _shares(
    readings: Sequence[tuple[int, float]], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return how much of each stretch a counter rose by, of 1; 0 where nothing was read."""
    if len(readings) < 2:
        return np.zeros(starts.size)
    base = readings[0][0]
    at = np.array([time_ns - base for time_ns, _ in readings], np.float64)
    ran = np.array([value for _, value in readings], np.float64)
    shares: npt.NDArray[np.float64] = (np.interp(ends - base, at, ran) - np.interp(starts - base, at, ran)) / (
        ends - starts
    )
    return shares
