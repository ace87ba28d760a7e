"""Look up what each rank did while other ranks waited for it, for all waiting ranks at once.

Each rank has pieces of its own time in which it waited for another rank. Sorted by that other rank, all pieces are
answered with the intervals of one rank in memory at a time.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Intervals, union

ROUNDING_NS: Final = 2
"""Times are converted between clocks in whole nanoseconds: intervals this near to a piece are checked, then cut."""


class PeerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint pieces of one rank's time, on its own clock, with the other rank that each is about."""

    pieces: Intervals
    others: Ints


def peer_activity(
    queries: Mapping[int, PeerQuery], times: Callable[[int], Intervals], clocks: Clocks
) -> dict[int, Intervals]:
    """Return for each rank the parts of its pieces in which the other rank's `times` lie, on the rank's own clock."""
    ranks = list(queries)
    none = np.empty(0, np.int64)
    if not ranks:
        return {}
    start, end = (np.concatenate([each.pieces[side] for each in queries.values()]) for side in (0, 1))
    other = np.concatenate([each.others for each in queries.values()])
    asker = np.repeat(np.arange(len(ranks)), [each.others.size for each in queries.values()])
    offset_ns = np.array([clocks.offset_ns.get(rank, 0.0) for rank in ranks])
    drift = np.array([clocks.drift.get(rank, 0.0) for rank in ranks])
    order = np.argsort(other, kind="stable")
    peers, first = np.unique(other[order], return_index=True)
    found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
    for peer, rows in zip(peers.tolist(), np.split(order, first[1:]), strict=False):
        by = asker[rows]
        moved = _Moved(
            apart=offset_ns[by] - clocks.offset_ns.get(peer, 0.0),
            drift=drift[by] - clocks.drift.get(peer, 0.0),
            reference_ns=clocks.reference_ns,
        )
        piece, begun, ended = _inside(Intervals(start[rows], end[rows]), times(peer), moved)
        found.append((by[piece], begun, ended))
    by, begun, ended = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(by, kind="stable")
    cuts = np.searchsorted(by[order], np.arange(1, len(ranks)))
    parts = zip(ranks, np.split(begun[order], cuts), np.split(ended[order], cuts), strict=True)
    return {rank: union((starts, ends)) for rank, starts, ends in parts}


class _Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Clock of one rank relative to the clocks of the querying ranks, for each piece."""

    apart: Floats
    drift: Floats
    reference_ns: int

    def theirs(self, time_ns: Ints) -> Ints:
        """Convert times of the querying ranks' clocks to the other rank's clock."""
        ahead = (self.apart + self.drift * (time_ns - self.reference_ns)) / (1.0 + self.drift)
        return time_ns - np.rint(ahead).astype(np.int64)

    def own(self, time_ns: Ints, piece: Ints) -> Ints:
        """Convert times of the other rank's clock to the querying ranks' clocks."""
        ahead = self.apart[piece] + self.drift[piece] * (time_ns - self.reference_ns)
        converted: Ints = time_ns + np.rint(ahead).astype(np.int64)
        return converted


def _inside(pieces: Intervals, times: Intervals, moved: _Moved) -> tuple[Ints, Ints, Ints]:
    """Return the parts of `times` inside pieces: (position of the piece, begin, end) on the piece's clock."""
    first = np.searchsorted(times.ends, moved.theirs(pieces.starts - ROUNDING_NS), side="right")
    until = np.searchsorted(times.starts, moved.theirs(pieces.ends + ROUNDING_NS), side="left")
    counts = np.maximum(until - first, 0)
    piece = np.repeat(np.arange(counts.size), counts)
    row = np.arange(piece.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    begun = np.maximum(moved.own(times.starts[row], piece), pieces.starts[piece])
    ended = np.minimum(moved.own(times.ends[row], piece), pieces.ends[piece])
    there = ended > begun
    return piece[there], begun[there], ended[there]
