"""Time in each state over cells of one width, summed once: the source of views of large parts of a large run.

Cells start at multiples of a power of two from the run's start. A view whose bins are multiples of cells is computed
exactly from them; a closer view sums the states themselves, of which only few are in view then.
"""

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.occupancy import STATES, Occupancy
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.timeline.heat_map import map_rows, time_by_row
from overlapscope_dashboards.timeline.window import MAX_BINS, MIN_BINS

CELLS: Final = 4 * MAX_BINS
"""Most cells that cover the run."""
SPARE_CELLS: Final = 2 * CELLS // MIN_BINS
"""Cells after the run's end, because the last bin of a view may extend beyond it."""
AT_ONCE: Final = 1_000
"""Cells that are summed at a time: columns for the whole run would allocate new memory each time."""
CELL_LIMIT_NS: Final = 1 << 32
"""Overflow limit of a cell (uint32); a run of several hours therefore has no cells."""


class CoarseSums(msgspec.Struct, frozen=True, kw_only=True):
    """`spent[row, state, cell]` in nanoseconds, for the rows of the heat map."""

    cell_ns: int
    spent: "np.ndarray[Any, np.dtype[np.uint32]]"

    @classmethod
    def of(cls, occupancy: Sequence[Occupancy], origin_ns: int, length_ns: int) -> Self | None:
        """Return the sums; None where a cell would overflow."""
        rows = map_rows(len(occupancy))
        width = cell_width(length_ns)
        if width * len(rows[0]) >= CELL_LIMIT_NS:
            return None
        edges = np.arange(cells(length_ns) + 1, dtype=np.int64) * width + origin_ns
        spent = np.empty((len(rows), len(STATES), edges.size - 1), np.uint32)
        for begin in range(0, edges.size - 1, AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            for own, row in zip(spent, rows, strict=True):
                own[:, some] = time_by_row(occupancy, [row], edges[begin : begin + AT_ONCE + 1])[0]
        return cls(cell_ns=width, spent=spent)

    def over(self, edges_ns: Ints) -> Ints | None:
        """Return the same as `time_by_row` for bins relative to the run's start; None if bins are not whole cells."""
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
    """Return the smallest power of two with which CELLS cells cover a run."""
    return 1 << (-(-length_ns // CELLS) - 1).bit_length()


def cells(length_ns: int) -> int:
    """Return how many cells a run of this length has, including the spare ones."""
    return -(-length_ns // cell_width(length_ns)) + SPARE_CELLS
