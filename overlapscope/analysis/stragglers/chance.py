"""Compute how likely it is that one of equal ranks is late as often, and as long, as a rank was.

Each occasion belongs to some rank and has a cost. If all ranks were equal, each occasion would be any rank's, and the
sum of one rank would be a sum of independent parts. Chernoff's bound (1952) limits how likely such a sum is this large.
The bound is never too low, and exact for occasions of one size that all belong to one rank. Of few occasions all ways
to give them to ranks are counted instead: there, small ones beside a few large would loosen it.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS
from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.timeline.columns import Floats, Ints

TILTS: Final = np.geomspace(0.01, 100, 81)
"""Exponents of Chernoff's bound that are tried, in units of 1 / (largest occasion)."""
COUNTED: Final = 12
"""Up to so many occasions, all ways to give them to ranks are counted."""


def chances(late: Mapping[int, Sequence[LateArrivals]], could: int, *, by_step: bool) -> dict[int, float]:
    """Return for each rank an upper bound of the probability of its blame if all ranks were equal.

    It is the smaller one of two: equal to all other ranks, or equal to the members of one of its sets of ranks.
    """
    costs = {rank: occasions_of(theirs, by_step=by_step) for rank, theirs in late.items()}
    everybody = np.concatenate(list(costs.values())) if costs else np.zeros(0)
    found = {rank: chance_bound(float(own.sum()), everybody, could) for rank, own in costs.items()}
    sets: dict[tuple[int, ...], dict[int, Floats]] = {}
    for rank, theirs in late.items():
        for each in theirs:
            sets.setdefault(each.met.ranks, {})[rank] = occasions_of([each], by_step=by_step)
    for ranks, members in sets.items():
        cross_rank = np.concatenate(list(members.values()))
        for rank, own in members.items():
            within = chance_bound(float(own.sum()), cross_rank, len(ranks)) * len(late[rank])
            found[rank] = min(found[rank], within)
    return found


def occasions_of(late: Sequence[LateArrivals], *, by_step: bool) -> Floats:
    """Return the cost of each occasion in nanoseconds: the rank's own leads.

    Of leads that overlap in time, one counts. The leads of one step are one occasion, since a larger batch increases
    all of them; in recordings of few steps each lead is an occasion.
    """
    row = [each.met.ranks.index(each.rank) for each in late]
    begin = np.concatenate([each.met.begin_ns[at] for each, at in zip(late, row, strict=True)])
    end = np.concatenate([each.met.end_ns[at] for each, at in zip(late, row, strict=True)])
    own = np.concatenate([each.own_ns for each in late])
    step = np.concatenate([each.met.step for each in late])
    counts = np.flatnonzero((own > LEADS_COUNT_NS) & (end > begin))
    chosen = counts[select_disjoint(begin[counts], end[counts], own[counts])]
    leads = own[chosen].astype(np.float64)
    if not by_step:
        return leads
    numbers, place = np.unique(step[chosen], return_inverse=True)
    return np.bincount(place, weights=leads, minlength=numbers.size).astype(np.float64)


def chance_bound(gathered: float, occasions: Floats, ranks: int) -> float:
    """Return an upper bound of the probability that one of `ranks` equal ranks gets `gathered` of the cost: the
    probability itself where there are few occasions, else Chernoff's bound.

    `occasions` holds the cost of each occasion, `gathered` the sum of one rank's, in the same unit.
    """
    largest = float(occasions.max()) if occasions.size else 0.0
    if largest <= 0 or gathered <= occasions.sum() / ranks:
        return 1.0
    if occasions.size <= COUNTED:
        return _counted_chance(gathered, occasions, ranks)
    tilted = np.multiply.outer(TILTS, occasions / largest)
    # log(1 + (exp(x) - 1) / n), computed without overflow.
    each = tilted + np.log(1 / ranks + (1 - 1 / ranks) * np.exp(-tilted))
    return float(min(1.0, np.exp((each.sum(axis=1) - TILTS * gathered / largest).min())))


def _counted_chance(gathered: float, occasions: Floats, ranks: int) -> float:
    """Return the probability that one of `ranks` equal ranks gets `gathered` of the cost, over all ways to get some."""
    sums, likely = np.zeros(1), np.ones(1)
    for cost in occasions:
        sums = np.concatenate([sums, sums + cost])
        likely = np.concatenate([likely * (1 - 1 / ranks), likely / ranks])
    rounding = 1e-9 * float(occasions.sum())
    return float(min(1.0, likely[sums >= gathered - rounding].sum()))


def select_disjoint(begin: Ints, end: Ints, weight: Ints) -> Ints:
    """Return the rows of non-overlapping intervals with the largest total weight.

    Weighted interval scheduling by dynamic programming (Kleinberg and Tardos, Algorithm Design, section 6.1), in
    O(n log n).
    """
    order = np.argsort(end, kind="stable")
    starts, ends, weights = begin[order].tolist(), end[order].tolist(), weight[order].tolist()
    best = [0]
    before = []
    for at, start in enumerate(starts):
        before.append(bisect_right(ends, start, hi=at))
        best.append(max(best[-1], best[before[-1]] + weights[at]))
    chosen = []
    at = len(starts)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(int(order[at - 1]))
            at = before[at - 1]
    return np.array(chosen[::-1], np.int64)
