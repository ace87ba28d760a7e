"""Figures of rows by the group that each row is in: what numpy's `ufunc.at` gives, in a tenth of the time."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.order import order_of

EXACT: Final = 1 << 53
"""Whole numbers below this are added up exactly as floating-point numbers, too."""
ROOM: Final = 1_024
Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]


def sum_by(group: Column, values: Ints, groups: int) -> Ints:
    """Give the sum of the values of each group, 0 for one without rows; `group` holds numbers from 0 on."""
    if not values.size:
        return np.zeros(groups, np.int64)
    if max(-int(values.min()), int(values.max())) * values.size < EXACT:
        return np.bincount(group, weights=values, minlength=groups).astype(np.int64)
    sums: Ints = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def largest_by(group: Column, values: Ints, groups: int, otherwise: int) -> Ints:
    """Give the largest value of each group, `otherwise` for one without rows."""
    return _extreme_by(np.maximum, group, values, np.full(groups, otherwise, np.int64))


def smallest_by(group: Column, values: Ints, groups: int, otherwise: int) -> Ints:
    """Give the smallest value of each group likewise."""
    return _extreme_by(np.minimum, group, values, np.full(groups, otherwise, np.int64))


def _extreme_by(most: np.ufunc, group: Column, values: Ints, found: Ints) -> Ints:
    if values.size:
        order = order_of(group)
        sorted_group = group[order]
        opens = np.flatnonzero(np.append(True, sorted_group[1:] != sorted_group[:-1]))
        found[sorted_group[opens]] = most.reduceat(values[order], opens)
    return found


def values_in(column: Ints) -> Ints:
    """Give the distinct values, ascending."""
    if not column.size:
        return column
    low, high = int(column.min()), int(column.max())
    if high - low > column.size + ROOM:
        return np.unique(column)
    there = np.zeros(high - low + 1, np.bool_)
    there[column - low] = True
    return np.flatnonzero(there) + low
