"""Rows sorted by several columns at once, or numbered by what they hold: as one number wherever the columns fit in one.

Plain numbers are sorted several times as fast as places are by what lies there.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FEW: Final = 16
"""With fewer than one fall in so many, merging the stretches in order is quicker than sorting all anew."""
MOST: Final = int(np.iinfo(np.int64).max)
Column = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


def order_of(*columns: Column) -> Ints:
    """Give the places of rows sorted by the first of integer columns, of equals by the next; equals stay in order."""
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
    """Give values in order."""
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
