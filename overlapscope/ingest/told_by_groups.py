"""What the process groups of a job tell of its calls: the size of the group, and which way of splitting it serves."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.run import Group, RankTimeline


def told_by_groups(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> dict[int, RankTimeline]:
    """Give the timelines with what the groups tell of calls that their own sources do not."""
    sized = {rank: _with_sizes(timeline, groups) for rank, timeline in ranks.items()}
    return with_dimensions(sized, groups, world_size)


def _with_sizes(timeline: RankTimeline, groups: tuple[Group, ...]) -> RankTimeline:
    """Fill the sizes that a rank's own source does not tell, so that one group's calls are of one kind on all ranks."""
    sizes = {group.name: group.size for group in groups if group.size is not None}
    calls = timeline.collectives
    of_name = np.array([sizes.get(name, NONE) for name in timeline.names] + [NONE], np.int64)
    told = np.where(calls.group_size == NONE, of_name[calls.group], calls.group_size)
    return replace(timeline, collectives=replace(calls, group_size=told))
