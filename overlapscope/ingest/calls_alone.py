"""A rank's calls in order, and nothing else, as a timeline: a log has no times of device work."""

from overlapscope.timeline.columns import Annotations, Collectives, Lanes, Recordings, Spans, Steps, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline


def calls_alone(
    calls: Collectives, names: NameTable, *, rank: int, source: int, has_device: bool, truncated: bool = False
) -> RankTimeline:
    """Give the timeline; `source` is the code of the log's name among `names`."""
    return RankTimeline(
        rank=rank,
        basis="log",
        has_device=has_device,
        recordings=make(Recordings, 1, source=source, truncated=truncated),
        spans=make(Spans, 0),
        collectives=calls,
        steps=make(Steps, 0),
        lanes=make(Lanes, 0),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )
