"""Find which groups are pipelines, and which stage of them each rank is."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from overlapscope.timeline.columns import NONE, Flags
from overlapscope.timeline.dimensions import PIPELINE, dimension_of
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Group, RankTimeline, Run


def stage_of_ranks(run: Run) -> dict[int, int]:
    """Return the stage of every rank of a pipeline: its position in it."""
    return {rank: stage for ranks in pipelines(run) for stage, rank in enumerate(ranks)}


def pipelines(run: Run) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline in the order of its stages.

    Where neighbours have groups of their own, each of two stages, these follow each other in one pipeline. It is left
    out where they do not make one line.
    """
    groups = [group.ranks for group in run.groups if group.ranks is not None and _is_pipeline(group, run)]
    whole = [ranks for ranks in dict.fromkeys(groups) if len(ranks) != 2]
    inside = {pair for ranks in whole for pair in pairwise(ranks)}
    return [*whole, *_lines(ranks for ranks in dict.fromkeys(groups) if len(ranks) == 2 and ranks not in inside)]


def _lines(pairs: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the lines that pairs of neighbours make, each a pipeline in the order of its stages."""
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for one, other in pairs:
        after.setdefault(one, []).append(other)
        before.setdefault(other, []).append(one)
    found = []
    for first in [rank for rank in after if rank not in before]:
        line = [first]
        while len(after.get(line[-1], ())) == 1 == len(before[after[line[-1]][0]]):
            line.append(after[line[-1]][0])
        if line[-1] not in after and len(line) > 1:
            found.append(tuple(line))
    return found


def _is_pipeline(group: Group, run: Run) -> bool:
    """Return whether the group is described as a pipeline group, or its members only send to their neighbours in it and
    receive from them, as far as peers are recorded; of two, which have no others, if their messages come in the order
    of a pipeline's."""
    dimension = dimension_of(group.description)
    if dimension is not None:
        return dimension == PIPELINE
    members, found = list(group.ranks or ()), False
    for place, rank in enumerate(members):
        timeline = run.ranks.get(rank)
        if timeline is None or group.name not in timeline.names:
            continue
        calls, names = timeline.collectives, timeline.names
        own = calls.group == names.index(group.name)
        next_to = [*members[max(place - 1, 0) : place], *members[place + 1 : place + 2], NONE]
        if not all(names[code] in POINT_TO_POINT for code in unique(calls.op[own]).tolist() if code >= 0):
            return False
        if not np.isin(calls.peer[own], next_to).all():
            return False
        found |= bool(own.any()) and (len(members) > 2 or _is_of_pipeline(timeline, own))
    return found


def _is_of_pipeline(timeline: RankTimeline, calls: Flags) -> bool:
    """Return whether some of these calls were found to be a pipeline's."""
    names = timeline.names
    return PIPELINE in names and bool((timeline.collectives.dimension[calls] == names.index(PIPELINE)).any())
