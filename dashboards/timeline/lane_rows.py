"""The rows of the figure's lower part: the chosen ranks' lanes, each rank's followed by why it was exposed."""

from collections.abc import Sequence

import msgspec

from overlapscope_dashboards.timeline.lanes import Lane, RankLanes
from overlapscope_dashboards.timeline.source import Source


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the lower part: a lane of a rank, or why its communication was exposed (`lane` is None)."""

    rank: int
    lane: Lane | None
    label: str


def lower_rows(source: Source, ranks: Sequence[RankLanes]) -> list[Row]:
    """Return the rows of the lower part: each rank's lanes, then why it was exposed."""
    rows: list[Row] = []
    for each in ranks:
        rows += [Row(rank=each.rank, lane=lane, label=lane.label) for lane in each.lanes]
        if source.figures is not None:
            rows.append(Row(rank=each.rank, lane=None, label="why exposed"))
    return rows
