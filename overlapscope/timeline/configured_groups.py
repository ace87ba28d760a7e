"""Name the group of calls whose source states its size alone, from the groups that the sources list.

Traces of older profilers write how many members the group of a call has, but not which group it is, while the metadata
of the same trace lists all groups with their ranks. Where all listed groups of that size that hold a rank have the same
members, these are the members of its call. Sends and receives follow from their peers (`timeline/message_groups.py`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.message_groups import with_message_groups
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Group, RankTimeline

_Chosen = Mapping[int, Group]
"""The group of a rank's nameless calls, by the size that they state."""


def with_configured_groups(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> tuple[Mapping[int, RankTimeline], tuple[Group, ...]]:
    """Return the ranks with the groups of their nameless calls where the listed ones leave one choice, and all groups.

    Several listed groups of the same members are one here, of a name of its own, if each rank makes these calls on one
    stream: else they may be in another order on each rank. Groups of all ranks are left out, whose members are known
    from their size; and so are calls without a size, which may be of any, and groups that other calls name: these calls
    have sequence numbers, which nameless ones lack. Sends and receives without a size are of the group of their peers.
    """
    return with_message_groups(*_with_groups_of_sizes(ranks, groups, world_size), world_size)


def _with_groups_of_sizes(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> tuple[Mapping[int, RankTimeline], tuple[Group, ...]]:
    listed = [group for group in groups if group.ranks is not None and 1 < len(group.ranks) != world_size]
    if not listed:
        return ranks, groups
    stated = {rank: _stated_sizes(each) for rank, each in ranks.items()}
    if not any(stated.values()):
        return ranks, groups
    used = {
        each.names[code] for each in ranks.values() for code in unique(each.collectives.group).tolist() if code >= 0
    }
    known = {group.name: group for group in groups}
    chosen: dict[int, dict[int, Group]] = {}
    for members, size in sorted({(group.ranks or (), len(group.ranks or ())) for group in listed}):
        callers = [rank for rank in members if size in stated.get(rank, ())]
        same = [group for group in listed if group.ranks == members]
        rivals = [group for group in listed if len(group.ranks or ()) == size and group.ranks != members]
        elsewhere = {rank for group in rivals for rank in group.ranks or ()}
        if not callers or elsewhere.intersection(callers) or used.intersection(group.name for group in same):
            continue
        if len(same) > 1 and any(_streams(ranks[rank], size) > 1 for rank in callers):
            continue
        group = _of(same)
        known[group.name] = group
        for rank in callers:
            chosen.setdefault(rank, {})[size] = group
    if not chosen:
        return ranks, groups
    named = {rank: _named(each, chosen[rank]) if rank in chosen else each for rank, each in ranks.items()}
    return named, tuple(known[name] for name in sorted(known))


def _stated_sizes(timeline: RankTimeline) -> set[int]:
    calls = timeline.collectives
    return set(unique(calls.group_size[calls.group < 0]).tolist()) - {NONE}


def _streams(timeline: RankTimeline, size: int) -> int:
    """Return on how many streams or threads the nameless calls of a size ran."""
    calls, spans = timeline.collectives, timeline.spans
    rows = np.flatnonzero((calls.group < 0) & (calls.group_size == size))
    return unique(spans.lane[np.isin(spans.collective, rows)]).size


def _of(same: Sequence[Group]) -> Group:
    """Return the group of listed ones with the same members."""
    if len(same) == 1:
        return same[0]
    said = {each.description for each in same}
    return replace(
        same[0], name=f"ranks {list(same[0].ranks or ())}", description=said.pop() if len(said) == 1 else None
    )


def _named(timeline: RankTimeline, chosen: _Chosen) -> RankTimeline:
    names = NameTable(timeline.names)
    calls = timeline.collectives
    group = calls.group.copy()
    for size, each in chosen.items():
        group[(calls.group < 0) & (calls.group_size == size)] = names.code(each.name)
    return timeline.with_calls(tuple(names.to_list()), replace(calls, group=group))
