"""Decide which ranks of the job the peers of messages are, by what all recorded ranks of their group say together.

A communication library knows a peer by its rank in the communicator, and torch writes both ends of a message by their
places in the group. What one rank says may fit several readings; what all say leaves one, or contradicts them all, and
then the peer is unknown.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.message_groups import messages_in_ranges
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import UNKNOWN_RANK, Group, RankTimeline

Ways = set[tuple[int, int]]
"""(rank, its peer)."""


class _Communicator(msgspec.Struct, kw_only=True):
    """What the recordings of a job say of one communicator."""

    ranks: set[int]
    """Those that were recorded in a call of it."""
    sends: Ways
    """By the peer's rank in the communicator; `receives` and `both` alike."""
    receives: Ways
    both: Ways

    def members(self, size: int | None) -> tuple[int, ...]:
        """Return its members in the order of their ranks in it; empty where that is not certain.

        They are all recorded, and in the order of their ranks in the job, where that makes each message one that its
        peer knows of, too.
        """
        ranks = tuple(sorted(self.ranks))
        named = {peer for _, peer in self.sends | self.receives | self.both}
        if size not in (None, len(ranks)) or not named or max(named) >= len(ranks):
            return ()
        sends, receives, both = (
            {(rank, ranks[peer]) for rank, peer in ways} for ways in (self.sends, self.receives, self.both)
        )
        back = {(peer, rank) for rank, peer in receives}
        itself = any(rank == peer for rank, peer in sends | receives | both)
        return () if itself or sends != back or both != {(peer, rank) for rank, peer in both} else ranks


def with_ranks_of_peers(readings: Sequence[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Return the readings with the ranks in the job of peers that a library states by their rank in a communicator, and
    with its members; NONE where they are not certain."""
    found: dict[str, _Communicator] = {}
    sizes: dict[str, int | None] = {}
    for _, reading in readings:
        if reading.peers_in_groups:
            sizes |= {group.name: group.size for group in reading.groups if group.size is not None}
            for timeline in reading.timelines:
                _note_ways(timeline, found)
    every = {name: each.members(sizes.get(name)) for name, each in found.items()}
    members = {name: ranks for name, ranks in every.items() if ranks}
    return [(path, _with_members(each, members) if each.peers_in_groups else each) for path, each in readings]


def _with_members(reading: Reading, members: Mapping[str, tuple[int, ...]]) -> Reading:
    timelines = tuple(_translated(each, members) for each in reading.timelines)
    used = {name for each in timelines for name in each.names if name in members}
    groups = {group.name: group for group in reading.groups}
    groups |= {name: Group(name=name, size=len(members[name]), ranks=members[name]) for name in used}
    return replace(reading, timelines=timelines, groups=tuple(groups.values()))


def _note_ways(timeline: RankTimeline, found: dict[str, _Communicator]) -> None:
    calls, names = timeline.collectives, timeline.names
    if timeline.rank == UNKNOWN_RANK:
        return
    stated = np.stack([calls.group.astype(np.int64), calls.op.astype(np.int64), calls.peer])
    for group, op, peer in np.unique(stated[:, calls.group >= 0], axis=1).T.tolist():
        own = found.setdefault(names[group], _Communicator(ranks=set(), sends=set(), receives=set(), both=set()))
        own.ranks.add(timeline.rank)
        ways = {"send": own.sends, "recv": own.receives, "send_recv": own.both}.get(names[op] if op >= 0 else "")
        if peer != NONE and ways is not None:
            ways.add((timeline.rank, peer))


def _translated(timeline: RankTimeline, members: Mapping[str, Sequence[int]]) -> RankTimeline:
    calls, names = timeline.collectives, timeline.names
    if not (calls.peer != NONE).any():
        return timeline
    peer = np.full(calls.peer.size, NONE, np.int64)
    for code in unique(calls.group).tolist():
        ranks = np.array(members.get(names[code] if code >= 0 else "", ()), np.int64)
        rows = np.flatnonzero((calls.group == code) & (calls.peer != NONE) & (calls.peer < ranks.size))
        peer[rows] = ranks[calls.peer[rows]]
    return timeline.with_calls(timeline.names, replace(calls, peer=peer))


def with_checked_places(ranks: Mapping[int, RankTimeline], groups: Sequence[Group]) -> Mapping[int, RankTimeline]:
    """Return the ranks with the peers that ranges such as `nccl:send 1->2` state, where the places in some contradict
    their group.

    torch writes the places of both ends in their group. Where the own one is another on any recorded rank, or a place
    is beyond the group, both are ranks of the job if that fits on all recorded ranks; else the peers are unknown. Where
    any call states another peer than its range, calls state theirs themselves, also those that say the same.
    """
    members = {group.name: group.ranks for group in groups if group.ranks}
    ends: dict[str, dict[int, tuple[Flags, Ints, Ints]]] = {}
    for rank, timeline in ranks.items():
        if (stated := messages_in_ranges(timeline)) is not None:
            own, peer = stated
            codes = set(unique(timeline.collectives.group[own != NONE]).tolist()) - {-1}
            for name in sorted(timeline.names[code] for code in codes):
                if rank in members.get(name, ()):
                    rows = rows_named(timeline.collectives.group, timeline.names, name.__eq__) & (own != NONE)
                    ends.setdefault(name, {})[rank] = (rows, own, peer)
    changed = dict(ranks)
    for name, each in ends.items():
        group = members[name]
        if all(_are(rows, own, peer, group.index(rank), range(len(group))) for rank, (rows, own, peer) in each.items()):
            continue
        if not all(_are_taken(ranks[rank], rows, peer, group) for rank, (rows, _, peer) in each.items()):
            continue
        of_job = all(_are(rows, own, peer, rank, group) for rank, (rows, own, peer) in each.items())
        for rank, (rows, _, peer) in each.items():
            changed[rank] = _stated_otherwise(changed[rank], rows, peer, of_job=of_job)
    return changed


def _are(rows: Flags, own: Ints, peer: Ints, here: int, among: Sequence[int]) -> bool:
    """Return whether all ends stated in these rows are of a rank with the number `here` and of others `among`."""
    return bool((own[rows] == here).all() and (peer[rows] != here).all() and np.isin(peer[rows], among).all())


def _are_taken(timeline: RankTimeline, rows: Flags, peer: Ints, members: Sequence[int]) -> bool:
    """Return whether all of these rows have the peer of this place, or none: none that the call itself states."""
    stated, ranks = timeline.collectives.peer[rows], np.append(np.array(members, np.int64), NONE)
    return bool(((stated == ranks[np.clip(peer[rows], 0, len(members))]) | (stated == NONE)).all())


def _stated_otherwise(timeline: RankTimeline, rows: Flags, peer: Ints, *, of_job: bool) -> RankTimeline:
    """Return a rank with the peers of these rows, which were taken from places, as ranks of the job, or unknown."""
    calls = timeline.collectives
    stated = np.where(rows, peer if of_job else NONE, calls.peer)
    return timeline.with_calls(timeline.names, replace(calls, peer=stated))
