"""Trace time stamps (microseconds, as JSON numbers or text) to integer nanoseconds, without losing one.

A double holds microseconds with three decimals faithfully only below 2**43 (8.8e12): there its spacing is under
a nanosecond, and the integer part and the fraction, rounded apart, give the nanosecond that was written. Multiplied
as a whole, a product near 4.4e15 is rounded once more and can be one off. Above 2**43 a double has lost decimals,
and the number has to be read as text.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

FAITHFUL_BELOW_US = float(2**43)
"""Below this many microseconds a double keeps the third decimal (float64 has 53 bits)."""
_LIMIT_NS = 2**61
"""Times past this (73 years) are none: the sum of a base, a start and a duration stays within int64."""


class NeedsText(Exception):  # noqa: N818 - a signal to the reader, not an error for anybody
    """These numbers were decoded to doubles too coarse to hold a nanosecond: decode their text instead."""


def microseconds_to_ns(values: Sequence[object]) -> npt.NDArray[np.int64]:
    """Convert decoded JSON numbers of microseconds to nanoseconds, exactly.

    Integers are exact at any size, doubles below 2**43. Raises NeedsText when a double is larger, or a value is
    not a number: `text_to_ns` takes those.
    """
    try:
        numbers: npt.NDArray[Any] = np.array(values)
    except (ValueError, OverflowError):
        raise NeedsText from None
    if numbers.ndim != 1:
        raise NeedsText
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.dtype.kind in "iuf" and numbers.min() <= 1 and bool in set(map(type, values)):
        raise NeedsText  # true and false are no times, but numpy takes them for 1 and 0
    if numbers.dtype.kind in "iu":
        if numbers.max() >= _LIMIT_NS // 1000 or numbers.min() <= -_LIMIT_NS // 1000:
            raise NeedsText
        ns: npt.NDArray[np.int64] = numbers.astype(np.int64) * 1000
        return ns
    if numbers.dtype.kind != "f" or not (np.abs(numbers) < FAITHFUL_BELOW_US).all():
        raise NeedsText
    whole = np.floor(numbers)
    fraction = np.rint((numbers - whole) * 1000)  # numbers - whole is exact
    return np.asarray(whole.astype(np.int64) * 1000 + fraction.astype(np.int64), np.int64)


def text_to_ns(tokens: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert decimal texts of microseconds to nanoseconds; beyond the third decimal, to the nearest, ties to even.

    Gives the nanoseconds and a mask that is False where a text is no finite number of a possible time.
    """
    out = np.zeros(len(tokens), np.int64)
    good = np.ones(len(tokens), np.bool_)
    for row, token in enumerate(tokens):
        whole, _, fraction = token.partition(".")
        if len(fraction) <= 3 and len(whole) < 17 and whole.isdecimal() and (fraction.isdecimal() or not fraction):
            plain = int(whole + fraction.ljust(3, "0"))
            good[row] = plain < _LIMIT_NS
            out[row] = plain if good[row] else 0
            continue
        try:
            ns = (Decimal(token.strip().strip('"')) * 1000).to_integral_value(ROUND_HALF_EVEN)
            good[row] = ns.is_finite() and abs(ns) < _LIMIT_NS
            out[row] = int(ns) if good[row] else 0
        except (ArithmeticError, ValueError):
            good[row] = False
    return out, good
