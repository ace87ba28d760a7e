"""The clocks of ranks as they were estimated: times of a rank on the common clock, and which ranks are connected."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.timeline.columns import Floats, Ints


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Offset and drift of each rank that shares calls with another; at `reference_ns` the drift is 0."""

    offset_ns: Mapping[int, float] = {}
    drift: Mapping[int, float] = {}
    """Nanoseconds gained per nanosecond, against the middle clock; empty where no clock drifts."""
    reference_ns: int = 0
    residual_ns: float | None = None
    """Median distance of an end to the median end of its call, on aligned clocks."""
    tied: Mapping[int, int] = {}
    """For each rank, the lowest rank whose clock is connected with its own, by calls or by a host."""

    def comparable(self, ranks: Sequence[int]) -> bool:
        """Return whether the ranks' times can be compared: whether their clocks are connected."""
        return len({self.tied.get(rank, rank) for rank in ranks}) == 1

    def aligned(self, rank: int, time_ns: Ints) -> Floats:
        """Return times of a rank on the common clock, in nanoseconds after `reference_ns`."""
        moved = (time_ns - self.reference_ns).astype(np.float64)
        drifted: Floats = moved - self.offset_ns.get(rank, 0.0) - self.drift.get(rank, 0.0) * moved
        return drifted

    def aligned_ns(self, rank: int, time_ns: Ints) -> Ints:
        """Return times of a rank (int64, nanoseconds) on the common clock, rounded to the nanosecond."""
        # As integers: a double does not hold a nanosecond of our days.
        offset = self.offset_ns.get(rank, 0.0) + self.drift.get(rank, 0.0) * (time_ns - self.reference_ns)
        moved: Ints = time_ns - np.rint(offset).astype(np.int64)
        return moved

    def own_ns(self, rank: int, aligned_ns: Ints) -> Ints:
        """Return times of the common clock (int64, nanoseconds) on a rank's own: what `aligned_ns` makes these of."""
        drift = self.drift.get(rank, 0.0)
        moved = self.offset_ns.get(rank, 0.0) + drift * (aligned_ns - self.reference_ns)
        own: Ints = aligned_ns + np.rint(moved / (1.0 - drift)).astype(np.int64)
        return own

    def rows(self, ranks: Sequence[int], times_ns: Ints) -> Floats:
        """Return times of several ranks (one row each) on the common clock, in nanoseconds after `reference_ns`."""
        offset, drift = (
            np.array([values.get(rank, 0.0) for rank in ranks])[:, None] for values in (self.offset_ns, self.drift)
        )
        moved = (times_ns - self.reference_ns).astype(np.float64)
        drifted: Floats = moved - offset - drift * moved
        return drifted

    def ends(self, block: MatchedCalls) -> Floats:
        """Return the ends of a block's calls on the common clock."""
        return self.rows(block.ranks, block.end_ns)

    def starts(self, block: MatchedCalls) -> Floats:
        """Return the starts of a block's calls on the common clock."""
        return self.rows(block.ranks, block.start_ns)

    def spread_ns(self, block: MatchedCalls) -> Ints:
        """Return for each call the time between its first and its last end, on the common clock."""
        ends = self.ends(block)
        apart: Ints = np.rint(ends.max(axis=0) - ends.min(axis=0)).astype(np.int64)
        return apart


def connected(sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the connected sets of ranks (ascending), connected by the given sets directly or over others."""
    ties: dict[int, set[int]] = {}
    for ranks in dict.fromkeys(tuple(each) for each in sets):
        joined: set[int] = set(ranks).union(*(ties[rank] for rank in ranks if rank in ties))
        ties |= dict.fromkeys(joined, joined)
    return [sorted(members) for members in {id(each): each for each in ties.values()}.values()]
