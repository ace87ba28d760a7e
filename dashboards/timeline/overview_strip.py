"""The chosen ranks' lanes, drawn: span by span where few are in view, else by the time that they cover."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.occupancy import STATES
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import BusyTime, Intervals
from overlapscope_dashboards.theme import COLOURS
from overlapscope_dashboards.timeline.bars import Corner, cause_bars, span_bars
from overlapscope_dashboards.timeline.lane_rows import Row, lower_rows
from overlapscope_dashboards.timeline.lanes import MAX_SPANS, state_cells
from overlapscope_dashboards.timeline.query import Asked
from overlapscope_dashboards.timeline.raster import STATE_COLOURS, axis_ms, typed
from overlapscope_dashboards.timeline.source import Source

OWN: Final = Corner()


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen ranks' lanes, drawn."""

    traces: list[dict[str, Any]]
    rows: list[Row]
    spans: int
    """Spans in view."""
    detailed: bool
    """Whether they are drawn one by one."""
    left_out: int
    """Lanes that are not shown."""


def strip(source: Source, asked: Asked, width: int, corner: Corner = OWN, most: int | None = None) -> Strip:
    """Draw the chosen ranks' lanes: span by span where no more than `most` are in view, else the time they cover."""
    ranks = [source.lanes(rank) for rank in asked.ranks]
    lower = lower_rows(source, ranks)
    found = [
        each.lane.in_view(asked.window.start_ns, asked.window.end_ns) if each.lane else np.empty(0, np.int64)
        for each in lower
    ]
    spans = sum(each.size for each in found)
    detailed = spans <= (MAX_SPANS if most is None else most)
    if detailed:
        traces = span_bars(source, asked, ranks, lower, found, width, corner)
        traces += cause_bars(source, asked, lower, corner)
    else:
        traces = [_lane_map(source, asked, lower, source.now.bins(asked.window, width), corner)]
    left_out = sum(each.left_out for each in ranks)
    return Strip(traces=traces, rows=lower, spans=spans, detailed=detailed, left_out=left_out)


def _lane_map(source: Source, asked: Asked, lower: Sequence[Row], bins: Ints, corner: Corner) -> dict[str, Any]:
    """Return each lane's cells, and why communication was exposed: the cause of most of that time, however short."""
    shown = [(at, row.lane) for at, row in enumerate(lower) if row.lane is not None]
    cells = np.zeros((len(lower), bins.size - 1), np.uint8)
    cells[[at for at, _ in shown]] = state_cells([lane for _, lane in shown], bins)
    for at, row in enumerate(lower):
        if row.lane is None:
            spent = cause_times(source, asked, row.rank, bins)
            cells[at] = np.where(spent.any(axis=0), spent.argmax(axis=0) + len(STATES), 0)
    return {
        "type": "heatmap", "z": typed(cells), "zmin": 0, "zmax": len(STATES) + len(CAUSES) - 1,
        "colorscale": _steps((*STATE_COLOURS, *(COLOURS[cause.colour] for cause in CAUSES.values()))),
        "showscale": False, "hoverinfo": "none", "xaxis": "x", "yaxis": "y2", "zsmooth": False, "ygap": 3,
        "name": "lanes", "y0": corner.row, "dy": 1,
    } | _cells(bins - corner.origin_ns)  # fmt: skip


def cause_times(source: Source, asked: Asked, rank: int, bins: Ints) -> Ints:
    """Return the exposed nanoseconds of each cause, a row each in the order of `CAUSES`, in each bin."""
    spent = np.zeros((len(CAUSES), bins.size - 1), np.int64)
    row_of = {cause: row for row, cause in enumerate(CAUSES)}
    for cause, starts, ends in source.causes(rank, asked.window):
        spent[row_of[cause]] = BusyTime(Intervals(starts, ends)).within(bins[:-1], bins[1:])
    return spent


def _cells(bins: Ints) -> dict[str, Any]:
    """Return where the cells lie: plotly counts from the middle of the first."""
    width = int(bins[1] - bins[0])
    return {"x0": axis_ms(int(bins[0]) + width / 2), "dx": axis_ms(width)}


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """Return a scale on which value i is colour i, without anything between."""
    edges = np.linspace(0, 1, len(colours) * 2 - 1)
    bounds = [0.0, *edges[1::2].tolist(), 1.0]
    return [[float(place), colour] for at, colour in enumerate(colours) for place in (bounds[at], bounds[at + 1])]
