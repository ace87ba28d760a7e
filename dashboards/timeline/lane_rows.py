"""The rows of the figure's lower part: of each selected rank its host threads, its lanes, and why it was exposed.

Above them is the critical path. It and host threads are shown on demand.
"""

from typing import Final

import msgspec

from overlapscope_dashboards.timeline.lanes import SpanLane
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.tracks import HOST, PATH, Track

NO_RANK: Final = -1


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the lower part: a lane or a track of a rank, or the causes of its exposed time (neither of both)."""

    rank: int
    """NO_RANK for the critical path, which leads through all."""
    lane: SpanLane | None = None
    track: Track | None = None
    label: str

    @property
    def is_causes(self) -> bool:
        """Whether this is the row of causes."""
        return self.lane is None and self.track is None

    @property
    def place(self) -> tuple[int, int]:
        """Rank, and the row in its `Lanes` that this stands for; -1 for none."""
        return self.rank, self.lane.lane if self.lane else self.track.lane if self.track else -1


def lower_rows(source: TimelineSource, query: TimelineQuery) -> list[LaneRow]:
    """Return the rows of the lower part."""
    rows: list[LaneRow] = []
    if PATH in query.show and source.path is not None:
        rows.append(LaneRow(rank=NO_RANK, track=source.path, label=source.path.label))
    for rank in query.ranks:
        tracks = source.host(rank).tracks if HOST in query.show else ()
        rows += [LaneRow(rank=rank, track=track, label=track.label) for track in tracks]
        rows += [LaneRow(rank=rank, lane=lane, label=lane.label) for lane in source.lanes(rank).lanes]
        if source.figures is not None:
            rows.append(LaneRow(rank=rank, label="why exposed"))
    return rows
