"""Drop nameless calls that cannot be of one group: no member leaves a call before all have begun, and where the sources
list the groups, one of them holds all its members; of calls launched before the recording, one that later ones name."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.group_calls import named
from overlapscope.display import list_some
from overlapscope.timeline.causality import SURE, contradicted, contradicted_parts
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.hosts import share_host_clock
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

MOST_RANKS: Final = 64
MOST_CALLS: Final = 1024
"""So many of the first ones are looked at: of several groups, they have members of two."""


def drop_of_several_groups(run: Run, matching: Matching) -> Matching:
    """Remove the blocks of nameless calls paired by order whose ranks contradict each other, or that no listed group
    holds together; reasons name them.

    Where no clock can have been set between the ranks, few calls are enough.
    """
    dropped: dict[int, str] = {}
    for at, block in enumerate(matching.blocks):
        if block.by_order and block.group is None:
            of_none = _in_no_listed_group(run, block)
            if of_none or _in_no_group_of_launched_calls(run, block):
                groups = "group that the sources list" if of_none else "group of the calls launched later"
                dropped[at] = (
                    f"{named(block.group)}: {block.calls} {block.op} on ranks {list_some(block.ranks)} are not paired "
                    f"by order: no {groups} has these ranks, so they are calls of several groups"
                )
                continue
            apart = np.argwhere(contradicting(run, block.ranks, block.start_ns, block.end_ns))
            if apart.size:
                dropped[at] = _reason(block, *(block.ranks[place] for place in apart[0].tolist()))
    if not dropped:
        return matching
    lost = sum(matching.blocks[at].rows.size for at in dropped)
    return replace(
        matching,
        blocks=tuple(block for at, block in enumerate(matching.blocks) if at not in dropped),
        unmatched=matching.unmatched + lost,
        reasons=(*matching.reasons, *dropped.values()),
    )


def _in_no_listed_group(run: Run, block: MatchedCalls) -> bool:
    """Return whether each rank is in a listed group of the size that these calls state, but no such group has all.

    Any group may be meant by calls that state no size, or of sizes that are not listed.
    """
    stated = [run.ranks[rank].collectives.group_size[rows] for rank, rows in zip(block.ranks, block.rows, strict=True)]
    sizes = {size for own in stated for size in unique(own).tolist()} - {NONE}
    fitting = [
        set(group.ranks) for group in run.groups if group.ranks is not None and (not sizes or len(group.ranks) in sizes)
    ]
    return set(block.ranks) <= set().union(*fitting) and not any(set(block.ranks) <= each for each in fitting)


def _in_no_group_of_launched_calls(run: Run, block: MatchedCalls) -> bool:
    """Return whether a block holds calls launched before the recording alone, and no group that calls launched later
    name has all its ranks, though they name one on each of them."""
    launched: list[set[str]] = []
    for rank, rows in zip(block.ranks, block.rows, strict=True):
        timeline = run.ranks[rank]
        calls = timeline.collectives
        if not timeline.has_device or (calls.launch_ns[rows] != NONE).any():
            return False
        codes = unique(calls.group[calls.launch_ns != NONE])
        launched.append({timeline.names[code] for code in codes[codes >= 0].tolist()})
    known = {group.name: set(group.ranks) for group in run.groups if group.ranks is not None}
    if not all(launched) or not set().union(*launched) <= known.keys():
        return False
    return not any(set(block.ranks) <= known[name] for name in set().union(*launched))


def contradicting(run: Run, ranks: Sequence[int], start_ns: Ints, end_ns: Ints) -> Flags:
    """Return which two of the first ranks, by their places, cannot have made these calls together; a rank a row."""
    start, end = (times[:MOST_RANKS, :MOST_CALLS] for times in (start_ns, end_ns))
    if share_host_clock(run.ranks[rank] for rank in ranks):
        whole: Flags = contradicted(start[:, None], end[:, None])[:, :, 0]
        return whole
    return contradicted_parts(start, end) >= SURE


def _reason(block: MatchedCalls, one: int, other: int) -> str:
    return (
        f"{named(block.group)}: {block.calls} {block.op} on ranks {list_some(block.ranks)} are not paired by order: "
        f"some ended on rank {one} before they began on rank {other}, and others the other way round, by more than "
        "clocks explain: they are calls of several groups, or not the same calls"
    )
