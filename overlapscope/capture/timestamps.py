"""Take marks in time: of the host's monotonic clock, or of a CUDA stream (`device_clock`), by events read later.

A mark is taken inside a step and must cost next to nothing. It is converted to nanoseconds since the epoch after the
step, on the training thread, without ever waiting for the device.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol


class Clock(Protocol):
    """A source of marks: the host's clock or the device's. A mark that is an int is a time of the host's clock."""

    on_device: bool

    def mark(self, stream: Any = None) -> Any:
        """Return a mark of now on the calling thread (and its current stream); None where none can be taken."""

    def mark_compute(self) -> Any:
        """Return a mark of the stream that computes, whichever is current."""

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Convert the host's monotonic time to nanoseconds since the epoch."""

    def anchor(self) -> Any:
        """Take and return the mark that the following ones are measured from; called where each step begins."""

    def computes_here(self) -> None:
        """Note that the step's computation runs on the calling thread's current stream."""

    def computes_on(self, stream: Any) -> bool:
        """Return whether the step's computation runs on this stream."""

    def blocks_compute(self, thread: int) -> bool:
        """Return whether a wait on the calling thread (and its current stream) blocks the step's computation.

        `thread` is the training thread.
        """

    def capturing(self) -> bool:
        """Return whether a CUDA graph is being captured: then nothing of the device can be asked."""

    def read(self, most: int) -> bool:
        """Read the times of up to `most` marks, the oldest first, without waiting; return whether all are read."""

    def read_until_ns(self) -> int:
        """Return the host's monotonic time before which all marks are read."""

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Return each mark in nanoseconds since the epoch; None for a mark that was not taken or not read."""


def epoch_offset_ns() -> int:
    """Return epoch minus `time.monotonic_ns()`, in nanoseconds: from the fastest of five readings of both clocks."""
    best = None
    for _ in range(5):
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, now - (before + after) // 2)
    assert best is not None
    return best[1]


class HostClock:
    """Marks of the host's monotonic clock."""

    on_device = False

    def __init__(self) -> None:
        self._offset = epoch_offset_ns()

    def mark(self, stream: Any = None) -> int:
        """Return the monotonic time in nanoseconds."""
        del stream
        return time.monotonic_ns()

    def mark_compute(self) -> int:
        """Return a mark: the host has no streams."""
        return self.mark()

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset between the clocks."""
        return monotonic_ns + self._offset

    def anchor(self) -> int:
        """Return a mark: the host's clock needs no anchor."""
        return self.mark()

    def computes_here(self) -> None:
        """Do nothing: the host has no streams."""

    def computes_on(self, stream: Any) -> bool:
        """Return False: the host has no streams."""
        del stream
        return False

    def blocks_compute(self, thread: int) -> bool:
        """Return whether the calling thread is the training thread."""
        return threading.get_ident() == thread

    def capturing(self) -> bool:
        """Return False: there is no device."""
        return False

    def read(self, most: int) -> bool:
        """Return True: a host time is known at once."""
        del most
        return True

    def read_until_ns(self) -> int:
        """Return the present: a host time is known at once."""
        return time.monotonic_ns()

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Add the offset between the clocks."""
        return [None if mark is None else mark + self._offset for mark in marks]
