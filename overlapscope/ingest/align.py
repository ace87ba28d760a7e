"""Where in a long sequence of calls a short one lies: every possible place, and what all of them agree on.

The short one (a trace) is looked for as a whole; the long one (a log) goes on before and after it. Either may lack a
few calls in between. An alignment pairs calls in order; its gaps are the calls of the short sequence without a partner
and the calls of the long one skipped between two partners. Without an alignment that has no gaps, those with the fewest
count, and beside them those with one gap more: where sources are known to lose calls, one more lost call must not lead
to another answer.
"""

from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.correlate import fits_at, sums_over
from overlapscope.ingest.gap_costs import EDGE, gap_costs
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.values import dataclass

MAX_KINDS_OF_PLACE: Final = 16
"""Places with the same calls around them are looked at once; with more kinds than this nothing is told apart."""
MAX_VALUES: Final = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Nowhere:
    """No place is possible: none fits (`nowhere`), or too many fit so nearly that none stands out (`too_many`)."""

    why: Literal["nowhere", "too_many"]


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of one kind: the same pairs of rows at each of them."""

    starts: Ints
    """Row of the text that offset 0 of `pairs` stands for with row 0 of the pattern, ascending; may be negative."""
    pairs: npt.NDArray[np.bool_]
    """[offset, row of the pattern]."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """All possible places of a pattern in a text."""

    gaps: int
    places: tuple[_Places, ...]
    left_out: Flags
    """Rows of the pattern that may have no partner."""

    @property
    def count(self) -> int:
        """Number of places."""
        return sum(each.starts.size for each in self.places)

    def rows(self) -> Ints:
        """Give the row of the text that each row of the pattern is paired with; NONE where that is not certain."""
        first, last = self._first(), self._last()
        return np.where((first == last) & ~self.left_out, first, NONE)

    def agreed(self, values: Ints) -> tuple[Ints, Flags]:
        """Give for each row of the pattern its partner's value, and whether it has the same one at all places.

        `values` has a row for each one of the text; a value that is not certain is NONE.
        """
        first = self._first()
        known = (first != NONE) & ~self.left_out
        spelled, codes = np.unique(values, return_inverse=True)
        reference = np.append(codes, 0)[np.where(known, first, -1)]
        if spelled.size == 1:
            same = known
        elif spelled.size > MAX_VALUES:
            same = known & (first == self._last())
        else:
            same = known & (self._squares(codes, reference) == 0)
        return np.where(same, spelled[reference], NONE), same

    def _squares(self, codes: Ints, reference: Ints) -> Ints:
        """Give for each row of the pattern the sum of the squared differences to the reference over all places."""
        total = np.zeros(reference.size, np.int64)
        for each in self.places:
            margin = max(0, -int(each.starts[0]))
            offsets, rows = np.nonzero(each.pairs)
            at = rows + offsets
            padded = np.concatenate([np.zeros(margin, np.int64), codes])
            if each.starts.size == 1:
                difference = padded[at + int(each.starts[0]) + margin] - reference[rows]
                np.add.at(total, rows, difference * difference)
                continue
            ones, squares = sums_over(each.starts + margin, padded), sums_over(each.starts + margin, padded * padded)
            chosen = reference[rows]
            np.add.at(total, rows, squares[at] - 2 * chosen * ones[at] + each.starts.size * chosen * chosen)
        return total

    def _first(self) -> Ints:
        rows = np.full(self.left_out.size, np.iinfo(np.int64).max)
        for each in self.places:
            some = each.pairs.any(axis=0)
            found = each.pairs.argmax(axis=0) + np.arange(some.size) + each.starts[0]
            rows = np.where(some, np.minimum(rows, found), rows)
        return np.where(rows == np.iinfo(np.int64).max, NONE, rows)

    def _last(self) -> Ints:
        rows = np.full(self.left_out.size, NONE)
        for each in self.places:
            some = each.pairs.any(axis=0)
            found = len(each.pairs) - 1 - each.pairs[::-1].argmax(axis=0) + np.arange(some.size) + each.starts[-1]
            rows = np.where(some, np.maximum(rows, found), rows)
        return rows


def align(pattern: Ints, text: Ints, max_gaps: int) -> Alignment | Nowhere:
    """Find all places of `pattern` in `text`, with at most `max_gaps` gaps. Tokens are not negative, or WILD.

    Takes time and memory by the length of the text times its logarithm.
    """
    exact = fits_at(pattern, text)
    if exact.size:
        everywhere = np.ones((1, pattern.size), np.bool_)
        none = np.zeros(pattern.size, np.bool_)
        return Alignment(0, (_Places(exact, everywhere),), none)
    if max_gaps <= 0 or pattern.size <= max_gaps + 2:
        return Nowhere(why="nowhere")
    return _align_with_gaps(pattern, text, max_gaps)


def _align_with_gaps(pattern: Ints, text: Ints, max_gaps: int) -> Alignment | Nowhere:
    limit = max_gaps + 1
    edge = np.full(2 * limit, EDGE)
    padded = np.concatenate([edge, text, edge])  # the window of a start begins `limit` before it, here `limit` after
    seeds = _seeds(pattern, text, limit)
    found: list[_Places] = []
    costs = []
    for _ in range(MAX_KINDS_OF_PLACE):
        if not seeds.size:
            break
        window = padded[seeds[0] + limit : seeds[0] + pattern.size + 3 * limit]
        starts = fits_at(window - EDGE, padded - EDGE) - limit if seeds.size > MAX_KINDS_OF_PLACE else seeds[:1]
        seeds = np.setdiff1d(seeds, starts, assume_unique=True)
        cost = gap_costs(pattern, window, limit)
        if cost.paired.min() <= limit:
            found.append(_Places(starts - limit, cost.paired <= limit))
            costs.append(cost)
    if seeds.size:
        return Nowhere(why="too_many")
    least = min((int(cost.paired.min()) for cost in costs), default=limit)
    if least > max_gaps:
        return Nowhere(why="nowhere")
    places = tuple(
        _Places(each.starts, cost.paired <= least + 1)
        for each, cost in zip(found, costs, strict=True)
        if cost.paired.min() <= least + 1
    )
    left_out = np.any([cost.unpaired <= least for cost in costs], axis=0)
    return Alignment(least, places, left_out)


def _seeds(pattern: Ints, text: Ints, limit: int) -> Ints:
    """Give all starts at which one of `limit + 1` parts of the pattern fits: with `limit` gaps one part has none."""
    bounds = np.linspace(0, pattern.size, limit + 2).astype(np.int64)
    starts = [fits_at(pattern[a:b], text) - a for a, b in pairwise(bounds.tolist())]
    seeds = np.unique(np.concatenate(starts))
    return seeds[(seeds >= -limit) & (seeds <= text.size - pattern.size + limit)]
