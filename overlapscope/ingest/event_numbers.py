"""Numbers of many events to columns; quick where they are what they should be, one by one where they are not."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from overlapscope.ingest.whole_numbers import NotWhole, whole_numbers
from overlapscope.timeline.columns import NONE, Ints

GRID_SIDES: Final = 3
MOST_BLOCKS: Final = 1 << 50
"""What a grid holds at most; more is damage."""


def correlations(values: Sequence[Any]) -> Ints:
    """Give what links events to their launches; NONE for 0, which the profiler writes for "none", and for no number."""
    try:
        numbers = whole_numbers(values)
    except NotWhole:
        numbers = np.array([value if _fits(value) else 0 for value in values], np.int64)
    return np.where(numbers == 0, NONE, numbers)


def _fits(value: object) -> bool:
    """Whether it is a whole number of 64 bits."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def blocks(grids: Sequence[object]) -> Ints:
    """Give the thread blocks of each grid; NONE for what is none, or an impossible one."""
    rows = [row for row, grid in enumerate(grids) if grid is not None]
    found = np.full(len(grids), NONE)
    known: list[Any] = [grids[row] for row in rows]
    try:
        sides = whole_numbers(list(chain.from_iterable(known)))
        whole = set(map(len, known)) == {GRID_SIDES}
    except (NotWhole, TypeError):
        whole = False
    if whole:
        x, y, z = sides.reshape(-1, GRID_SIDES).T
        possible = (x > 0) & (y > 0) & (z > 0) & (x.astype(np.float64) * y * z <= MOST_BLOCKS)
        found[rows] = np.where(possible, x * y * z, NONE)
    else:
        found[rows] = [_product(grid) for grid in known]
    return found


def _product(grid: object) -> int:
    if not isinstance(grid, list) or len(grid) != GRID_SIDES:
        return NONE
    if not all(isinstance(side, int) and 0 < side <= MOST_BLOCKS for side in grid):
        return NONE
    product: int = grid[0] * grid[1] * grid[2]
    return product if product <= MOST_BLOCKS else NONE
