"""Name the group of sends and receives whose source names none, from the groups that the sources list.

torch writes the places of both ranks in their group beside such a call (`nccl:send 0->1`), or the ranks themselves are
known: the group is one that holds them at these places. Where several do, it is the one described as a pipeline, unless
another is described as of contexts or experts, whose ranks exchange data in such calls, too. Where no group is listed,
the places are ranks of the job if that fits on all recorded ranks.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import CONTEXT, EXPERT, PIPELINE, dimension_of
from overlapscope.timeline.names import NameTable, rows_named
from overlapscope.timeline.operations import SEND_OPS
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Group, RankTimeline

PLACES: Final = re.compile(r"^[a-z]*ccl:(?P<op>send|recv) (?P<own>\d{1,9})(?:->|<-)(?P<peer>\d{1,9})$")
"""torch's range around a send or receive: `pointToPoint` in ProcessGroupNCCL.cpp."""


def with_message_groups(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> tuple[Mapping[int, RankTimeline], tuple[Group, ...]]:
    """Return the ranks with group and peer of their nameless messages where one listed group is meant, and all groups.

    Where no group is listed, it is of both ranks of a job of two, and of the job's first ranks where places are these
    (`_of_first_ranks`). All members with such messages must mean the same
    group: both ends of a message have one name, or none.
    """
    nameless = {rank: rows for rank, each in ranks.items() if (rows := _nameless(each)).any()}
    if not nameless:
        return ranks, groups
    listed = groups
    if not any(group.ranks for group in groups):
        both = Group(name="ranks [0, 1]", size=2, ranks=(0, 1))
        listed = (both,) if world_size == 2 else _of_first_ranks({rank: ranks[rank] for rank in nameless}, world_size)
    meant = {rank: _meant(ranks[rank], rows, listed) for rank, rows in nameless.items()}
    named = {rank: group for rank, group in meant.items() if group is not None and _agree(group, meant)}
    known = {group.name: group for group in (*map(_without_guess, named.values()), *groups)}
    found = {rank: _named(each, nameless[rank], named[rank]) if rank in named else each for rank, each in ranks.items()}
    return found, tuple(known[name] for name in sorted(known))


def _nameless(timeline: RankTimeline) -> Flags:
    """Return which calls are sends or receives without a group, and with these, exchanges without one."""
    calls, names = timeline.collectives, timeline.names
    messages: Flags = rows_named(calls.op, names, SEND_OPS.__contains__) & (calls.group < 0)
    exchanges = rows_named(calls.op, names, "send_recv".__eq__) & (calls.group < 0)
    return messages | exchanges if messages.any() else messages


def _of_first_ranks(ranks: Mapping[int, RankTimeline], world_size: int | None) -> tuple[Group, ...]:
    """Return a group of the job's ranks from 0 on in which each of these ranks has its own number as its place, and
    each message between two of them is stated on both; empty where there is none.

    A group with another rank missing among the first ones gives one of its ranks another place than its number: so all
    peers are ranks of the job up to the last place of a recorded rank, and a peer beyond it leaves that unknown. Its
    size is known where these are all ranks of the job: else ranks beyond them may be members.
    """
    stated = {rank: set(_places(timeline).values()) for rank, timeline in ranks.items()}
    every = set().union(*stated.values())
    between = {(op, own, peer) for op, own, peer in every if peer in ranks}
    mirrored = {("recv" if op == "send" else "send", peer, own) for op, own, peer in between}
    last = max(stated)
    if not between or mirrored != between or not all(stated.values()):
        return ()
    if any(own != rank for rank, places in stated.items() for _, own, _ in places):
        return ()
    every_rank = world_size == last + 1
    name = f"ranks 0 to {last}" if every_rank else f"ranks 0 to {last} or more"
    return (Group(name=name, size=world_size if every_rank else None, ranks=tuple(range(last + 1))),)


def _without_guess(group: Group) -> Group:
    """Return a group without its members where it may have more of them."""
    return group if group.size is not None else replace(group, ranks=None)


def _meant(timeline: RankTimeline, rows: Flags, groups: Sequence[Group]) -> Group | None:
    """Return the only group that a rank's messages fit, or of several the only one of a pipeline."""
    peers = set(unique(timeline.collectives.peer[rows]).tolist()) - {NONE}
    places = {(own, peer) for _, own, peer in _places(timeline).values()}
    fit = []
    for group in groups:
        members = group.ranks or ()
        if len(members) < 2 or timeline.rank not in members or not peers <= {*members} - {timeline.rank}:
            continue
        here = members.index(timeline.rank)
        if all(own == here and peer != own and peer < len(members) for own, peer in places):
            fit.append(group)
    if len(fit) == 1:
        return fit[0]
    said = [dimension_of(group.description) for group in fit]
    pipelines = [group for group, dimension in zip(fit, said, strict=True) if dimension == PIPELINE]
    if CONTEXT in said or EXPERT in said:  # a ring, or what experts exchange
        return None
    return pipelines[0] if len(pipelines) == 1 else None


def _agree(group: Group, meant: Mapping[int, Group | None]) -> bool:
    return all(meant[rank] == group for rank in group.ranks or () if rank in meant)


def _places(timeline: RankTimeline) -> dict[int, tuple[str, int, int]]:
    """Return operation, own place and the peer's place by the code of each range that states them."""
    found = {
        code: PLACES.match(timeline.names[code]) for code in unique(timeline.annotations.name).tolist() if code >= 0
    }
    return {code: (each["op"], int(each["own"]), int(each["peer"])) for code, each in found.items() if each}


def messages_in_ranges(timeline: RankTimeline) -> tuple[Ints, Ints] | None:
    """Return for each call the own place and the peer's, as the range says in which it was launched, NONE outside such;
    None where the rank has no such ranges."""
    if not any(map(PLACES.match, timeline.names)):
        return None
    calls, notes = timeline.collectives, timeline.annotations
    own, peer = np.full(calls.op.size, NONE, np.int64), np.full(calls.op.size, NONE, np.int64)
    for code, (op, here, there) in _places(timeline).items():
        rows = np.flatnonzero(notes.name == code)
        starts, ends = np.sort(notes.start_ns[rows]), np.sort(notes.end_ns[rows])
        at = np.searchsorted(starts, calls.launch_ns, side="right") - 1
        inside = (at >= 0) & (calls.launch_ns < ends[np.maximum(at, 0)])
        inside &= rows_named(calls.op, timeline.names, op.__eq__)
        own[inside], peer[inside] = here, there
    return own, peer


def _named(timeline: RankTimeline, rows: Flags, chosen: Group) -> RankTimeline:
    names = NameTable(timeline.names)
    calls = timeline.collectives
    group = np.where(rows, names.code(chosen.name), calls.group).astype(calls.group.dtype)
    peer = np.where(rows & (calls.peer == NONE), _peers(timeline, chosen.ranks or ()), calls.peer)
    return timeline.with_calls(tuple(names.to_list()), replace(calls, group=group, peer=peer))


def _peers(timeline: RankTimeline, members: Sequence[int]) -> Ints:
    """Return the peer of each call by the range in which it was launched; NONE outside them."""
    stated = messages_in_ranges(timeline)
    if stated is None:
        return np.full(timeline.collectives.op.size, NONE, np.int64)
    return np.append(np.array(members, np.int64), NONE)[np.where(stated[1] == NONE, -1, stated[1])]
