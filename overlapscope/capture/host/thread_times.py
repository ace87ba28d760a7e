"""How long the training thread ran on a core, and how long it waited for one: a CPU run's sleep told from its work."""

import os
import threading
import time
from typing import Final

from overlapscope.capture.records import StepRecord

SCHEDULING: Final = "/proc/thread-self/schedstat"
"""Time on a core, time waiting for one, number of turns, in nanoseconds; the first is behind by up to a tick."""
APART_NS: Final = 1_000_000
RAN, QUEUED = "thread_cpu_ns", "thread_queue_ns"


class ThreadTimes:
    """Adds readings of both sums to a record, each time it is told to, where the thread that trains does so.

    Both only ever rise: their difference between two moments is what the thread had of the time between.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._noted_ns = 0
        self._descriptor: int | None = None

    def note(self, record: StepRecord | None) -> None:
        """Take the readings; nothing on any other thread, or without a record."""
        if record is None or threading.get_ident() != record.thread:
            return
        if self._thread != record.thread:
            self.close()
            self._thread = record.thread
            try:
                self._descriptor = os.open(SCHEDULING, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._descriptor = None  # a system that does not tell: the reading is missing
        now = self._noted_ns = time.monotonic_ns()
        record.readings.append((RAN, now, float(time.thread_time_ns())))
        if self._descriptor is not None:
            record.readings.append((QUEUED, now, float(os.pread(self._descriptor, 64, 0).split()[1])))

    def note_at_times(self, record: StepRecord) -> None:
        """Take them unless the last ones are younger than a millisecond: a model may have thousands of parameters."""
        if time.monotonic_ns() - self._noted_ns >= APART_NS:
            self.note(record)

    def open(self) -> None:
        """Do nothing: the file is opened by the thread that it tells of."""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._thread = None
