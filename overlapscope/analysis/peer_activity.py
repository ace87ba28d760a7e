"""What every rank did while others waited for it: looked up rank by rank, for all that wait for it at once.

Each rank tells in which pieces of its own time it waited for whom. Sorted by whom, one rank's times are laid out at a
time, and answer all of them; no more of a run need be laid out at once.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.clock_offsets import Clocks, Reals
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, union

ROUNDING_NS: Final = 2
"""Clocks are moved by whole nanoseconds: what lies this near to a piece is looked at, and then cut exactly."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of one rank's time, disjoint, on its own clock, and the other rank of each."""

    pieces: Intervals
    others: Ints


def of_peers(asked: Mapping[int, Asked], times: Callable[[int], Intervals], clocks: Clocks) -> dict[int, Intervals]:
    """Return, for each rank that asks, what of the other rank's `times` falls into each piece, on its own clock."""
    ranks = list(asked)
    none = np.empty(0, np.int64)
    if not ranks:
        return {}
    start, end = (np.concatenate([each.pieces[side] for each in asked.values()]) for side in (0, 1))
    other = np.concatenate([each.others for each in asked.values()])
    asker = np.repeat(np.arange(len(ranks)), [each.others.size for each in asked.values()])
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
    """How one rank's clock stands against those of the ranks that ask, piece by piece."""

    apart: Reals
    drift: Reals
    reference_ns: int

    def theirs(self, time_ns: Ints) -> Ints:
        """Return moments that a clock of those who ask shows as the other clock shows them."""
        ahead = (self.apart + self.drift * (time_ns - self.reference_ns)) / (1.0 + self.drift)
        return time_ns - np.rint(ahead).astype(np.int64)

    def own(self, time_ns: Ints, piece: Ints) -> Ints:
        """Return moments of the other clock as it is shown to those who ask."""
        ahead = self.apart[piece] + self.drift[piece] * (time_ns - self.reference_ns)
        told: Ints = time_ns + np.rint(ahead).astype(np.int64)
        return told


def _inside(pieces: Intervals, times: Intervals, moved: _Moved) -> tuple[Ints, Ints, Ints]:
    """Return what of `times` falls into pieces: the place of the piece, and start and end on its clock."""
    first = np.searchsorted(times.ends, moved.theirs(pieces.starts - ROUNDING_NS), side="right")
    until = np.searchsorted(times.starts, moved.theirs(pieces.ends + ROUNDING_NS), side="left")
    counts = np.maximum(until - first, 0)
    piece = np.repeat(np.arange(counts.size), counts)
    row = np.arange(piece.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    begun = np.maximum(moved.own(times.starts[row], piece), pieces.starts[piece])
    ended = np.minimum(moved.own(times.ends[row], piece), pieces.ends[piece])
    there = ended > begun
    return piece[there], begun[there], ended[there]
