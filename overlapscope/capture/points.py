"""Points in time: of the host's monotonic clock, or of a CUDA stream by events that are read later.

A mark is taken inside a step and must cost next to nothing; it is turned into nanoseconds since the epoch after the
step, from the training thread, without ever waiting for the device.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol


class Points(Protocol):
    """A source of marks."""

    on_device: bool

    def mark(self) -> Any:
        """Take a mark on the calling thread (and its current stream); None where none can be taken."""

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Turn the host's monotonic time into nanoseconds since the epoch."""

    def anchor(self) -> None:
        """Take a mark that following ones are measured from; called at the beginning of each step."""

    def done(self, mark: Any) -> bool:
        """Whether the mark's time can be read without waiting."""

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Give nanoseconds since the epoch; None for a mark that was not taken or is not done."""


def epoch_offset_ns() -> int:
    """Give what turns `time.monotonic_ns()` into nanoseconds since the epoch; the tightest of a few readings."""
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
        """Give the monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset to the epoch."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Do nothing: a clock needs no anchor."""

    def done(self, mark: Any) -> bool:
        """Say yes."""
        return True

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Add the offset to the epoch."""
        return [None if mark is None else mark + self._offset for mark in marks]


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
        self._anchors: list[tuple[Any, int | None]] = [(first, host + self._offset)]

    def mark(self) -> Any:
        """Record an event and its anchor's number; None while a CUDA graph is captured: there is no time in it."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event, len(self._anchors) - 1

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset to the epoch."""
        return monotonic_ns + self._offset

    def anchor(self) -> None:
        """Record an event that those of this step are measured from."""
        if not self._cuda.is_current_stream_capturing():
            event = self._cuda.Event(enable_timing=True)
            event.record()
            self._anchors.append((event, None))

    def done(self, mark: Any) -> bool:
        """Ask the event."""
        return mark is None or bool(mark[0].query())

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Measure each event from its step's anchor."""
        out: list[int | None] = []
        for mark in marks:
            if mark is None or not mark[0].query():
                out.append(None)
                continue
            event, row = mark
            anchor, start_ns = self._anchors[row][0], self._anchor_ns(row)
            out.append(None if start_ns is None else start_ns + round(anchor.elapsed_time(event) * 1e6))
        return out

    def _anchor_ns(self, row: int) -> int | None:
        """Give an anchor's time, measuring along the chain from the last one known."""
        known = row
        while self._anchors[known][1] is None:
            known -= 1
        for at in range(known + 1, row + 1):
            before, start_ns = self._anchors[at - 1]
            event = self._anchors[at][0]
            if start_ns is None or not event.query():
                return None
            self._anchors[at] = (event, start_ns + round(before.elapsed_time(event) * 1e6))
        return self._anchors[row][1]
