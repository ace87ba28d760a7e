"""Trace time stamps (microseconds, as JSON numbers or text) to integer nanoseconds, without losing one.

A double holds microseconds with three decimals faithfully only below 2**43 (8.8e12): there its spacing is under
a nanosecond, and the integer part and the fraction, rounded apart, give the nanosecond that was written. Multiplied
as a whole, a product near 4.4e15 is rounded once more and can be one off. Above 2**43 a double has lost decimals,
and the number has to be read as text.
"""

import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.parsing.json_values import NotWhole, whole_numbers

FAITHFUL_BELOW_US = float(2**43)
"""Below this many microseconds a double keeps the third decimal (float64 has 53 bits)."""
_LIMIT_NS = 2**61
"""Times past this (73 years) are none: the sum of a base, a start and a duration stays within int64."""


_WHOLE_DIGITS = 16
_PLAIN_LENGTH = _WHOLE_DIGITS + 4


class NeedsText(Exception):  # noqa: N818 - a signal to the reader, not an error for anybody
    """These numbers were decoded to doubles too coarse to hold a nanosecond: decode their text instead."""


def microseconds_to_ns(values: Sequence[object]) -> npt.NDArray[np.int64]:
    """Convert decoded JSON numbers of microseconds to nanoseconds, exactly.

    Integers are exact at any size, doubles below 2**43. Raises NeedsText when a double is larger, or a value is
    not a number: `text_to_ns` takes those.
    """
    if len(values) == 0:
        return np.empty(0, np.int64)
    numbers = _numbers(values)
    lowest = numbers.min()
    if lowest <= 1 and bool in set(map(type, values)):
        raise NeedsText  # true and false are no times, but Python takes them for 1 and 0
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
    """Return whole numbers as they are, others as doubles: all of them, if there are any."""
    try:
        return whole_numbers(values)
    except NotWhole:
        pass
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values))
    except struct.error:
        raise NeedsText from None


def text_to_ns(tokens: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert decimal texts of microseconds to nanoseconds; beyond the third decimal, to the nearest, ties to even.

    Gives the nanoseconds and a mask that is False where a text is no finite number of a possible time.
    """
    out, good = _plain(tokens)
    for row in np.flatnonzero(~good).tolist():
        try:
            ns = (Decimal(tokens[row].strip().strip('"')) * 1000).to_integral_value(ROUND_HALF_EVEN)
            good[row] = ns.is_finite() and abs(ns) < _LIMIT_NS
            out[row] = int(ns) if good[row] else 0
        except (ArithmeticError, ValueError):
            good[row] = False
    return out, good


def _plain(tokens: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert all texts at once that are up to 16 digits, with up to three behind a point; the mask says which.

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
