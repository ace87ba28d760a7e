"""Rows sorted by several columns at once, or numbered by what they hold: as one number wherever the columns fit in one.

Plain numbers are sorted several times as fast as places are by what lies there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

FEW: Final = 16
"""With fewer than one fall in so many, merging the stretches in order is quicker than sorting all anew."""
MOST: Final = int(np.iinfo(np.int64).max)
Column = npt.NDArray[Any]
EXACT: Final = 1 << 53
"""Whole numbers below this are added up exactly as floating-point numbers, too."""
ROOM: Final = 1_024
SHORT: Final = 1 << 31
"""Columns whose values span less are taken as they are."""


def order_of(*columns: Column) -> Ints:
    """Return the places of rows sorted by the first of integer columns, of equals by the next; equals stay in order."""
    rows = columns[0].size
    if rows < 2:
        return np.arange(rows)
    bits = (rows - 1).bit_length()
    order: Ints | None = None
    for key, is_packed in _keys(columns, MOST >> bits):
        given = key if order is None else key[order]
        falls = num_falls(given)
        if not falls:
            continue
        if is_packed and falls * FEW > rows:
            given = (given << bits) | np.arange(rows)
            given.sort()
            found: Ints = given & ((1 << bits) - 1)
        else:
            found = np.argsort(given, kind="stable")
        order = found if order is None else order[found]
    return np.arange(rows) if order is None else order


def ascending(values: Ints) -> Ints:
    """Return values in order."""
    falls = num_falls(values)
    if not falls:
        return values
    return np.sort(values, kind=None if falls * FEW > values.size else "stable")


def unique(values: Column) -> Column:
    """Give the values that occur in a column without NaN, in order; `np.unique` loads masked arrays for it (10 ms)."""
    found = np.sort(values)
    first: Column = np.append(np.ones(min(found.size, 1), np.bool_), found[1:] != found[:-1])
    occurring: Column = found[first]
    return occurring


def num_falls(values: Column) -> int:
    """Count the values that are smaller than the one before."""
    return int(np.count_nonzero(values[1:] < values[:-1]))


def _keys(columns: Sequence[Column], most: int) -> Iterator[tuple[Column, bool]]:
    """Give columns packed into numbers from 0 to below `most`, the least significant first; as it is what does not fit.

    A column that holds one value throughout is left out.
    """
    packed: Column | None = None
    width = 1
    for column in reversed(columns):
        low, high = int(column.min()), int(column.max())
        span = high - low + 1
        if span == 1:
            continue
        if packed is not None and width * span > most:
            yield packed, True
            packed, width = None, 1
        if span > most:
            yield column, False
            continue
        above = column.astype(np.int64) - low
        packed = above if packed is None else above * width + packed
        width *= span
    if packed is not None:
        yield packed, True


def sum_by(group: Column, values: Ints, groups: int) -> Ints:
    """Return the sum of the values of each group, 0 for one without rows; `group` holds numbers from 0 on."""
    if not values.size:
        return np.zeros(groups, np.int64)
    if max(-int(values.min()), int(values.max())) * values.size < EXACT:
        return np.bincount(group, weights=values, minlength=groups).astype(np.int64)
    sums: Ints = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def largest_by(group: Column, values: Ints, groups: int, otherwise: int) -> Ints:
    """Return the largest value of each group, `otherwise` for one without rows."""
    return _extreme_by(np.maximum, group, values, np.full(groups, otherwise, np.int64))


def smallest_by(group: Column, values: Ints, groups: int, otherwise: int) -> Ints:
    """Return the smallest value of each group likewise."""
    return _extreme_by(np.minimum, group, values, np.full(groups, otherwise, np.int64))


def _extreme_by(most: np.ufunc, group: Column, values: Ints, found: Ints) -> Ints:
    if values.size:
        order = order_of(group)
        sorted_group = group[order]
        opens = np.flatnonzero(np.append(True, sorted_group[1:] != sorted_group[:-1]))
        found[sorted_group[opens]] = most.reduceat(values[order], opens)
    return found


def values_in(column: Ints) -> Ints:
    """Return the distinct values, ascending."""
    if not column.size:
        return column
    low, high = int(column.min()), int(column.max())
    if high - low > column.size + ROOM:
        return np.unique(column)
    there = np.zeros(high - low + 1, np.bool_)
    there[column - low] = True
    return np.flatnonzero(there) + low


def distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """Number the distinct rows in the order of their first; give the numbers, and the first row of each.

    As one number, which is made shorter where it would not fit: to sort whole rows takes ten times as long.
    """
    code, width = np.zeros(columns[0].size, np.int64), 1
    for column in columns if code.size else ():
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        if high - low < SHORT:
            above, span = column.astype(np.int64) - low, high - low + 1
        else:
            values, above = np.unique(column, return_inverse=True)
            span = values.size
        if width * span > MOST:
            values, code = np.unique(code, return_inverse=True)
            width = values.size
        code, width = code * span + above, width * span
    order = order_of(code)
    opens = np.diff(code[order], prepend=-1) != 0
    first = order[opens]
    number = np.empty(first.size, np.int64)
    number[np.argsort(first)] = np.arange(first.size)
    which = np.empty(code.size, np.int64)
    which[order] = number[np.cumsum(opens) - 1]
    return which, np.sort(first)
