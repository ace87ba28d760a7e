"""How exactly two ranks see the same calls end: members of one group do so far more exactly than ranks of two.

Ranks of two groups that are in the same phase of a step keep a distance, too, but each call of either ends by itself.
What counts is how much more exact others are, not a length: in a recording of a real job, the least exact two members
of one group were 3 times as inexact as the most exact ones.
"""

from typing import Final

import numpy as np

from overlapscope.timeline.causality import DRIFT
from overlapscope.timeline.columns import Flags, Floats, Ints

FAR_LOOSER: Final = 10.0
"""Two ranks that are so many times less exact are not members of the same group ..."""
LEAST_NS: Final = 1_000.0
"""... with times in whole microseconds, as many profilers write, differences below this show nothing ..."""
FEWEST: Final = 8
"""... and in fewer calls than this, two of a few hundred pairs of ranks may seem exact by chance."""
FEWEST_IN_PARTS: Final = 3
"""Yet where all of them are in parts that are so much more exact, so many calls are enough: between three calls, two
ranks are so exact by chance in one of a hundred jobs, but four in two pairs in one of thousands."""
FEWEST_OTHERS: Final = 4
"""Of two ranks already compared in FEWEST calls, so many calls of another kind are enough, as the one that all ranks
make in a step."""
MOST_COMPARED: Final = 1 << 24
"""Where each two tracks are compared, of so many ends in all."""
SAMPLED: Final = 64
"""Where ranks are compared in two sets of calls, of so many calls."""
USUALLY: Final = 0.75
"""A distance usually moves by what it moves in so many calls at most: in the others, a rank may have been disturbed, or
a clock been set."""


def noises(ends_ns: Ints, ranks: Ints) -> Floats:
    """Return for each two tracks how far the distance of their ends usually moves from call to call, beside a steady
    drift that clocks may have, in a sample of the calls where tracks are many; infinite for two tracks of one rank.

    `ends_ns` holds a track a row, a call a column; `ranks` the rank of each track.
    """
    moved = _moves(ends_ns, MOST_COMPARED // ranks.size**2)
    found = np.zeros((ranks.size, ranks.size))
    for at, own in enumerate(moved):
        found[at, at:] = _usual(moved[at:] - own, _most_drift(own))
    return np.where(ranks[:, None] == ranks, np.inf, np.maximum(found, found.T))


def noise_beside(ends_ns: Ints, first: int, ranks: Ints) -> Floats:
    """Return the same for each track beside one of them, of all calls."""
    moved = _moves(ends_ns, ends_ns.shape[1])
    return np.where(ranks == ranks[first], np.inf, _usual(moved - moved[first], _most_drift(moved[first])))


def _moves(ends_ns: Ints, most: int) -> Ints:
    """Return how long after the call before each one ended, of about `most` calls, and no fewer than show a noise."""
    moved = np.diff(ends_ns, axis=1)
    return moved[:, :: max(moved.shape[1] // max(most, 2 * FEWEST), 1)]


def _most_drift(moves_ns: Ints) -> int:
    """Return how far clocks may drift apart from a call to the next one, by the moves of one track.

    A call that takes a little longer on one rank than on another, each time, looks like a drift that no clock has.
    """
    return round(DRIFT * float(np.median(moves_ns))) if moves_ns.size else 0


def _usual(moves_ns: Ints, most_drift_ns: int) -> Floats:
    count = moves_ns.shape[1]
    if not count:
        return np.zeros(moves_ns.shape[0])
    steady = np.partition(moves_ns, count // 2, axis=1)[:, [count // 2]].clip(-most_drift_ns, most_drift_ns)
    at = round(USUALLY * (count - 1))
    usual: Floats = np.partition(np.abs(moves_ns - steady), at, axis=1)[:, at].astype(np.float64)
    return usual


def beyond_gap(noise_ns: Floats, least_ns: Floats, calls: int, limit_ns: float) -> Flags:
    """Return which tracks are far less exact than the others, by their noise against one track (that one's is infinite
    and stays): those beyond the first gap, and those beyond `limit_ns`. Noises of up to `least_ns` are none."""
    others = np.flatnonzero(np.isfinite(noise_ns))
    order = others[np.argsort(noise_ns[others])]
    noise = np.maximum(noise_ns[order], LEAST_NS)
    usual = FAR_LOOSER * np.concatenate([noise[:1], noise[:-1]])
    gap = (noise > np.minimum(usual, limit_ns)) & (noise > least_ns[order])
    found = np.zeros(noise_ns.size, np.bool_)
    if calls >= FEWEST and gap.any():
        found[order[gap.argmax() :]] = True
    return found


def in_its_part(ends_ns: Ints, first: int, noise_ns: Floats, nearest: Ints, nearest_ns: Floats) -> Flags:
    """Return which tracks are in the same part as one of them, where few calls divide all into parts that are far more
    exact; else all.

    `noise_ns` is their noise beside that one (`noises`); `nearest` is which of all tracks is the most exact beside
    each, by its row here (negative for any other one), and `nearest_ns` that noise.
    """
    calls = ends_ns.shape[1]
    everyone = np.ones(noise_ns.size, np.bool_)
    if not FEWEST_IN_PARTS <= calls < FEWEST:
        return everyone
    own = noise_ns <= FAR_LOOSER * max(nearest_ns[first], LEAST_NS)
    own[first] = True
    if own.all() or own.sum() < 2 or (own[nearest[~own]] & (nearest[~own] >= 0)).any():
        return everyone
    moved = np.diff(ends_ns, axis=1)
    apart = np.abs(moved[~own] - moved[first])
    least_ns = np.partition(apart, (calls - 2) // 2, axis=1)[:, (calls - 2) // 2].min()
    inside_ns = max(LEAST_NS, float(np.delete(noise_ns, first)[np.delete(own, first)].max()), nearest_ns[~own].max())
    return own if least_ns > FAR_LOOSER * inside_ns else everyone


def of_one_group_ns(members_ns: float, between_ns: float) -> float:
    """Return up to which noise ranks may be members of a group that makes the same calls as others do: not far beyond
    the noise between members of another group, or far below the noise between them and such members."""
    return max(FAR_LOOSER * max(members_ns, LEAST_NS), between_ns / FAR_LOOSER)


def as_exact(ends_ns: Ints, others_ns: Ints, least_ns: float) -> Ints:
    """Return a number for each rank, the same for ranks that are not far less exact in these calls than in others: each
    is compared with the first that is left. A rank a row in both; noises of up to `least_ns` are none."""
    found = np.zeros(ends_ns.shape[0], np.int64)
    if ends_ns.shape[1] < FEWEST or others_ns.shape[1] < FEWEST_OTHERS:
        return found
    here, there = _moves(ends_ns, SAMPLED), _moves(others_ns, SAMPLED)
    left, number = np.arange(found.size), 0
    while left.size:
        noise, usual = (_usual(each[left] - each[left[0]], _most_drift(each[left[0]])) for each in (here, there))
        looser = noise > np.maximum(FAR_LOOSER * np.maximum(usual, LEAST_NS), least_ns)
        found[left[~looser]] = number
        left, number = left[looser], number + 1
    return found
