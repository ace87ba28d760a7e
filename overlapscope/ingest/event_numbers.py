"""Numbers of many events to columns; quick where they are what they should be, one by one where they are not."""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import NONE, Ints

GRID_SIDES: Final = 3
MOST_BLOCKS: Final = 1 << 50
"""What a grid holds at most; more is damage."""


def correlations(values: Sequence[Any]) -> Ints:
    """Give what links events to their launches; NONE for 0, which the profiler writes for "none", and for no number."""
    numbers: npt.NDArray[Any]
    try:
        numbers = np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        numbers = _any_correlations(values)
    return np.where(numbers == 0, NONE, numbers)


def _any_correlations(values: Sequence[object]) -> Ints:
    try:
        numbers = np.array(values)
    except (ValueError, OverflowError):
        numbers = np.array([None])
    if numbers.dtype.kind not in "iu" or numbers.size != len(values):
        numbers = np.array([value if isinstance(value, int) and abs(value) < 2**62 else 0 for value in values])
    return numbers.astype(np.int64)


def blocks(grids: Sequence[object]) -> Ints:
    """Give the thread blocks of each grid; NONE for what is none, or an impossible one."""
    rows = [row for row, grid in enumerate(grids) if grid is not None]
    found = np.full(len(grids), NONE)
    known: list[Any] = [grids[row] for row in rows]
    try:
        each = np.frombuffer(array("q", chain.from_iterable(known)), np.int64)
        whole = set(map(len, known)) == {GRID_SIDES}
    except (TypeError, OverflowError):
        whole = False
    if whole:
        sides = each.reshape(-1, GRID_SIDES)
        possible = (sides > 0).all(axis=1) & (sides.astype(np.float64).prod(axis=1) <= MOST_BLOCKS)
        found[rows] = np.where(possible, sides.prod(axis=1), NONE)
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
