"""How exactly two ranks see the same calls end: members of one group do so far more exactly than ranks of two.

Ranks of two groups that are in the same phase of a step keep a distance, too, but each call of either ends by itself.
What counts is how much more exact others are, not a length: in a recording of a real job, the least exact two members
of one group were 3 times as inexact as the most exact ones.
"""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import Flags, Floats, Ints

FAR_LOOSER: Final = 10.0
"""Two ranks that are so many times less exact are not members of the same group ..."""
LEAST_NS: Final = 1_000.0
"""... with times in whole microseconds, as many profilers write, differences below this show nothing ..."""
FEWEST: Final = 8
"""... and in fewer calls than this, two ranks may seem exact by chance."""
MOST_TRACKS: Final = 128
"""More are not compared with each other: the effort grows with their square."""
USUALLY: Final = 0.75


def noises(ends_ns: Ints, ranks: Ints) -> Floats:
    """Return for each two tracks how far the distance of their ends usually moves from call to call, beside a steady
    drift of the clocks; infinite for two tracks of one rank. Zero for all where too many are compared.

    `ends_ns` holds a track a row, a call a column; `ranks` the rank of each track.
    """
    count, calls = ends_ns.shape
    if count > MOST_TRACKS or calls < 2:
        return np.zeros((count, count))
    moved = np.diff(ends_ns, axis=1)
    found = np.array([_usual(moved - own) for own in moved])
    return np.where(ranks[:, None] == ranks, np.inf, found)


def _usual(moves_ns: Ints) -> Floats:
    steady = np.median(moves_ns, axis=1, keepdims=True)
    usual: Floats = np.quantile(np.abs(moves_ns - steady), USUALLY, axis=1)
    return usual


def beyond_gap(noise_ns: Floats, least_ns: Floats, calls: int) -> Flags:
    """Return which tracks are far less exact than the others, by their noise against one track (that one's is infinite
    and stays): those beyond the first gap. Noises of up to `least_ns` are none."""
    others = np.flatnonzero(np.isfinite(noise_ns))
    order = others[np.argsort(noise_ns[others])]
    noise = np.maximum(noise_ns[order], LEAST_NS)
    gap = (noise[1:] > FAR_LOOSER * noise[:-1]) & (noise[1:] > least_ns[order[1:]])
    found = np.zeros(noise_ns.size, np.bool_)
    if calls >= FEWEST and gap.any():
        found[order[gap.argmax() + 1 :]] = True
    return found


def far_looser(ends_ns: Ints, others_ns: Ints, least_ns: float) -> Flags:
    """Return for each two ranks whether they are far less exact in these calls than in others, a rank a row in both;
    noises of up to `least_ns` are none."""
    ranks = np.arange(ends_ns.shape[0])
    calls = min(ends_ns.shape[1], others_ns.shape[1])
    here, there = noises(ends_ns, ranks), noises(others_ns, ranks)
    if calls < FEWEST or ranks.size > MOST_TRACKS:
        return np.zeros(here.shape, np.bool_)
    looser: Flags = np.isfinite(here) & (here > np.maximum(FAR_LOOSER * np.maximum(there, LEAST_NS), least_ns))
    return looser
