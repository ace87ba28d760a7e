"""Look up how long each rank computed or communicated while other ranks came to a call, for all ranks at once.

Each rank has windows of its own time that ask about another rank. Sorted by that other rank, all windows are answered
with the activity of one rank in memory at a time.
"""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Activity, Intervals


class PeerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of one rank's time, on its own clock, with the other rank that each is about."""

    windows: Intervals
    """They may overlap."""
    others: Ints


def peer_activity(
    queries: Mapping[int, PeerQuery], activities: Mapping[str, Callable[[int], Activity]], clocks: Clocks
) -> dict[int, dict[str, Ints]]:
    """Return for each rank how long the other rank did each of several things in each of its windows, in ns.

    `activities` return when a rank did them.
    """
    ranks = list(queries)
    if not ranks:
        return {}
    start, end = (np.concatenate([each.windows[side] for each in queries.values()]) for side in (0, 1))
    other = np.concatenate([each.others for each in queries.values()])
    counts = [each.others.size for each in queries.values()]
    asker = np.repeat(np.arange(len(ranks)), counts)
    offset_ns = np.array([clocks.offset_ns.get(rank, 0.0) for rank in ranks])
    drift = np.array([clocks.drift.get(rank, 0.0) for rank in ranks])
    order = np.argsort(other, kind="stable")
    peers, first = np.unique(other[order], return_index=True)
    found = {name: np.zeros(other.size, np.int64) for name in activities}
    for peer, rows in zip(peers.tolist(), np.split(order, first[1:]), strict=False):
        by = asker[rows]
        moved = _Moved(
            apart=offset_ns[by] - clocks.offset_ns.get(peer, 0.0),
            drift=drift[by] - clocks.drift.get(peer, 0.0),
            reference_ns=clocks.reference_ns,
        )
        begin, until = moved.theirs(start[rows]), moved.theirs(end[rows])
        for name, did in activities.items():
            theirs = did(peer).within(begin, until) * (1.0 + moved.drift)
            found[name][rows] = np.rint(theirs).astype(np.int64)
    ends = np.cumsum(counts)
    own = zip(ranks, (ends - counts).tolist(), ends.tolist(), strict=True)
    return {rank: {name: times[first:end] for name, times in found.items()} for rank, first, end in own}


class _Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Clock of one rank relative to the clocks of the querying ranks, for each window."""

    apart: Floats
    drift: Floats
    reference_ns: int

    def theirs(self, time_ns: Ints) -> Ints:
        """Convert times of the querying ranks' clocks to the other rank's clock."""
        ahead = (self.apart + self.drift * (time_ns - self.reference_ns)) / (1.0 + self.drift)
        return time_ns - np.rint(ahead).astype(np.int64)
