"""Record how long the training thread ran on a core and how long it waited for one: separates sleep from CPU work.

Also how long all threads of the process ran; and wait for the other ones.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from overlapscope.capture.records import StepRecord

SCHEDULING: Final = "/proc/thread-self/schedstat"
"""Time on a core (ns), time waiting for one (ns), number of time slices; the first lags by up to a scheduler tick."""
THREADS: Final = Path("/proc/self/task")
LEAST_INTERVAL_NS: Final = 1_000_000
RAN, QUEUED, PROCESS_RAN = "thread_cpu_ns", "thread_queue_ns", "process_cpu_ns"


class ThreadTimes:
    """Adds readings of both counters to a step record at each call of `note` on the training thread.

    All counters only increase: the difference of two readings is how much of the time between them the thread ran or
    waited for a core, or for how long threads of the process ran.
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

    def note_border(self, record: StepRecord) -> None:
        """Add them where a step begins or ends, and how long all threads of the process ran."""
        self.note(record)
        record.readings.append((PROCESS_RAN, time.monotonic_ns(), float(time.process_time_ns())))

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


def let_other_threads_rest(seconds: float) -> None:
    """Return once no other thread of this process runs or is ready to, seen twice, or after `seconds`.

    A thread of gloo completes the future that the training thread waits for before it ends the range of the call: on
    busy cores that thread may not be on one by the time the step ends. Without /proc this waits for a moment only.
    """
    end = time.monotonic() + seconds
    rests = 0
    while rests < 2 and time.monotonic() < end:
        time.sleep(0.0005)  # also hands over the interpreter's lock
        rests = 0 if _others_run() else rests + 1


def _others_run() -> bool:
    own = threading.get_native_id()
    for task in THREADS.glob("[0-9]*/stat"):
        with suppress(OSError):  # a thread that ended meanwhile
            # pid (name) state ...: the name may hold anything.
            if task.read_bytes().rpartition(b")")[2].split()[0] == b"R" and int(task.parent.name) != own:
                return True
    return False
