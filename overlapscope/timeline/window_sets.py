"""Many windows asked at once: what each of several sets of windows covers, in one pass over what it is asked of."""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np

from overlapscope.timeline.intervals import BusyTime, Int64s


class WindowSets(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Sets of disjoint windows [start, end); each set is taken together."""

    starts: Int64s
    ends: Int64s
    which: Int64s
    """The set of each window."""
    sets: int

    @classmethod
    def of(cls, sets: Sequence[Sequence[tuple[int, int]]]) -> Self:
        """Lay out the windows of each set."""
        windows = np.array([window for each in sets for window in each], np.int64).reshape(-1, 2)
        which = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
        return cls(starts=windows[:, 0], ends=windows[:, 1], which=which, sets=len(sets))

    @property
    def lengths(self) -> list[int]:
        """The length of each set."""
        return self._sums(self.ends - self.starts)

    def within(self, busy: BusyTime) -> list[int]:
        """Give the time covered inside each set."""
        return self._sums(busy.within(self.starts, self.ends))

    def _sums(self, values: Int64s) -> list[int]:
        sums = np.zeros(self.sets, np.int64)
        np.add.at(sums, self.which, values)
        return sums.tolist()
