"""Windows of time: what an address asks for, moved and zoomed within a run, and cut into bins.

Bins lie on a grid that all windows of about the same length share, so that a window moved a little has mostly the same
bins, and one asked for again is the same window. All times are integer nanoseconds, here counted from the run's begin.
"""

from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import Ints

MIN_BINS: Final = 200
MAX_BINS: Final = 2_000
SHORTEST_NS: Final = 20
"""Nobody looks closer; below it bins would be shorter than a nanosecond."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """[start, end) in nanoseconds."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long."""
        return self.end_ns - self.start_ns


def within(start_ns: int, end_ns: int, whole: Window) -> Window:
    """Return the window that lies in the whole, no shorter than can be looked at: moved into it, cut only if longer."""
    start, end = min(start_ns, end_ns), max(start_ns, end_ns)
    length = min(max(end - start, SHORTEST_NS), max(whole.length_ns, SHORTEST_NS))
    begin = max(min(start, whole.end_ns - length), whole.start_ns)
    return Window(start_ns=begin, end_ns=begin + length)


def around(start_ns: int, end_ns: int, whole: Window, *, share: float = 0.2) -> Window:
    """Return a window in which something from start to end takes that share of the width, in the middle."""
    margin = int((end_ns - start_ns) * (1 / share - 1) / 2) + SHORTEST_NS
    return within(start_ns - margin, end_ns + margin, whole)


def bin_width(length_ns: int, pixels: int) -> int:
    """Give the width of the bins of a window: the least of 4 to 7 times a power of two (or of 1 to 7) that suffices."""
    wanted = max(-(-length_ns // min(max(pixels, MIN_BINS), MAX_BINS)), 1)
    shift = max(wanted.bit_length() - 3, 0)
    return -(-wanted // (1 << shift)) << shift


def edges(window: Window, pixels: int, cell_ns: int = 0) -> Ints:
    """Return the edges of the bins that cover a window: multiples of the bins' width, from before it to after it.

    Bins of two cells and more are whole cells.
    """
    width = bin_width(window.length_ns, pixels)
    if cell_ns and width >= 2 * cell_ns:
        width = -(-width // cell_ns) * cell_ns
    first = window.start_ns // width
    last = -(-window.end_ns // width)
    return np.arange(first, last + 1, dtype=np.int64) * width
