"""Find ranks that one process drives: each has the calls to its own device."""

from collections.abc import Mapping
from typing import NamedTuple

from overlapscope.timeline.columns import HOST
from overlapscope.timeline.rows import Column, unique
from overlapscope.timeline.run import RankTimeline


class Process(NamedTuple):
    """A process as its source names it."""

    source: str
    """File that recorded it."""
    number: str
    """Its number there."""


def processes_of(timeline: RankTimeline) -> frozenset[Process]:
    """Return the processes of a rank's threads."""
    sources = _names(timeline, timeline.recordings.source)
    numbers = _names(timeline, timeline.lanes.process[timeline.lanes.kind == HOST])
    return frozenset(Process(source, number) for source in sources for number in numbers)


def _names(timeline: RankTimeline, codes: Column) -> set[str]:
    names = (timeline.name(code) for code in unique(codes).tolist())
    return {name for name in names if name is not None}


def ranks_of_one_process(ranks: Mapping[int, RankTimeline]) -> list[tuple[int, ...]]:
    """Return the ranks, in their order, of each process that is several of them."""
    of_process: dict[Process, list[int]] = {}
    for rank in sorted(ranks):
        for process in processes_of(ranks[rank]):
            of_process.setdefault(process, []).append(rank)
    found = {tuple(each) for each in of_process.values() if len(each) > 1}
    return sorted(each for each in found if not any(set(each) < set(other) for other in found))
