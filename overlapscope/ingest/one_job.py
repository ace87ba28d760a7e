"""Whether the recordings that were put together can be of one job: what they say of groups, and when they were made.

These are questions to the user, not errors: which of the files do not belong cannot be told.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from overlapscope.display_path import shown
from overlapscope.ingest.reading import Reading
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.listed import listed
from overlapscope.timeline.run import UNKNOWN_RANK

DAY_NS: Final = 24 * 3600 * 10**9
"""Recordings of one rank further apart than this are asked about."""


def doubts(readings: Sequence[tuple[Path, Reading]]) -> list[str]:
    """Say why the readings may be of different jobs; nothing where nothing contradicts it. One of each kind."""
    return [*_groups_that_differ(readings), *_far_apart(readings)]


def _groups_that_differ(readings: Sequence[tuple[Path, Reading]]) -> Iterator[str]:
    """Find a group of which a rank says that another is a member, who gives the group of that name other members."""
    said: dict[str, dict[tuple[int, ...], dict[int, Path]]] = {}
    for path, reading in readings:
        ranks = {timeline.rank for timeline in reading.timelines}
        if len(ranks) != 1 or UNKNOWN_RANK in ranks:
            continue
        for group in reading.groups:
            if group.ranks is not None:
                said.setdefault(group.name, {}).setdefault(group.ranks, {}).setdefault(next(iter(ranks)), path)
    for name, members in said.items():
        for one, other in _pairs_of(members):
            claimed = sorted(set(one) & members[other].keys() & set(other))
            if claimed:
                here, there = next(iter(members[one].items())), members[other][claimed[0]]
                yield (
                    f"group {name} is of ranks {listed(one)} in {shown(here[1])}, and of ranks {listed(other)} in "
                    f"{shown(there)}, though rank {claimed[0]} is in both: are they of one job?"
                )
                return


def _pairs_of(
    members: Mapping[tuple[int, ...], Mapping[int, Path]],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Give the pairs of sets of ranks that share one."""
    seen: dict[int, tuple[int, ...]] = {}
    for ranks in members:
        for rank in ranks:
            if rank in seen and seen[rank] != ranks:
                yield seen[rank], ranks
                yield ranks, seen[rank]
            seen.setdefault(rank, ranks)


def _far_apart(readings: Sequence[tuple[Path, Reading]]) -> Iterator[str]:
    windows: dict[int, list[tuple[int, int, Path]]] = {}
    for path, reading in readings:
        for timeline in reading.timelines:
            table = timeline.recordings
            if timeline.rank != UNKNOWN_RANK and size(table) and NONE not in (table.start_ns.min(), table.end_ns.min()):
                spanned = (int(table.start_ns.min()), int(table.end_ns.max()), path)
                windows.setdefault(timeline.rank, []).append(spanned)
    for rank, theirs in sorted(windows.items()):
        for before, after in pairwise(sorted(theirs)):
            if after[0] - before[1] > DAY_NS:
                yield (
                    f"rank {rank} was recorded in {shown(before[2])}, and in {shown(after[2])} "
                    f"{(after[0] - before[1]) / DAY_NS:.1f} days later: are they of one job?"
                )
                return
