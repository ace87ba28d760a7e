"""Find the groups of calls whose source names none, as traces of gloo do in a job of several groups.

A group leaves its mark in time: no member of a symmetric collective leaves it before all have begun, and two ranks of
different groups break that sooner or later (`timeline/causality.py`). The members are found where this divides the
ranks in one way only, into groups of one size; each operation on its own, since a job may gather along one dimension of
its mesh and reduce along another.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.causality import SURE, contradicted, contradicted_parts
from overlapscope.timeline.columns import NONE, Codes, Collectives, Flags, Floats, Ints
from overlapscope.timeline.hosts import share_host_clock
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import SYMMETRIC
from overlapscope.timeline.rows import sort_order, unique
from overlapscope.timeline.run import Group, RankTimeline

DIVIDED: Final = tuple(sorted(SYMMETRIC - {"all_to_all"}))
"""Operations whose members are found: from an uneven all-to-all a rank may leave early."""
FEWEST: Final = 8
"""Fewer calls than this show nothing ..."""
MOST: Final = 1024
"""... and more than this are not looked at ..."""
MOST_RANKS: Final = 128
"""... nor are more ranks than this: the effort grows with their square."""
THREADS: Final = 2
"""A group has so many worker threads in gloo, and one stream on a device: calls on more are of several groups."""
_Members = tuple[int, ...]


def with_found_groups(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> tuple[Mapping[int, RankTimeline], tuple[Group, ...]]:
    """Return the ranks with the groups of their nameless calls where these can be found, and all groups.

    A found group is one that the sources list, if only one has these members, else a new one; each is marked `found`.
    None is found unless every rank of the job was recorded: else members may be missing, and the size is not known.
    """
    if world_size is None or set(ranks) != set(range(world_size)):
        return ranks, groups
    known = {group.name: group for group in groups}
    group_of: dict[int, dict[str, Group]] = {rank: {} for rank in ranks}
    for op in DIVIDED:
        for group in _named(_divided(ranks, op), groups):
            known[group.name] = group
            for rank in group.ranks or ():
                group_of[rank][op] = group
    if not any(group_of.values()):
        return ranks, groups
    found = {rank: _with_groups(each, group_of[rank]) for rank, each in ranks.items()}
    return found, tuple(known[name] for name in sorted(known))


def _named(divided: Sequence[_Members], groups: Sequence[Group]) -> list[Group]:
    """Return the groups of a division; empty where the sources list groups, but none of these, or none of this size.

    A run's manifest may list those of its first rank alone: the others of the same dimension have its description.
    """
    everyone = sum(map(len, divided))
    sizes = {len(group.ranks or ()) if group.size is None else group.size for group in groups} - {0}
    if sizes and not sizes.issuperset(map(len, divided)):
        return []
    listed = [group for group in groups if group.ranks is not None and 1 < len(group.ranks) < everyone]
    same = {members: [each for each in listed if tuple(sorted(each.ranks or ())) == members] for members in divided}
    if listed and not any(same.values()):
        return []
    said = {each.description for found in same.values() for each in found}
    description = said.pop() if len(said) == 1 else None
    return [
        replace(found[0], found=True)
        if len(found) == 1
        else Group(name=f"ranks {list(members)}", description=description, size=len(members), ranks=members, found=True)
        for members, found in same.items()
    ]


def _divided(ranks: Mapping[int, RankTimeline], op: str) -> list[_Members]:
    """Return the groups into which the nameless calls of an operation divide the ranks that made them; empty where all
    are of one group or where it is not clear."""
    rows = {rank: own for rank, each in ranks.items() if (own := _nameless(each, op)).size}
    if not 4 <= len(rows) <= MOST_RANKS:  # fewer are not several groups of one size
        return []
    columns = _same_calls({rank: ranks[rank].collectives for rank in rows}, rows)
    if columns is None or len(columns[next(iter(columns))]) < FEWEST:
        return []
    start, end = (
        np.array([getattr(ranks[rank].collectives, side)[own[:MOST]] for rank, own in columns.items()])
        for side in ("start_ns", "end_ns")
    )
    places = _groups_in_time(start, end, one_time=share_host_clock(ranks[rank] for rank in rows))
    sizes = {int(size) for rank, own in rows.items() for size in unique(ranks[rank].collectives.group_size[own])}
    if places is None or sizes - {NONE} - {len(places[0])}:
        return []
    if any(_lanes(ranks[rank], own) > (1 if ranks[rank].has_device else THREADS) for rank, own in rows.items()):
        return []
    known = tuple(columns)
    return [tuple(sorted(known[place] for place in own)) for own in places]


def _nameless(timeline: RankTimeline, op: str) -> Codes:
    """Return the rows of a rank's timed calls of an operation that name no group, in order of time."""
    calls = timeline.collectives
    if op not in timeline.names:
        return np.empty(0, np.int32)
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    rows = np.flatnonzero((calls.op == timeline.names.index(op)) & (calls.group < 0) & timed)
    return rows[sort_order(calls.start_ns[rows], calls.end_ns[rows])].astype(np.int32)


def _lanes(timeline: RankTimeline, rows: Codes) -> int:
    """Return on how many threads or streams calls ran."""
    spans = timeline.spans
    return unique(spans.lane[np.isin(spans.collective, rows)]).size


def _same_calls(calls: Mapping[int, Collectives], rows: Mapping[int, Codes]) -> dict[int, Codes] | None:
    """Return as many rows for each rank: those of the steps of which all ranks recorded as many calls, which is all
    where no step is known and all recorded as many; None where there are none.

    As many calls are not the same calls: ranks that begin to record a step apart may record as many steps.
    """
    counts = {}
    for rank, own in rows.items():
        steps, many = np.unique(calls[rank].step[own], return_counts=True)
        counts[rank] = dict(zip(steps.tolist(), many.tolist(), strict=True))
    first, *others = counts.values()
    if all(each == first for each in others):
        return dict(rows)
    whole = [step for step in first if step != NONE and all(each.get(step) == first[step] for each in others)]
    if not whole:
        return None
    return {rank: own[np.isin(calls[rank].step[own], whole)] for rank, own in rows.items()}


def _groups_in_time(start_ns: Ints, end_ns: Ints, *, one_time: bool) -> list[list[int]] | None:
    """Return the only division of the ranks (rows) into groups of one size that their calls (columns) allow.

    None where all may be one group, and where it is not clear: where two groups contradict each other once only, though
    that may be a clock that was set (not of ranks that keep `one_time`), or where the ends of a rank agree better with
    those of another group than with those of its own.
    """
    parts = contradicted_parts(start_ns, end_ns)
    whole = contradicted(start_ns[:, None], end_ns[:, None])[:, :, 0]
    may, differ = ~whole & (parts == 0), (parts >= SURE) | (whole & one_time)
    groups = [np.flatnonzero(own).tolist() for own in np.unique(may, axis=0)]
    size = len(groups[0])
    if size in (1, may.shape[0]) or {len(each) for each in groups} != {size} or len(groups) * size != may.shape[0]:
        return None
    inside = np.zeros(may.shape, np.bool_)
    for own in groups:
        inside[np.ix_(own, own)] = True
    sure = all(differ[np.ix_(one, other)].any() for one in groups for other in groups if one is not other)
    if (inside != may).any() or not sure or not _end_with_their_own(end_ns, inside):
        return None
    return groups


def _end_with_their_own(end_ns: Ints, inside: Flags) -> bool:
    """Return whether the calls of each rank end closer to those of all its group than to those of any other rank."""
    for own, members in zip(end_ns, inside, strict=True):
        behind = end_ns - own
        scatter: Floats = np.median(np.abs(behind - np.median(behind, axis=1, keepdims=True)), axis=1)
        if scatter[members].max() >= scatter[~members].min():
            return False
    return True


def _with_groups(timeline: RankTimeline, group_of: Mapping[str, Group]) -> RankTimeline:
    """Return the timeline with the group of its nameless calls, by operation."""
    if not group_of:
        return timeline
    names = NameTable(timeline.names)
    calls = timeline.collectives
    group, group_size = calls.group.copy(), calls.group_size.copy()
    for op, each in group_of.items():
        own = (calls.group < 0) & (calls.op == names.code(op))
        group[own], group_size[own] = names.code(each.name), len(each.ranks or ())
    return timeline.with_calls(tuple(names.to_list()), replace(calls, group=group, group_size=group_size))
