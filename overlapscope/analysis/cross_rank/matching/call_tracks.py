"""Calls of a stream of a rank that name no group, and sets of them that are the same calls."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.matching.end_noise import USUALLY
from overlapscope.timeline.columns import Codes, Floats, Ints

TOGETHER_NS: Final = 200_000.0
"""From call to call, the ends of a call on two ranks usually move apart by no more than this (in recordings of real
jobs, kernels of one call end within 70 us) ..."""
OF_CALL: Final = 0.01
"""... beside this share of the calls: over slow links, members see the end of a long call less exactly together."""
SHOWN: Final = 4
"""Fewer calls than this show no noise: other groups come first ..."""
EXACT_NS: Final = 2_000.0
FEWEST_EXACT: Final = 3
"""... unless so many calls move apart by no more than this on all ranks: others do so by chance in one of thousands."""
MOST_SETS: Final = 64
"""A set is compared with so many others."""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one stream of a rank, in order of time."""

    rank: int
    place: Ints
    """Positions of the calls in the table."""
    kind: Codes
    start_ns: Ints
    end_ns: Ints
    step: Ints
    lasted_ns: float
    """How long half of the calls lasted at most."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A track of a set, and where its calls begin there."""

    track: Track
    at: int = 0
    """The place of its first call among those of the set's first track; negative where it began earlier."""


class TrackSet(msgspec.Struct, frozen=True, kw_only=True):
    """Tracks of several ranks (or one) that are the same calls; the first has all of them, but those of steps that it
    did not record."""

    members: tuple[Member, ...]
    noise_ns: float = 0.0
    """By how much the ends of a call move apart on two ranks."""
    spread_ns: float = 0.0
    """How far apart their clocks are."""

    @property
    def first(self) -> Track:
        """The track that all calls are compared with."""
        return self.members[0].track

    @property
    def shown(self) -> bool:
        """Whether its calls are so many, or so exact, that they are no others that look alike."""
        exact = self.noise_ns <= EXACT_NS and len(self.members) > 1
        return self.calls >= (FEWEST_EXACT if exact else SHOWN)

    @property
    def calls(self) -> int:
        """How many calls the set has."""
        return self.first.place.size

    @property
    def ranks(self) -> list[int]:
        """The rank of each track."""
        return [each.track.rank for each in self.members]


def call_noise(apart_ns: Ints) -> Floats:
    """Return for each row how far the distance of two clocks mostly moves from call to call."""
    if apart_ns.shape[1] < 2:
        return np.zeros(apart_ns.shape[0])
    moved: Floats = np.quantile(np.abs(np.diff(apart_ns, axis=1)), USUALLY, axis=1)
    return moved
