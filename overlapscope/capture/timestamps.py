"""Take marks in time: of the host's monotonic clock, or of a CUDA stream by events that are read later.

A mark is taken inside a step and must cost next to nothing. It is converted to nanoseconds since the epoch after the
step, on the training thread, without ever waiting for the device.
"""

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec


class Clock(Protocol):
    """A source of marks: the host's clock or the device's."""

    on_device: bool

    def mark(self) -> Any:
        """Return a mark of now on the calling thread (and its current stream); None where none can be taken."""

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Convert the host's monotonic time to nanoseconds since the epoch."""

    def anchor(self) -> None:
        """Take the mark that the following ones are measured from; called at the beginning of each step."""

    def computes_on(self, stream: Any) -> bool:
        """Return whether the step's computation runs on this stream."""

    def blocks_compute(self, thread: int) -> bool:
        """Return whether a wait on the calling thread (and its current stream) blocks the step's computation.

        `thread` is the training thread.
        """

    def done(self, mark: Any) -> bool:
        """Return whether the mark's time can be read without waiting."""

    def resolve(self, mark: Any) -> Any:
        """Return the mark without its device event where its time can be read without waiting, else unchanged."""

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Return each mark in nanoseconds since the epoch; None for a mark that was not taken or is not done."""


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

    def mark(self) -> int:
        """Return the monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset between the clocks."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Do nothing: the host's clock needs no anchor."""

    def computes_on(self, stream: Any) -> bool:
        """Return False: the host has no streams."""
        return False

    def blocks_compute(self, thread: int) -> bool:
        """Return whether the calling thread is the training thread."""
        return threading.get_ident() == thread

    def done(self, mark: Any) -> bool:
        """Return True: a host time can always be read."""
        return True

    def resolve(self, mark: Any) -> Any:
        """Return the mark itself: it has no device event."""
        return mark

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Add the offset between the clocks."""
        return [None if mark is None else mark + self._offset for mark in marks]


class _Anchor(msgspec.Struct):
    """An event at the beginning of a step; once its time is known, the anchors before it are released."""

    event: Any
    start_ns: int | None
    previous: "_Anchor | None"


class DeviceClock:
    """Marks that are CUDA events on the current stream.

    Times between events are single-precision milliseconds: over a second they are exact to 60 ns, over an hour to
    0.25 ms. So each step has its own anchor, and anchors are chained.
    """

    on_device = True

    def __init__(self, cuda: Any) -> None:
        """Anchor the device's clock to the host's; synchronizes the device, so call it outside a step."""
        self._cuda = cuda
        self._offset = epoch_offset_ns()
        cuda.synchronize()
        first = cuda.Event(enable_timing=True)
        first.record()
        host = time.monotonic_ns()
        cuda.synchronize()
        self._anchor = _Anchor(first, host + self._offset, None)
        self._stream = cuda.current_stream()

    def mark(self) -> Any:
        """Record an event and keep its anchor; None while a CUDA graph is captured: captured events have no time."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event, self._anchor

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset between the clocks."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Record the event that this step's events are measured from; the current stream is the compute stream."""
        self._stream = self._cuda.current_stream()
        if not self._cuda.is_current_stream_capturing():
            event = self._cuda.Event(enable_timing=True)
            event.record()
            self._anchor = _Anchor(event, None, self._anchor)

    def computes_on(self, stream: Any) -> bool:
        """Return whether this stream was the current one when the step began."""
        return bool(stream == self._stream)

    def blocks_compute(self, thread: int) -> bool:
        """Return whether the current stream is the compute stream; on autograd's threads it is that of forward."""
        return self.computes_on(self._cuda.current_stream())

    def done(self, mark: Any) -> bool:
        """Return whether the event has completed."""
        return mark is None or isinstance(mark, int) or bool(mark[0].query())

    def resolve(self, mark: Any) -> Any:
        """Return the time of a mark that is done, so that its event can be used again; return any other mark unchanged.

        Queries events, so call it on the training thread. Does nothing while a CUDA graph is captured: a query would
        break the capture.
        """
        if mark is None or isinstance(mark, int) or self._cuda.is_current_stream_capturing():
            return mark
        time_ns = self._time_ns(mark)
        return mark if time_ns is None else time_ns

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Measure each event from its step's anchor."""
        return [mark if mark is None or isinstance(mark, int) else self._time_ns(mark) for mark in marks]

    def _time_ns(self, mark: Any) -> int | None:
        event, anchor = mark
        if event.device != anchor.event.device or not event.query():
            return None  # events of two devices cannot be compared
        start_ns = _start_ns(anchor)
        return None if start_ns is None else start_ns + round(anchor.event.elapsed_time(event) * 1e6)


def _start_ns(anchor: _Anchor) -> int | None:
    """Return an anchor's time, measured along the chain from the last known anchor."""
    chain = [anchor]
    while chain[-1].start_ns is None and chain[-1].previous is not None:
        chain.append(chain[-1].previous)
    for before, after in pairwise(reversed(chain)):
        if before.start_ns is None or before.event.device != after.event.device or not after.event.query():
            return None
        after.start_ns = before.start_ns + round(before.event.elapsed_time(after.event) * 1e6)
        after.previous = None
    return anchor.start_ns
