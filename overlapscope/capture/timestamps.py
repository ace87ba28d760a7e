"""Points in time: of the host's monotonic clock, or of a CUDA stream by events that are read later.

A mark is taken inside a step and must cost next to nothing; it is turned into nanoseconds since the epoch after the
step, from the training thread, without ever waiting for the device.
"""

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec


class Points(Protocol):
    """A source of marks."""

    on_device: bool

    def mark(self) -> Any:
        """Take a mark on the calling thread (and its current stream); None where none can be taken."""

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Turn the host's monotonic time into nanoseconds since the epoch."""

    def anchor(self) -> None:
        """Take a mark that following ones are measured from; called at the beginning of each step."""

    def computes_on(self, stream: Any) -> bool:
        """Return whether the step's computation runs on this stream."""

    def holds_up(self, thread: int) -> bool:
        """Return whether what waits on the calling thread (and its current stream) holds up the step's computation.

        `thread` is the one that trains.
        """

    def done(self, mark: Any) -> bool:
        """Return whether the mark's time can be read without waiting."""

    def resolve(self, mark: Any) -> Any:
        """Return a mark that holds nothing of the device any more, where its time can be read without waiting."""

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Return nanoseconds since the epoch; None for a mark that was not taken or is not done."""


def epoch_offset_ns() -> int:
    """Return what turns `time.monotonic_ns()` into nanoseconds since the epoch; the tightest of a few readings."""
    best = None
    for _ in range(5):
        before = time.monotonic_ns()
        now = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, now - (before + after) // 2)
    assert best is not None
    return best[1]


class HostPoints:
    """Marks of the host's monotonic clock."""

    on_device = False

    def __init__(self) -> None:
        self._offset = epoch_offset_ns()

    def mark(self) -> int:
        """Return the monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset to the epoch."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Do nothing: a clock needs no anchor."""

    def computes_on(self, stream: Any) -> bool:
        """Say no: the host has threads."""
        return False

    def holds_up(self, thread: int) -> bool:
        """Compare the threads."""
        return threading.get_ident() == thread

    def done(self, mark: Any) -> bool:
        """Say yes."""
        return True

    def resolve(self, mark: Any) -> Any:
        """Return the mark: a clock's holds nothing."""
        return mark

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Add the offset to the epoch."""
        return [None if mark is None else mark + self._offset for mark in marks]


class _Anchor(msgspec.Struct):
    """An event at the beginning of a step; once its time is known, the ones before it are no longer held."""

    event: Any
    start_ns: int | None
    previous: "_Anchor | None"


class DevicePoints:
    """CUDA events on the current stream.

    Event distances are single-precision milliseconds: over a second they are exact to 60 ns, over an hour to 0.25 ms.
    So each step has an anchor of its own, and anchors are chained.
    """

    on_device = True

    def __init__(self, cuda: Any) -> None:
        """Anchor the device's clock to the host's; synchronises, so call it outside a step."""
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
        """Record an event and keep its anchor; None while a CUDA graph is captured: there is no time in it."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event, self._anchor

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset to the epoch."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Record an event that those of this step are measured from; the current stream is the one that computes."""
        self._stream = self._cuda.current_stream()
        if not self._cuda.is_current_stream_capturing():
            event = self._cuda.Event(enable_timing=True)
            event.record()
            self._anchor = _Anchor(event, None, self._anchor)

    def computes_on(self, stream: Any) -> bool:
        """Compare with the stream that was current when the step began."""
        return bool(stream == self._stream)

    def holds_up(self, thread: int) -> bool:
        """Compare the current stream, on whichever thread: the autograd engine's have the one of forward."""
        return self.computes_on(self._cuda.current_stream())

    def done(self, mark: Any) -> bool:
        """Ask the event."""
        return mark is None or isinstance(mark, int) or bool(mark[0].query())

    def resolve(self, mark: Any) -> Any:
        """Turn a mark that is done into its time, so that its event can be used again; give any other as it is.

        Asks events: to be called from the training thread. Does nothing while a CUDA graph is captured: a query would
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
            return None  # between two devices there is no distance
        start_ns = _start_ns(anchor)
        return None if start_ns is None else start_ns + round(anchor.event.elapsed_time(event) * 1e6)


def _start_ns(anchor: _Anchor) -> int | None:
    """Return an anchor's time, measuring along the chain from the last one known."""
    chain = [anchor]
    while chain[-1].start_ns is None and chain[-1].previous is not None:
        chain.append(chain[-1].previous)
    for before, after in pairwise(reversed(chain)):
        if before.start_ns is None or before.event.device != after.event.device or not after.event.query():
            return None
        after.start_ns = before.start_ns + round(before.event.elapsed_time(after.event) * 1e6)
        after.previous = None
    return anchor.start_ns
