"""Draw the lanes of the selected ranks: single spans if few are in view, else the time that they cover."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import BusyTime, Intervals
from overlapscope_dashboards.theme import COLOURS
from overlapscope_dashboards.timeline.bars import DrawingOrigin, cause_bars, span_bars, track_bars
from overlapscope_dashboards.timeline.lane_rows import LaneRow, lower_rows
from overlapscope_dashboards.timeline.lanes import MAX_SPANS, state_cells
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.raster import STATE_COLOURS, axis_ms, plotly_array
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.tracks import TRACK_COLOURS

RUN_ORIGIN: Final = DrawingOrigin()


class DrawnLanes(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of the selected ranks, as plotly traces."""

    traces: list[dict[str, Any]]
    rows: list[LaneRow]
    spans: int
    """Spans in view."""
    detailed: bool
    """Whether spans are drawn one by one."""
    left_out: int
    """Number of lanes not shown."""


def draw_lanes(
    source: TimelineSource,
    query: TimelineQuery,
    width: int,
    origin: DrawingOrigin = RUN_ORIGIN,
    most: int | None = None,
) -> DrawnLanes:
    """Return the selected ranks' lanes: single spans if at most `most` are in view, else the time that they cover."""
    ranks = [source.lanes(rank) for rank in query.ranks]
    lower = lower_rows(source, query)
    found = [
        each.lane.in_view(query.window.start_ns, query.window.end_ns) if each.lane else np.empty(0, np.int64)
        for each in lower
    ]
    spans = sum(each.size for each in found)
    detailed = spans <= (MAX_SPANS if most is None else most)
    if detailed:
        traces = span_bars(source, query, ranks, lower, found, width, origin)
        traces += cause_bars(source, query, lower, origin)
    else:
        traces = [_lane_map(source, query, lower, source.snapshot.bins(query.window, width), origin)]
    if any(row.track is not None for row in lower):
        bars, all_drawn = track_bars(query, lower, width, origin)
        cells = [] if all_drawn else [_track_map(lower, source.snapshot.bins(query.window, width), origin)]
        traces = [*cells, *traces, *bars]
    left_out = sum(each.left_out for each in ranks)
    return DrawnLanes(traces=traces, rows=lower, spans=spans, detailed=detailed, left_out=left_out)


def _lane_map(
    source: TimelineSource, query: TimelineQuery, lower: Sequence[LaneRow], bins: Ints, origin: DrawingOrigin
) -> dict[str, Any]:
    """Return a heat map of the lanes, and in the rows without a lane the cause with the most exposed time."""
    shown = [(at, row.lane) for at, row in enumerate(lower) if row.lane is not None]
    cells = np.zeros((len(lower), bins.size - 1), np.uint8)
    cells[[at for at, _ in shown]] = state_cells([lane for _, lane in shown], bins)
    for at, row in enumerate(lower):
        if row.is_causes:
            spent = cause_times(source, query, row.rank, bins)
            cells[at] = np.where(spent.any(axis=0), spent.argmax(axis=0) + len(STATES), 0)
    return {
        "type": "heatmap", "z": plotly_array(cells), "zmin": 0, "zmax": len(STATES) + len(CAUSES) - 1,
        "colorscale": _steps((*STATE_COLOURS, *(COLOURS[cause.colour] for cause in CAUSES.values()))),
        "showscale": False, "hoverinfo": "none", "xaxis": "x", "yaxis": "y2", "zsmooth": False, "ygap": 3,
        "name": "lanes", "y0": origin.row, "dy": 1,
    } | _cells(bins - origin.origin_ns)  # fmt: skip


def _track_map(lower: Sequence[LaneRow], bins: Ints, origin: DrawingOrigin) -> dict[str, Any]:
    """Return a heat map of the host threads and the critical path: in a cell the colour with the most time."""
    cells = np.zeros((len(lower), bins.size - 1), np.uint8)
    for at, row in enumerate(lower):
        if row.track is not None:
            cells[at] = row.track.cells(bins)
    return {
        "type": "heatmap", "z": plotly_array(cells), "zmin": 0, "zmax": len(TRACK_COLOURS),
        "colorscale": _steps(("rgba(0,0,0,0)", *(COLOURS[each] for each in TRACK_COLOURS))),
        "showscale": False, "hoverinfo": "none", "xaxis": "x", "yaxis": "y2", "zsmooth": False, "ygap": 3,
        "name": "tracks", "y0": origin.row, "dy": 1,
    } | _cells(bins - origin.origin_ns)  # fmt: skip


def cause_times(source: TimelineSource, query: TimelineQuery, rank: int, bins: Ints) -> Ints:
    """Return the exposed nanoseconds by cause and bin: shape (len(CAUSES), bins)."""
    spent = np.zeros((len(CAUSES), bins.size - 1), np.int64)
    row_of = {cause: row for row, cause in enumerate(CAUSES)}
    for cause, starts, ends in source.causes(rank, query.window):
        spent[row_of[cause]] = BusyTime(Intervals(starts, ends)).within(bins[:-1], bins[1:])
    return spent


def _cells(bins: Ints) -> dict[str, Any]:
    """Return position and width of the cells; plotly's `x0` is the middle of the first cell."""
    width = int(bins[1] - bins[0])
    return {"x0": axis_ms(int(bins[0]) + width / 2), "dx": axis_ms(width)}


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale on which value i has colour i, without interpolation."""
    edges = np.linspace(0, 1, len(colours) * 2 - 1)
    bounds = [0.0, *edges[1::2].tolist(), 1.0]
    return [[float(place), colour] for at, colour in enumerate(colours) for place in (bounds[at], bounds[at + 1])]
