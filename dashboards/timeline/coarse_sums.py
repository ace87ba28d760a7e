"""Times in each state over cells of one width, added up once: what a view of much of a large run is drawn from.

Cells lie on multiples of a power of two from the run's begin. A view whose bins are whole cells is exactly their sums;
one that looks closer adds up the states themselves, of which then few are in view.
"""

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np

from overlapscope.analysis.occupancy import STATES, Occupancy
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.timeline.heat_map import map_rows, spent_by_row
from overlapscope_dashboards.timeline.window import MAX_BINS, MIN_BINS

CELLS: Final = 4 * MAX_BINS
"""So many cells at most have a part of the run."""
SPARE: Final = 2 * CELLS // MIN_BINS
"""Cells beyond its end: the last bin of a view may reach there."""
AT_ONCE: Final = 1_000
"""Cells that are added up at a time: columns of all of a run would be new memory each time."""
MOST_NS: Final = 1 << 32
"""What a cell can hold; a run of several hours has no cells."""


class Coarse(msgspec.Struct, frozen=True, kw_only=True):
    """`spent[row, state, cell]` in nanoseconds, by the rows of the heat map."""

    cell_ns: int
    spent: "np.ndarray[Any, np.dtype[np.uint32]]"

    @classmethod
    def of(cls, occupancy: Sequence[Occupancy], origin_ns: int, length_ns: int) -> Self | None:
        """Add up; None where a cell would hold more than it can."""
        rows = map_rows(len(occupancy))
        width = cell_width(length_ns)
        if width * len(rows[0]) >= MOST_NS:
            return None
        edges = np.arange(cells(length_ns) + 1, dtype=np.int64) * width + origin_ns
        spent = np.empty((len(rows), len(STATES), edges.size - 1), np.uint32)
        for begin in range(0, edges.size - 1, AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            for own, row in zip(spent, rows, strict=True):
                own[:, some] = spent_by_row(occupancy, [row], edges[begin : begin + AT_ONCE + 1])[0]
        return cls(cell_ns=width, spent=spent)

    def over(self, edges_ns: Ints) -> Ints | None:
        """Give what `spent_by_row` does, for bins counted from the run's begin; None where they are no whole cells."""
        width, bins = int(edges_ns[1] - edges_ns[0]), edges_ns.size - 1
        each, first = width // self.cell_ns, int(edges_ns[0]) // self.cell_ns
        last = first + each * bins
        if width % self.cell_ns or edges_ns[0] % self.cell_ns or first < 0 or last > self.spent.shape[2]:
            return None
        spent = np.empty((*self.spent.shape[:2], bins), np.int64)
        begun = np.arange(bins) * each
        for own, row in zip(self.spent, spent, strict=True):
            np.add.reduceat(own[:, first:last], begun, axis=1, dtype=np.int64, out=row)
        return spent


def cell_width(length_ns: int) -> int:
    """Return the least power of two of which CELLS cover a run."""
    return 1 << (-(-length_ns // CELLS) - 1).bit_length()


def cells(length_ns: int) -> int:
    """Return how many cells a run of this length has, with the spare ones."""
    return -(-length_ns // cell_width(length_ns)) + SPARE
