"""Convert trace time stamps (microseconds, as JSON numbers or text) to integer nanoseconds without losing precision.

A double holds microseconds with three decimals exactly enough only below 2**43 (8.8e12): there its spacing is under
a nanosecond, and the integer part and the fraction, rounded separately, give the nanosecond that was written. If the
whole number is multiplied, a product near 4.4e15 is rounded once more and can be off by one. Above 2**43 a double has
lost decimals, and the number has to be read as text.
"""

import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.parsing.json_values import NotIntegers, integer_column

FAITHFUL_BELOW_US = float(2**43)
"""Below this many microseconds a double keeps the third decimal (float64 has 53 bits)."""
_LIMIT_NS = 2**61
"""Times above this (73 years) are invalid: the sum of a base, a start and a duration stays within int64."""
_WHOLE_DIGITS = 16
_PLAIN_LENGTH = _WHOLE_DIGITS + 4


class NeedsText(Exception):  # noqa: N818 - a signal to the reader, not an error for anybody
    """The numbers were decoded to doubles too coarse to hold a nanosecond: decode their text instead."""


def microseconds_to_ns(values: Sequence[object]) -> npt.NDArray[np.int64]:
    """Return decoded JSON numbers of microseconds as exact int64 nanoseconds.

    Integers are exact at any size, doubles below 2**43. Raises NeedsText when a double is larger, or a value is
    not a number: use `text_to_ns` for those.
    """
    if len(values) == 0:
        return np.empty(0, np.int64)
    numbers = _numbers(values)
    lowest = numbers.min()
    if lowest <= 1 and bool in set(map(type, values)):
        raise NeedsText  # true and false are not times, but Python treats them as 1 and 0
    if numbers.dtype.kind == "i":
        if numbers.max() >= _LIMIT_NS // 1000 or lowest <= -_LIMIT_NS // 1000:
            raise NeedsText
        return np.asarray(numbers * 1000, np.int64)
    if not (np.abs(numbers) < FAITHFUL_BELOW_US).all():
        raise NeedsText
    whole = np.floor(numbers)
    fraction = np.rint((numbers - whole) * 1000)  # numbers - whole is exact
    return np.asarray(whole.astype(np.int64) * 1000 + fraction.astype(np.int64), np.int64)


def _numbers(values: Sequence[object]) -> npt.NDArray[Any]:
    """Return the values as int64 if all are integers, else all as doubles. Raises NeedsText."""
    try:
        return integer_column(values)
    except NotIntegers:
        pass
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values))
    except struct.error:
        raise NeedsText from None


def text_to_ns(tokens: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert decimal texts of microseconds to nanoseconds; digits after the third decimal are rounded, ties to even.

    Return int64 nanoseconds and a mask that is False where a text is not a finite number or not a possible time.
    """
    out, valid = _plain_text_to_ns(tokens)
    for row in np.flatnonzero(~valid).tolist():
        try:
            ns = (Decimal(tokens[row].strip().strip('"')) * 1000).to_integral_value(ROUND_HALF_EVEN)
            valid[row] = ns.is_finite() and abs(ns) < _LIMIT_NS
            out[row] = int(ns) if valid[row] else 0
        except (ArithmeticError, ValueError):
            valid[row] = False
    return out, valid


def _plain_text_to_ns(tokens: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert the texts of up to 16 digits and up to three decimals at once; the mask is True for them.

    A trace whose times need their text has millions of them.
    """
    length = np.fromiter(map(len, tokens), np.int64, len(tokens))
    try:
        letters = np.array([token if len(token) <= _PLAIN_LENGTH else "" for token in tokens], f"S{_PLAIN_LENGTH}")
    except UnicodeEncodeError:
        return np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.bool_)
    text = letters.view(np.uint8).reshape(len(tokens), _PLAIN_LENGTH)
    digit = (text >= ord("0")) & (text <= ord("9"))
    points = text == ord(".")
    whole = np.where(points.any(axis=1), points.argmax(axis=1), length)
    fraction = np.maximum(length - whole - 1, 0)
    good = (digit.sum(axis=1) + points.sum(axis=1) == length) & (points.sum(axis=1) <= 1)
    good &= (whole >= 1) & (whole <= _WHOLE_DIGITS) & (fraction <= 3)
    value = np.zeros(len(tokens), np.uint64)  # 19 digits are too many for int64
    for place in range(_PLAIN_LENGTH):
        value = np.where(digit[:, place], value * np.uint64(10) + (text[:, place] - ord("0")), value)
    value = np.where(good, value, 0) * np.power(np.uint64(10), (3 - np.minimum(fraction, 3)).astype(np.uint64))
    good &= value < _LIMIT_NS
    return np.where(good, value, 0).astype(np.int64), good
