"""Time windows: limited to a run, and divided into bins.

Bins lie on a grid shared by all windows of similar length, so that a slightly moved window has mostly the same bins,
and a repeated request is the same window. All times are integer nanoseconds relative to the run's start.
"""

from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import Ints

MIN_BINS: Final = 200
MAX_BINS: Final = 2_000
SHORTEST_NS: Final = 20
"""Shortest window; below it bins would be shorter than a nanosecond."""


class TimeWindow(msgspec.Struct, frozen=True, kw_only=True):
    """[start, end) in nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Duration of the window."""
        return self.end_ns - self.start_ns


def within(start_ns: int, end_ns: int, whole: TimeWindow) -> TimeWindow:
    """Return a window moved into `whole`, at least SHORTEST_NS long, and cut only if longer than `whole`."""
    start, end = min(start_ns, end_ns), max(start_ns, end_ns)
    length = min(max(end - start, SHORTEST_NS), max(whole.length_ns, SHORTEST_NS))
    begin = max(min(start, whole.end_ns - length), whole.start_ns)
    return TimeWindow(start_ns=begin, end_ns=begin + length)


def around(start_ns: int, end_ns: int, whole: TimeWindow, *, share: float = 0.2) -> TimeWindow:
    """Return a window with [start, end) in the middle, taking `share` of the width."""
    margin = int((end_ns - start_ns) * (1 / share - 1) / 2) + SHORTEST_NS
    return within(start_ns - margin, end_ns + margin, whole)


def bin_width(length_ns: int, pixels: int) -> int:
    """Return the width (ns) of a window's bins: the smallest sufficient one of 1 to 7 or 4 to 7 times 2^n."""
    wanted = max(-(-length_ns // min(max(pixels, MIN_BINS), MAX_BINS)), 1)
    shift = max(wanted.bit_length() - 3, 0)
    return -(-wanted // (1 << shift)) << shift


def edges(window: TimeWindow, pixels: int, cell_ns: int = 0) -> Ints:
    """Return the edges of the bins that cover a window: multiples of the bin width, from before it to after it.

    Bins of two cells or more are a whole number of cells.
    """
    width = bin_width(window.length_ns, pixels)
    if cell_ns and width >= 2 * cell_ns:
        width = -(-width // cell_ns) * cell_ns
    first = window.start_ns // width
    last = -(-window.end_ns // width)
    return np.arange(first, last + 1, dtype=np.int64) * width
