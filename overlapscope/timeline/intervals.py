"""Exact set operations on time, as sorted disjoint int64 intervals.

An `Intervals` value is a pair of equally long arrays, starts and ends: half-open, sorted, disjoint and
not touching, none empty. Every function here takes and returns such values; `union` makes one from any arrays.
All arithmetic is on integer nanoseconds, so identities such as
``length(a) + length(b) == length(union(a, b)) + length(intersection(a, b))`` hold exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.rows import ascending

Int64s = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Sorted, disjoint, non-empty, non-touching half-open intervals."""

    starts: Int64s
    ends: Int64s


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
_FIRST, _LAST = np.array([[np.iinfo(np.int64).min], [np.iinfo(np.int64).max]])
"""Bounds of all times."""


def union(*parts: tuple[Int64s, Int64s]) -> Intervals:
    """Return the set covered by any interval of any part.

    Each part is a pair (starts, ends) in any order, overlapping or not; empty and reversed intervals
    (end <= start) cover nothing.
    """
    parts = tuple(part for part in parts if len(part[0]))
    if not parts:
        return EMPTY
    starts, ends = _joined([part[0] for part in parts]), _joined([part[1] for part in parts])
    covering = ends > starts
    if not covering.all():
        starts, ends = starts[covering], ends[covering]
    if starts.size == 0:
        return EMPTY
    starts, ends = ascending(starts), ascending(ends)
    # As many have ended as had begun, and the next one begins strictly later: only there is nothing covered.
    gaps = np.flatnonzero(starts[1:] > ends[:-1])
    return Intervals(
        np.concatenate((starts[:1], starts[gaps + 1])),
        np.concatenate((ends[gaps], ends[-1:])),
    )


def _joined(parts: Sequence[Int64s]) -> Int64s:
    if len(parts) == 1:
        return np.asarray(parts[0], np.int64)
    return np.concatenate([np.asarray(part, np.int64) for part in parts])


def length(a: Intervals) -> int:
    """Return the total time covered, in the unit of the intervals."""
    return int((a.ends - a.starts).sum())


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the set covered by both."""
    return parts_inside(a, b)[0]


def parts_inside(a: Intervals, b: Intervals) -> tuple[Intervals, Int64s]:
    """Return the parts of `a` that `b` covers, and for each part the index of its interval in `a`.

    Intervals of `a` may touch; then the parts may touch, too.
    """
    if a.starts.size == 0 or b.starts.size == 0:
        return EMPTY, np.empty(0, np.int64)
    # Each a-interval meets the b-intervals first[i] .. last[i] - 1: those ending after its start and
    # starting before its end.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    counts = np.maximum(last - first, 0)
    of_a = np.repeat(np.arange(a.starts.size), counts)
    of_b = np.arange(of_a.size) + np.repeat(first - np.cumsum(counts) + counts, counts)
    parts = Intervals(np.maximum(a.starts[of_a], b.starts[of_b]), np.minimum(a.ends[of_a], b.ends[of_b]))
    return parts, of_a


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of [start, end) that `a` does not cover."""
    if end <= start:
        return EMPTY
    inside = clip(a, start, end)
    starts = np.concatenate(([start], inside.ends)).astype(np.int64)
    ends = np.concatenate((inside.starts, [end])).astype(np.int64)
    covering = ends > starts
    return Intervals(starts[covering], ends[covering])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the set covered by `a` and not by `b`."""
    if a.starts.size == 0 or b.starts.size == 0:
        return a
    return intersection(a, Intervals(np.concatenate((_FIRST, b.ends)), np.concatenate((b.starts, _LAST))))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of `a` inside [start, end); nothing if that window is empty."""
    if end <= start:
        return EMPTY
    first = np.searchsorted(a.ends, start, side="right")
    last = np.searchsorted(a.starts, end, side="left")
    if last <= first:
        return EMPTY
    return Intervals(np.maximum(a.starts[first:last], start), np.minimum(a.ends[first:last], end))


class Activity(Protocol):
    """What a rank did, on its own clock, as `BusyTime`."""

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64s:
        """Return for how long it did so inside each window [start, end)."""


class BusyTime:
    """Exact covered time of any window of one `Intervals`, in O(log n) per window, by prefix sums."""

    __slots__ = ("_ends", "_offsets", "_starts")

    def __init__(self, a: Intervals) -> None:
        self._starts, self._ends = a
        lengths = a.ends - a.starts
        self._offsets = np.cumsum(lengths) - lengths - a.starts
        """What is covered before each interval, less its start: with a time in it, what is covered before that time."""

    @property
    def intervals(self) -> Intervals:
        """The intervals themselves."""
        return Intervals(self._starts, self._ends)

    def before(self, times: npt.ArrayLike) -> Int64s:
        """Return the time covered before each of `times`."""
        at = np.asarray(times, np.int64)
        if self._starts.size == 0:
            return np.zeros(at.shape, np.int64)
        last = np.searchsorted(self._starts[1:], at, side="right")
        covered: Int64s = self._offsets[last] + np.minimum(np.maximum(at, self._starts[0]), self._ends[last])
        return covered

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64s:
        """Return the time covered inside each window [start, end); 0 where the window is empty."""
        covered: Int64s = np.maximum(self.before(ends) - self.before(starts), 0)
        return covered


class WindowSets(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Several sets of disjoint windows [start, end), so that the time covered inside each set takes one pass."""

    starts: Int64s
    ends: Int64s
    which: Int64s
    """Index of each window's set."""
    sets: int

    @classmethod
    def of(cls, sets: Sequence[Sequence[tuple[int, int]]]) -> Self:
        """Create it from the (start, end) windows of each set."""
        windows = np.array([window for each in sets for window in each], np.int64).reshape(-1, 2)
        which = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
        return cls(starts=windows[:, 0], ends=windows[:, 1], which=which, sets=len(sets))

    @property
    def lengths(self) -> list[int]:
        """The length of each set."""
        return self._sums(self.ends - self.starts)

    def within(self, busy: Activity) -> list[int]:
        """Return the time covered inside each set."""
        return self._sums(busy.within(self.starts, self.ends))

    def _sums(self, values: Int64s) -> list[int]:
        sums = np.zeros(self.sets, np.int64)
        np.add.at(sums, self.which, values)
        return sums.tolist()
