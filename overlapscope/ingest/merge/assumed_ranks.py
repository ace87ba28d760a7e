"""Take back assumed ranks that cannot be right: a rank is recorded once at a time."""

from collections import defaultdict
from collections.abc import Mapping

from msgspec.structs import replace

from overlapscope.ingest.merge.jobs import Readings
from overlapscope.timeline.columns import size
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline


def without_clashing(readings: Readings, ranked: Readings, given: Mapping[str, int]) -> Readings:
    """Return `readings`, those of one rank that is only assumed without it where another timeline has it at that time.

    Processes that each see one device all have device 0, whatever their ranks. `ranked` holds the readings in the same
    order with the ranks that they would have; a rank in `given`, by file name, is the user's and no assumption.
    Returns `readings` itself where none clashes.
    """
    holders: dict[int, list[RankTimeline]] = defaultdict(list)
    for _, reading in ranked:
        for timeline in reading.timelines:
            if timeline.rank != UNKNOWN_RANK and timeline.basis != "log" and size(timeline.recordings):
                holders[timeline.rank].append(timeline)
    clashing = set()
    for at, (path, reading) in enumerate(ranked):
        if reading.ranks_assumed and len(reading.timelines) == 1 and path.name not in given and "" not in given:
            (own,) = reading.timelines
            if size(own.recordings) and any(_at_once(own, each) for each in holders[own.rank] if each is not own):
                clashing.add(at)
    if not clashing:
        return readings
    return [
        (path, replace(each, timelines=(replace(each.timelines[0], rank=UNKNOWN_RANK),), ranks_assumed=False))
        if at in clashing
        else (path, each)
        for at, (path, each) in enumerate(readings)
    ]


def _at_once(one: RankTimeline, other: RankTimeline) -> bool:
    """Return whether the times of two timelines overlap."""
    first, then = sorted((one.recordings, other.recordings), key=lambda each: int(each.start_ns.min()))
    return bool(then.start_ns.min() < first.end_ns.max())
