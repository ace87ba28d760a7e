"""Costs of all alignments of a short sequence with a window as long as it, by the calls that either side lacks.

Furthest-reaching points on diagonals (E. Myers, "An O(ND) difference algorithm", 1986; G. Landau and U. Vishkin, 1989),
forward and backward, so that every pair of rows gets the cost of the cheapest alignment that pairs them.
"""

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.correlate import WILD
from overlapscope.timeline.columns import Flags, Ints
from overlapscope.values import dataclass

EDGE = -2
"""A token of the text that fits nothing: there is no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapCosts:
    """Least numbers of gaps; costs above the limit are not exact, but above it.

    A gap is a row of the pattern that nothing is paired with, or a row of the text between two that are.
    """

    paired: npt.NDArray[np.int64]
    """[offset, row]: of alignments that pair pattern row `row` with text row `row + offset` of the window."""
    unpaired: Ints
    """[row]: of alignments that leave the pattern's row without a partner."""


def gap_costs(pattern: Ints, window: Ints, limit: int) -> GapCosts:
    """Give the costs up to `limit`; the window is `2 * limit` longer than the pattern."""
    fits = np.array([_fits(pattern, window[offset : offset + pattern.size]) for offset in range(2 * limit + 1)])
    before = _reached(fits, limit)
    after = _reached(fits[::-1, ::-1], limit)[::-1, ::-1]
    beyond = limit + 1
    paired = np.where(fits, before[:, :-1] + after[:, 1:], 2 * beyond)
    left_out = before[1:, :-1] + 1 + after[:-1, 1:]
    unpaired = np.minimum(left_out.min(axis=0, initial=2 * beyond), 2 * beyond)
    return GapCosts(paired=paired, unpaired=unpaired)


def _fits(pattern: Ints, text: Ints) -> Flags:
    fits: Flags = ((pattern == text) | (pattern == WILD) | (text == WILD)) & (text != EDGE)
    return fits


def _reached(fits: npt.NDArray[np.bool_], limit: int) -> npt.NDArray[np.int64]:
    """Give [offset, rows]: the least gaps with which the first `rows` of the pattern end on that diagonal.

    It never falls along a diagonal, so the furthest row within each number of gaps tells all of it.
    """
    diagonals, rows = fits.shape
    stops = np.where(fits, rows, np.arange(rows))
    stops = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    stops = np.append(stops, np.full((diagonals, 1), rows), axis=1)
    at = np.arange(diagonals)
    furthest = stops[at, 0]
    costs = np.zeros((diagonals, rows + 1), np.int64)
    for _ in range(limit + 1):
        costs += np.arange(rows + 1) > furthest[:, None]
        step = np.maximum(furthest, np.append(furthest[1:] + 1, 0))  # a row of the pattern has no partner ...
        step = np.minimum(np.maximum(step, np.insert(furthest[:-1], 0, 0)), rows)  # ... or a row of the text
        furthest = stops[at, step]
    return costs
