"""What every rank did, laid end to end, so that a rank's waiting for many others is looked up in all of them at once.

The time of each rank fills a stretch of its own in one row of integers; a moment outside what it recorded falls on the
edge of its stretch. Looking up pieces of time costs no more for many ranks than for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from overlapscope.analysis.clocks import Clocks, Reals
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, union

ROUNDING_NS = 2
"""Clocks are moved by whole nanoseconds: what lies this near to a piece is looked at, and then cut exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimes:
    """One kind of time of all ranks, each on its own clock."""

    place: Mapping[int, int]
    """Where a rank stands in what follows."""
    begin_ns: Ints
    """First start of each rank."""
    length_ns: Ints
    """From there to its last end."""
    shift: Ints
    """Where its stretch begins."""
    starts: Ints
    ends: Ints
    rank: Ints
    """Place of the rank of each interval."""
    offset_ns: Reals
    drift: Reals
    reference_ns: int

    @classmethod
    def of(cls, times: Mapping[int, Intervals], clocks: Clocks) -> Self:
        """Lay out the times of ranks."""
        ranks, all_times = list(times), list(times.values())
        counts = np.array([each.starts.size for each in all_times], np.int64)
        begin = np.array([int(each.starts[0]) if each.starts.size else 0 for each in all_times], np.int64)
        length = np.array([int(each.ends[-1]) if each.ends.size else 0 for each in all_times], np.int64) - begin
        shift = np.concatenate([np.zeros(1, np.int64), np.cumsum(length + 1)[:-1]])[: len(ranks)]
        moved = np.repeat(shift - begin, counts)
        none = [np.empty(0, np.int64)]
        return cls(
            place={rank: at for at, rank in enumerate(ranks)},
            begin_ns=begin,
            length_ns=length,
            shift=shift,
            starts=np.concatenate([each.starts for each in all_times] or none) + moved,
            ends=np.concatenate([each.ends for each in all_times] or none) + moved,
            rank=np.repeat(np.arange(len(ranks)), counts),
            offset_ns=np.array([clocks.offset_ns.get(rank, 0.0) for rank in ranks]),
            drift=np.array([clocks.drift.get(rank, 0.0) for rank in ranks]),
            reference_ns=clocks.reference_ns,
        )

    def within(self, rank: int, pieces: Intervals, others: Ints) -> Intervals:
        """Give what the other rank of each piece did in it; pieces, and the answer, are on the clock of `rank`.

        Pieces are disjoint; `others` holds a rank for each.
        """
        if pieces.starts.size == 0:
            return union()
        peers, which = np.unique(others, return_inverse=True)
        of = np.array([self.place[other] for other in peers.tolist()], np.int64)[which]
        mine = self.place[rank]
        apart, drift = self.offset_ns[mine] - self.offset_ns[of], self.drift[mine] - self.drift[of]
        first = np.searchsorted(self.ends, self._at(pieces.starts - ROUNDING_NS, of, apart, drift), side="right")
        until = np.searchsorted(self.starts, self._at(pieces.ends + ROUNDING_NS, of, apart, drift), side="left")
        counts = np.maximum(until - first, 0)
        piece = np.repeat(np.arange(of.size), counts)
        row = np.arange(piece.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        back = self.begin_ns[of[piece]] - self.shift[of[piece]]
        starts, ends = (self._told(each[row] + back, apart[piece], drift[piece]) for each in (self.starts, self.ends))
        return union((np.maximum(starts, pieces.starts[piece]), np.minimum(ends, pieces.ends[piece])))

    def _at(self, time_ns: Ints, of: Ints, apart: Reals, drift: Reals) -> Ints:
        """Give where moments, told by this rank's clock, stand in the stretches of the others."""
        ahead = (apart + drift * (time_ns - self.reference_ns)) / (1.0 + drift)
        theirs = time_ns - np.rint(ahead).astype(np.int64)
        at: Ints = self.shift[of] + np.clip(theirs - self.begin_ns[of], 0, self.length_ns[of])
        return at

    def _told(self, at: Ints, apart: Reals, drift: Reals) -> Ints:
        """Give moments of another rank as this rank's clock shows them."""
        moved: Ints = at + np.rint(apart + drift * (at - self.reference_ns)).astype(np.int64)
        return moved
