"""Where a short sequence fits a long one, and sums over all such places, in the time of a few Fourier transforms.

Direct comparison takes time by the product of both lengths; a year's log has millions of calls.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

WILD: Final = -1
"""A token that fits every other."""
_DIGIT_BITS: Final = 10
"""Tokens are compared digit by digit, so that sums of squared differences stay exact in doubles: at 2**20 tokens their
rounding error is below 0.01, and 1 is the smallest difference."""


def fits_at(pattern: Ints, text: Ints) -> Ints:
    """Give every place of `text` from which on all of `pattern` fits, token by token; WILD on either side fits."""
    places = text.size - pattern.size + 1
    if places <= 0 or pattern.size == 0:
        return np.arange(max(places, 0))
    size = 1 << (text.size - 1).bit_length()  # a correlation that wraps around spoils only places past the last one
    here, there = (pattern != WILD).astype(np.float64), (text != WILD).astype(np.float64)
    total = np.zeros(size // 2 + 1, np.complex128)
    for shift in range(0, max(int(max(pattern.max(), text.max())).bit_length(), 1), _DIGIT_BITS):
        a, b = _digit(pattern, shift) * here, _digit(text, shift) * there
        total += _correlated(a * a, there, size) - 2 * _correlated(a, b, size) + _correlated(here, b * b, size)
    differences = np.fft.irfft(total, size)[:places]
    return np.flatnonzero(differences < 0.5)


def sums_over(places: Ints, values: Ints) -> Ints:
    """Give for each row i the sum of `values[i + place]` over all places; past the end there is nothing to add.

    Exact while the sums stay below 2**40.
    """
    size = 1 << int(values.size + places.max()).bit_length()
    chosen = np.zeros(size)
    chosen[places] = 1
    total = np.fft.irfft(_correlated(chosen, values.astype(np.float64), size), size)
    return np.rint(total[: values.size]).astype(np.int64)


def best_place(pattern: Ints, text: Ints) -> int | None:
    """Give the place at which most of `pattern` fits, for a message; None where not even half of it does.

    Tokens are weighed by random signs, which cancel where tokens differ; the few best places are then counted.
    """
    places = text.size - pattern.size + 1
    if places <= 0 or pattern.size == 0:
        return None
    size = 1 << (text.size - 1).bit_length()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], int(max(pattern.max(), text.max())) + 2)
    signs[-1] = 0  # WILD
    likeness = np.fft.irfft(_correlated(signs[pattern], signs[text], size), size)[:places]
    counted = [
        (int((pattern == text[place : place + pattern.size]).sum()), -place)
        for place in np.argsort(-likeness, kind="stable")[:8].tolist()
    ]
    most, place = max(counted)
    return -place if 2 * most >= pattern.size else None


def _digit(tokens: Ints, shift: int) -> npt.NDArray[np.float64]:
    centred = (tokens >> shift & (1 << _DIGIT_BITS) - 1) - (1 << _DIGIT_BITS - 1)
    return centred.astype(np.float64)


def _correlated(
    moved: npt.NDArray[np.float64], fixed: npt.NDArray[np.float64], size: int
) -> npt.NDArray[np.complex128]:
    product: npt.NDArray[np.complex128] = np.conj(np.fft.rfft(moved, size)) * np.fft.rfft(fixed, size)
    return product
