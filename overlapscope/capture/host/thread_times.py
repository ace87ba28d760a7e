"""Record how long the training thread ran on a core and how long it waited for one: separates sleep from CPU work."""

import os
import threading
import time
from typing import Final

from overlapscope.capture.records import StepRecord

SCHEDULING: Final = "/proc/thread-self/schedstat"
"""Time on a core (ns), time waiting for one (ns), number of time slices; the first lags by up to a scheduler tick."""
LEAST_INTERVAL_NS: Final = 1_000_000
RAN, QUEUED = "thread_cpu_ns", "thread_queue_ns"


class ThreadTimes:
    """Adds readings of both counters to a step record at each call of `note` on the training thread.

    Both counters only increase: the difference of two readings is how much of the time between them the thread ran or
    waited for a core.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._noted_ns = 0
        self._descriptor: int | None = None

    def note(self, record: StepRecord | None) -> None:
        """Add the readings; do nothing on any other thread, or without a record."""
        if record is None or threading.get_ident() != record.thread:
            return
        if self._thread != record.thread:
            self.close()
            self._thread = record.thread
            try:
                self._descriptor = os.open(SCHEDULING, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._descriptor = None  # the system does not report it: the reading is missing
        now = self._noted_ns = time.monotonic_ns()
        record.readings.append((RAN, now, float(time.thread_time_ns())))
        if self._descriptor is not None:
            record.readings.append((QUEUED, now, float(os.pread(self._descriptor, 64, 0).split()[1])))

    def note_at_times(self, record: StepRecord) -> None:
        """Add them unless the last ones are younger than a millisecond: a model may have thousands of parameters."""
        if time.monotonic_ns() - self._noted_ns >= LEAST_INTERVAL_NS:
            self.note(record)

    def open(self) -> None:
        """Do nothing: the training thread itself opens the file, which is about the thread that opens it."""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._thread = None
