"""The figure of the timeline: the heat map above, the lanes of the selected ranks below, on one time axis.

The axis is in milliseconds from the run's start. The figure contains only rounded floats and small integers; exact
times stay on the server, which is asked for them on hover.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.occupancy import spent_together
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.theme import GRID, faded, figure, plain
from overlapscope_dashboards.timeline.heat_map import map_cells, map_row_pixels, map_rows
from overlapscope_dashboards.timeline.lane_drawing import draw_lanes
from overlapscope_dashboards.timeline.lane_rows import NO_RANK, LaneRow, lower_rows
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.raster import Raster, axis_ms, map_raster
from overlapscope_dashboards.timeline.source import AlignedStates, TimelineSource

LANE_PIXELS: Final = 24
GAP_PIXELS: Final = 28
TOP_PIXELS: Final = 24
BOTTOM_PIXELS: Final = 32
MARGIN_PIXELS: Final = GAP_PIXELS + TOP_PIXELS + BOTTOM_PIXELS
LANES: Final = 2
"""Lanes assumed for a rank before they are read: a compute stream and a communication stream."""
WIDTH: Final = 1_100
"""Pixels of the time axis until the browser sends its width."""
MAX_STEPS: Final = 40
"""Most steps in view for which each is marked."""
LABEL_LETTERS: Final = 18
"""Most characters of the label of a row."""
LABEL_PIXELS: Final = 48
"""Room that the label of a step needs."""
TICK_SPACING: Final = {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
"""Transparent ticks, as space between rows and their labels."""
_AXES: Final = tuple(
    {"type": "scatter", "x": [None], "y": [None], "xaxis": "x", "yaxis": axis, "hoverinfo": "skip", "showlegend": False,
     "name": "axes"}
    for axis in ("y", "y2")
)  # fmt: skip
"""Empty traces on both axes, because plotly draws no axis without a trace."""


class DrawnTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its properties."""

    figure: dict[str, Any]
    rasters: list[Raster]
    spent_ns: list[int]
    """Time in the window by state, summed over all ranks."""
    height: int
    rows: list[LaneRow]
    """Of the lower part."""
    spans: int
    """Spans in view on the selected ranks."""
    detailed: bool
    """Whether spans are drawn one by one."""
    left_out: int
    """Number of lanes not shown."""


def draw(source: TimelineSource, query: TimelineQuery, width: int) -> DrawnTimeline:
    """Return the figure of a view; `width` is the time axis in pixels."""
    snapshot = source.snapshot
    bins = snapshot.bins(query.window, width)
    spent = snapshot.spent(bins)
    rows = map_rows(len(source.ranks))
    lanes = draw_lanes(source, query, width)
    upper = max(len(rows), 1) * map_row_pixels(len(rows))
    below = len(lanes.rows) * LANE_PIXELS
    layout = _layout(source, query, rows, lanes.rows, upper, below, width)
    return DrawnTimeline(
        figure=figure([*_AXES, *lanes.traces], layout=layout),
        rasters=[map_raster(map_cells(spent, query.mode), query.mode, bins)],
        spent_ns=_in_view(snapshot, query, bins, spent),
        height=upper + below + MARGIN_PIXELS,
        rows=lanes.rows,
        spans=lanes.spans,
        detailed=lanes.detailed,
        left_out=lanes.left_out,
    )


def expected_height(source: TimelineSource, query: TimelineQuery) -> int:
    """Return the height of a figure before it is drawn; an estimate for a large run, whose lanes are not read yet."""
    rows = len(map_rows(len(source.ranks)))
    lower = len(query.ranks) * LANES if source.large else len(lower_rows(source, query))
    return rows * map_row_pixels(rows) + lower * LANE_PIXELS + MARGIN_PIXELS


def _in_view(snapshot: AlignedStates, query: TimelineQuery, bins: Ints, spent: Ints) -> list[int]:
    """Return the times in the window: those of the bins without the parts that extend beyond its ends."""
    begin, end = (each + snapshot.origin_ns for each in (query.window.start_ns, query.window.end_ns))
    before = spent_together(snapshot.occupancy, int(bins[0]) + snapshot.origin_ns, begin)
    after = spent_together(snapshot.occupancy, end, int(bins[-1]) + snapshot.origin_ns)
    inside: list[int] = (spent.sum(axis=(0, 2)) - before - after).tolist()
    return inside


def _layout(
    source: TimelineSource,
    query: TimelineQuery,
    rows: Sequence[range],
    lower: Sequence[LaneRow],
    upper: int,
    below: int,
    width: int,
) -> dict[str, Any]:
    inside = upper + GAP_PIXELS + below
    window = [axis_ms(query.window.start_ns), axis_ms(query.window.end_ns)]
    shapes, notes = _step_marks(source, query, width)
    first = [at for at, row in enumerate(lower) if at == 0 or lower[at - 1].rank != row.rank]
    shapes += [
        {"type": "line", "xref": "paper", "yref": "y2", "x0": 0, "x1": 1, "y0": at - 0.5, "y1": at - 0.5,
         "line": {"color": GRID, "width": 1}}
        for at in first[1:]
    ]  # fmt: skip
    step = max(len(rows) // 12, 1)
    shown = range(0, len(rows), step)
    return {
        "margin": {"l": 148, "r": 12, "t": TOP_PIXELS, "b": BOTTOM_PIXELS},
        "dragmode": "pan",
        "uirevision": f"{source.version}",
        "barmode": "overlay",
        "hoverdistance": 1,
        "shapes": shapes,
        "annotations": notes,
        "xaxis": {
            "range": window, "fixedrange": False, "anchor": "y2", "ticksuffix": " ms", "showgrid": True,
            "ticks": "outside", "ticklen": 4, "tickcolor": GRID, "nticks": 10, "separatethousands": True,
            "exponentformat": "none", "automargin": False,
        },
        "yaxis": {
            "domain": [(below + GAP_PIXELS) / inside, 1], "range": [len(rows) - 0.5, -0.5], "fixedrange": True,
            "tickvals": list(shown), "ticktext": [f"rank {source.ranks[rows[at][0]]}" for at in shown],
            "showgrid": False, "automargin": False, **TICK_SPACING,
        },
        "yaxis2": {
            "domain": [0, below / inside], "range": [len(lower) - 0.5, -0.5], "fixedrange": True, "showgrid": False,
            "tickvals": list(range(len(lower))),
            "ticktext": [_row_label(row, is_first=at in first) for at, row in enumerate(lower)],
            "zeroline": False, "linecolor": GRID, "automargin": False, "anchor": "x", **TICK_SPACING,
        },
    }  # fmt: skip


def _row_label(row: LaneRow, *, is_first: bool) -> str:
    label = row.label if len(row.label) <= LABEL_LETTERS else row.label[: LABEL_LETTERS - 1] + "…"
    return (f"<b>{row.rank}</b>  " if is_first and row.rank != NO_RANK else "") + plain(label)


def _step_marks(
    source: TimelineSource, query: TimelineQuery, width: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return marks (lines, labels) of the step starts of the first selected rank; a label where there is room for it.

    The label of a step that began before the window stands at its begin.
    """
    inside = [
        (step.step, start)
        for step, start, end in source.steps(query.ranks[0])
        if end > query.window.start_ns and start < query.window.end_ns
    ]
    if len(inside) > MAX_STEPS:
        return [], []
    lines = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": axis_ms(start), "x1": axis_ms(start), "y0": 0, "y1": 1,
         "line": {"color": faded("idle", 0.9), "width": 1, "dash": "dot"}, "name": "step"}
        for _, start in inside
    ]  # fmt: skip
    starts = [max(start, query.window.start_ns) for _, start in inside]
    rooms = np.diff([*starts, query.window.end_ns]) * width / query.window.length_ns
    notes = [
        {"x": axis_ms(start), "y": 1, "xref": "x", "yref": "paper",
         "text": f"step {number}", "showarrow": False, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}}
        for (number, _), start, room in zip(inside, starts, rooms.tolist(), strict=True) if room >= LABEL_PIXELS
    ]  # fmt: skip
    return lines, notes
