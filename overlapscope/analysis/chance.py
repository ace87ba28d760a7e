"""How likely chance alone puts so much on one of several equals.

Each occasion on which somebody held the others up is some rank's, and costs so much. Were all ranks alike, each
occasion would be anyone's: what one rank gathers is then a sum of independent parts, and Chernoff's bound (1952) says
how seldom it is this large. The bound is never too low, and exact for occasions of one size that are all one rank's.
"""

from bisect import bisect_right
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

TILTS: Final = np.geomspace(0.01, 100, 81)
"""Exponents that are tried, over the largest occasion."""


def chance_of(gathered: float, occasions: npt.NDArray[np.float64], ranks: int) -> float:
    """Give an upper bound of how likely one of so many equal ranks gathers so much of these occasions."""
    largest = float(occasions.max()) if occasions.size else 0.0
    if largest <= 0 or gathered <= occasions.sum() / ranks:
        return 1.0
    tilted = np.multiply.outer(TILTS, occasions / largest)
    # log(1 + (exp(x) - 1) / n), without overflow.
    each = tilted + np.log(1 / ranks + (1 - 1 / ranks) * np.exp(-tilted))
    return float(min(1.0, np.exp((each.sum(axis=1) - TILTS * gathered / largest).min())))


def apart(begin: Ints, end: Ints, weight: Ints) -> Ints:
    """Choose stretches of which none overlaps another, so that they weigh most together; give their rows.

    The textbook's weighted interval scheduling, in O(n log n).
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
