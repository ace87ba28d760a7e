"""The rows of the figure's lower part: the lanes of each selected rank, then a row with causes of exposed time."""

from collections.abc import Sequence

import msgspec

from overlapscope_dashboards.timeline.lanes import RankLanes, SpanLane
from overlapscope_dashboards.timeline.source import TimelineSource


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the lower part: a lane of a rank, or the causes of its exposed time (`lane` is None)."""

    rank: int
    lane: SpanLane | None
    label: str


def lower_rows(source: TimelineSource, ranks: Sequence[RankLanes]) -> list[LaneRow]:
    """Return the rows of the lower part: each rank's lanes, then its causes of exposed time."""
    rows: list[LaneRow] = []
    for each in ranks:
        rows += [LaneRow(rank=each.rank, lane=lane, label=lane.label) for lane in each.lanes]
        if source.figures is not None:
            rows.append(LaneRow(rank=each.rank, lane=None, label="why exposed"))
    return rows
