"""Marks that are CUDA events, and how a device's clock runs against the host's.

Times between events are single-precision milliseconds: over a second they are exact to 60 ns, over an hour to 0.25 ms.
So each step has its own anchor, and anchors are chained.

A device's clock drifts against the host's by some millionths: in ten minutes by milliseconds. Without waiting for the
device every event bounds the difference of the clocks from both sides: it cannot have happened before it was recorded,
nor after it was first found done. `fit_offsets` draws a line through these bounds.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.capture.timestamps import epoch_offset_ns

Times = npt.NDArray[np.float64]
BLOCK_NS: Final = 30_000_000_000
"""The clocks' difference is followed in pieces of so long: NTP steers the host's clock slowly."""
MAX_DRIFT: Final = 2e-4
"""Clocks part by less than this; a larger slope comes of too few bounds."""
ANCHOR_NS: Final = 1_000_000_000
"""An anchor that is older than this is not measured from: the difference would be coarse."""
STEADY: Final = 1e-5
"""A slope is not trusted where bounds spread by more than this share of the recording."""
TIGHT: Final = 10
"""The clocks' difference is taken from the side on which so many bounds lie closest together."""


MAX_BOUNDS: Final = 8192
"""Bounds of at least so many steps are kept, of at most twice as many: a long recording is converted part by part."""


class Mark(msgspec.Struct):
    """An event, until it is read; then a time on its device's own clock."""

    chain: "_Chain"
    event: Any
    anchor: "Mark | None"
    """What it is measured from; None for the first anchor of a chain."""
    recorded_ns: int
    """The host's monotonic time at which it was recorded."""
    is_anchor: bool = False
    at_ns: int | None = None
    """Nanoseconds since the chain's first anchor, on the device's clock."""


class _Chain:
    """The anchors of one device, and what they say of its clock."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.anchor: Mark | None = None
        self.free: list[Any] = []
        """Events whose times are read: recording into one again costs less than creating and destroying one."""
        self.lower = array("q")
        """Pairs of a time on the device's clock and a lower bound of the host's time minus it: the best of each step"""
        self.upper = array("q")
        self._best: list[tuple[int, int] | None] = [None, None]

    def bound(self, at_ns: int, recorded_ns: int, found_ns: int) -> None:
        """Use an event of this time that was recorded and found done at these host times."""
        low, high = self._best
        if low is None or recorded_ns - at_ns > low[1]:
            self._best[0] = (at_ns, recorded_ns - at_ns)
        if high is None or found_ns - at_ns < high[1]:
            self._best[1] = (at_ns, found_ns - at_ns)

    def close_step(self) -> None:
        """Keep the step's best bounds."""
        for best, kept in zip(self._best, (self.lower, self.upper), strict=True):
            if best is not None:
                kept.extend(best)
                if len(kept) > 4 * MAX_BOUNDS:
                    del kept[: 2 * MAX_BOUNDS]
        self._best = [None, None]


class DeviceClock:
    """Marks of a device's streams; `device` is the model's, None for the device that is current where a step begins."""

    on_device = True

    def __init__(self, cuda: Any, device: int | None = None) -> None:
        """Anchor the device's clock to the host's; synchronizes the device, so call it outside a step."""
        self._cuda, self._device = cuda, device
        self._offset = epoch_offset_ns()
        self._chains: dict[int, _Chain] = {}
        self._unread: deque[Mark] = deque()
        self._thread = threading.get_ident()
        self._failed = False
        self._current = 0
        self._stream: Any = None
        self.captures = 0
        """How many CUDA graphs are being captured, on any thread (`compiled.GraphWatch` counts)."""
        self.anchor()
        if not self.capturing():
            with self._on(self.index):
                cuda.synchronize()
                self.anchor()
                cuda.synchronize()
        self.read(2)

    # -- taking marks ----------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """The device's index: the model's, else the one whose anchor was taken last."""
        return self._current

    def anchor(self) -> Mark | None:
        """Record and return the event that this step's events are measured from."""
        self._thread = threading.get_ident()
        self._current = int(self._cuda.current_device()) if self._device is None else self._device
        self.computes_here()
        mark = self._record(self._stream, self._chain(self.index))
        if mark is not None:
            mark.is_anchor = True
            mark.chain.anchor = mark
        return mark

    def mark(self, stream: Any = None) -> Mark | None:
        """Record an event on a stream, by default the thread's current one on the clock's device.

        Returns None while a CUDA graph is captured: captured events have no time.
        """
        if stream is None:
            stream = self._cuda.current_stream(self.index)
        return self._record(stream, self._chain(stream.device.index))

    def _record(self, stream: Any, chain: _Chain) -> Mark | None:
        if self._failed or self.capturing():
            return None
        event = chain.free.pop() if chain.free else self._cuda.Event(enable_timing=True)
        recorded_ns = time.monotonic_ns()
        try:
            event.record(stream)
        except RuntimeError:
            self._failed = True
            raise
        mark = Mark(chain, event, chain.anchor, recorded_ns)
        if chain.anchor is None or recorded_ns - chain.anchor.recorded_ns > ANCHOR_NS:
            mark.is_anchor = True
            chain.anchor = mark
        self._unread.append(mark)
        return mark

    def _chain(self, index: int) -> _Chain:
        if index not in self._chains:
            self._chains[index] = _Chain(index)
        return self._chains[index]

    @contextmanager
    def _on(self, index: int) -> Iterator[None]:
        """Make a device current where it is not: a call on another one would create a context there."""
        if self._cuda.current_device() == index:
            yield
        else:
            with self._cuda.device(index):
                yield

    def epoch_ns(self, monotonic_ns: int) -> int:
        """Add the offset between the clocks."""
        return monotonic_ns + self._offset

    def mark_compute(self) -> Mark | None:
        """Record an event on the stream that computes, whichever is current."""
        return self.mark(self._stream)

    # -- streams ---------------------------------------------------------------------------------------------------

    def computes_here(self) -> None:
        """Note that the step's computation runs on the calling thread's current stream."""
        self._stream = self._cuda.current_stream(self.index)

    def computes_on(self, stream: Any) -> bool:
        """Return whether the step's computation runs on this stream."""
        return bool(stream == self._stream)

    def blocks_compute(self, thread: int) -> bool:
        """Return whether the current stream is the compute stream; on autograd's threads it is that of forward."""
        del thread
        return self.computes_on(self._cuda.current_stream(self.index))

    def capturing(self) -> bool:
        """Return whether a CUDA graph is captured on any thread: in the global mode, a query of any breaks it."""
        if self.captures:
            return True
        with self._on(self.index):
            return bool(self._cuda.is_current_stream_capturing())

    # -- reading marks ---------------------------------------------------------------------------------------------

    def read(self, most: int) -> bool:
        """Read the times of up to `most` marks, the oldest first; return whether all are read.

        Does nothing on other threads than the training thread, during a capture, and after an error of the device,
        which is permanent: then what was read stays, and the rest is never known.
        """
        if threading.get_ident() != self._thread or self._failed or self.capturing():
            return not self._unread
        for _ in range(min(most, len(self._unread))):
            try:
                if not self._unread[0].event.query():
                    return False
                self._read(self._unread.popleft())
            except RuntimeError:
                self._failed = True
                self._unread.clear()
                break
        return not self._unread

    def _read(self, mark: Mark) -> None:
        found_ns = time.monotonic_ns()
        chain, anchor = mark.chain, mark.anchor
        if anchor is None:
            mark.at_ns = 0
        elif anchor.at_ns is not None:
            mark.at_ns = anchor.at_ns + round(anchor.event.elapsed_time(mark.event) * 1e6)
        if mark.at_ns is not None:
            chain.bound(mark.at_ns, mark.recorded_ns, found_ns)
        if mark.is_anchor:
            chain.close_step()  # its event stays as long as a mark is measured from it
        else:
            chain.free.append(mark.event)
            mark.event = None
        mark.anchor = None

    def read_until_ns(self) -> int:
        """Return the host's time at which the oldest mark that is not read was recorded; the present without one."""
        return self._unread[0].recorded_ns if self._unread else time.monotonic_ns()

    def times(self, marks: Sequence[Any]) -> list[int | None]:
        """Return each mark in nanoseconds since the epoch: device times by the fitted difference of the clocks."""
        found: list[int | None] = [None] * len(marks)
        by_chain: dict[int, list[int]] = {}
        for at, mark in enumerate(marks):
            if isinstance(mark, int):
                found[at] = mark + self._offset
            elif mark is not None and mark.at_ns is not None:
                by_chain.setdefault(mark.chain.index, []).append(at)
        for index, rows in by_chain.items():
            chain = self._chains[index]
            chain.close_step()
            at_ns = np.array([marks[row].at_ns for row in rows], np.int64)
            offsets = fit_offsets(_pairs(chain.lower), _pairs(chain.upper), at_ns.astype(np.float64))
            for row, value in zip(rows, (at_ns + offsets.astype(np.int64)).tolist(), strict=True):
                found[row] = value + self._offset
        return found


def _pairs(flat: "array[int]") -> tuple[Times, Times]:
    """Return the device's times and the bounds."""
    both = np.array(flat, np.int64).reshape(-1, 2).astype(np.float64)
    return both[:, 0], both[:, 1]


def fit_offsets(lower: tuple[Times, Times], upper: tuple[Times, Times], at_ns: Times) -> Times:
    """Return the host's clock minus the device's at the given times of the device, in nanoseconds.

    `lower` and `upper` are times of the device with bounds of that difference. Where the device idles, as after a
    synchronization, an event runs as soon as it is recorded, and lower bounds are tight; where the host runs ahead and
    asks often, upper ones are. The side whose best bounds lie closest together is followed, piece by piece; the slope
    is that of the hull of its bounds, as for clocks across a network (Moon, Skelly, Towsley, INFOCOM 1999). No event
    ends up before it was recorded.
    """
    # Mirrored, lower bounds are upper ones.
    sides = [(upper[0], upper[1], 1.0), (lower[0], -lower[1], -1.0)]
    fits = [(*_slope_and_spread(when, bound), when, bound, sign) for when, bound, sign in sides]
    slope, _, when, bound, sign = min(fits, key=lambda each: each[1])
    rest = bound - slope * when
    knots, bends = _bends(when, rest)

    def offset(at: Times) -> Times:
        found: Times = sign * (slope * at + rest.min() + np.interp(at, knots, bends))
        return found

    early = float(np.max(lower[1] - offset(lower[0]), initial=0.0))
    return offset(at_ns) + early


def _hull_slope(when: Times, bound: Times) -> float:
    """Return the slope of the lower hull of the points, where it passes the middle of their times."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(when.tolist(), bound.tolist(), strict=True)):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    middle = float(np.mean(when)) if when.size else 0.0
    for (a, low), (b, high) in pairwise(hull):
        if b >= middle and b > a:
            return float(np.clip((high - low) / (b - a), -MAX_DRIFT, MAX_DRIFT))
    return 0.0


def _turns_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])


def _slope_and_spread(when: Times, bound: Times) -> tuple[float, float]:
    """Return the slope, 0 where the bounds are too few to tell it, and how close together the best ones lie."""
    if when.size == 0:
        return 0.0, np.inf
    slope = _hull_slope(when, bound)
    rest = np.sort(bound - slope * when)
    spread = float(rest[min(TIGHT, rest.size) - 1] - rest[0])
    return (slope if spread <= STEADY * float(np.ptp(when)) else 0.0), spread


def _bends(when: Times, rest: Times) -> tuple[Times, Times]:
    """Return how far each piece of the recording lies above the lowest point, in order of time.

    What the best bounds of a piece spread by is noise: only what is more than twice that bends the line. (Where bounds
    lie at random above the line, so does one piece in 3 ** (TIGHT - 1).)
    """
    piece_ns = max(BLOCK_NS, 3 * TIGHT * float(np.ptp(when)) / when.size)
    block = (when // piece_ns).astype(np.int64)
    order = np.lexsort((rest, block))
    first = np.flatnonzero(np.r_[True, np.diff(block[order]) > 0])
    last = np.minimum(first + TIGHT, np.r_[first[1:], order.size]) - 1
    lowest, highest = rest[order[first]], rest[order[last]]
    return when[order[first]], np.maximum(lowest - rest.min() - 2 * (highest - lowest), 0.0)
