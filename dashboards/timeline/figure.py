"""The figure of the timeline: the heat map above, the chosen ranks' lanes below, on one axis of time.

Times on the axis are milliseconds from the run's begin. What cells and bars hold is small integers and floats counted
from there: exact times stay here, and are asked for when something is pointed at.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.occupancy import spent_together
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.theme import GRID, figure, plain
from overlapscope_dashboards.timeline.heat_map import heat, map_row_pixels, map_rows
from overlapscope_dashboards.timeline.lane_rows import Row, lower_rows
from overlapscope_dashboards.timeline.overview_strip import strip
from overlapscope_dashboards.timeline.query import Asked
from overlapscope_dashboards.timeline.raster import Raster, axis_ms, map_raster
from overlapscope_dashboards.timeline.source import Aligned, Source

LANE_PIXELS: Final = 24
GAP_PIXELS: Final = 28
TOP_PIXELS: Final = 24
BOTTOM_PIXELS: Final = 32
AROUND_PIXELS: Final = GAP_PIXELS + TOP_PIXELS + BOTTOM_PIXELS
LANES: Final = 2
"""Lanes of a rank for which a page leaves room before it knows them: one that computes, one that communicates."""
WIDTH: Final = 1_100
"""Pixels of the time axis before the browser has told."""
MAX_STEPS: Final = 40
"""Steps in view up to which each is marked."""
ASIDE: Final = {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
"""Keeps the labels of rows off what they label."""
_AXES: Final = tuple(
    {"type": "scatter", "x": [None], "y": [None], "xaxis": "x", "yaxis": axis, "hoverinfo": "skip", "showlegend": False,
     "name": "axes"}
    for axis in ("y", "y2")
)  # fmt: skip
"""Nothing, on both axes: plotly draws no axis that has no trace."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and what belongs to it."""

    figure: dict[str, Any]
    rasters: list[Raster]
    spent_ns: list[int]
    """By state, all ranks together, in the window."""
    height: int
    spans: int
    """Spans in view on the chosen ranks."""
    detailed: bool
    """Whether they are drawn one by one."""
    left_out: int
    """Lanes that are not shown."""


def draw(source: Source, asked: Asked, width: int) -> Drawn:
    """Draw a view for a time axis of so many pixels."""
    now = source.now
    bins = now.bins(asked.window, width)
    spent = now.spent(bins)
    rows = map_rows(len(source.ranks))
    lanes = strip(source, asked, width)
    upper = max(len(rows), 1) * map_row_pixels(len(rows))
    below = len(lanes.rows) * LANE_PIXELS
    layout = _layout(source, asked, rows, lanes.rows, upper, below)
    return Drawn(
        figure=figure([*_AXES, *lanes.traces], layout=layout),
        rasters=[map_raster(heat(spent, asked.mode), asked.mode, bins)],
        spent_ns=_in_view(now, asked, bins, spent),
        height=upper + below + AROUND_PIXELS,
        spans=lanes.spans,
        detailed=lanes.detailed,
        left_out=lanes.left_out,
    )


def height_before(source: Source, ranks: Sequence[int]) -> int:
    """Return the height of a figure before it is drawn: of a large run, whose lanes are not read yet, a guess."""
    rows = len(map_rows(len(source.ranks)))
    lower = len(ranks) * LANES if source.large else len(lower_rows(source, [source.lanes(rank) for rank in ranks]))
    return rows * map_row_pixels(rows) + lower * LANE_PIXELS + AROUND_PIXELS


def _in_view(now: Aligned, asked: Asked, bins: Ints, spent: Ints) -> list[int]:
    """Return the times in the window itself: those of the bins, without what sticks out at both ends."""
    begin, end = (each + now.origin_ns for each in (asked.window.start_ns, asked.window.end_ns))
    before = spent_together(now.occupancy, int(bins[0]) + now.origin_ns, begin)
    after = spent_together(now.occupancy, end, int(bins[-1]) + now.origin_ns)
    told: list[int] = (spent.sum(axis=(0, 2)) - before - after).tolist()
    return told


def _layout(
    source: Source, asked: Asked, rows: Sequence[range], lower: Sequence[Row], upper: int, below: int
) -> dict[str, Any]:
    inside = upper + GAP_PIXELS + below
    window = [axis_ms(asked.window.start_ns), axis_ms(asked.window.end_ns)]
    shapes, notes = _step_marks(source, asked)
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
        "dragmode": "zoom",
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
            "showgrid": False, "automargin": False, **ASIDE,
        },
        "yaxis2": {
            "domain": [0, below / inside], "range": [len(lower) - 0.5, -0.5], "fixedrange": True, "showgrid": False,
            "tickvals": list(range(len(lower))),
            "ticktext": [
                (f"<b>{row.rank}</b>  " if at in first else "") + plain(row.label[:18]) for at, row in enumerate(lower)
            ],
            "zeroline": False, "linecolor": GRID, "automargin": False, "anchor": "x", **ASIDE,
        },
    }  # fmt: skip


def _step_marks(source: Source, asked: Asked) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Mark where steps begin on the first of the chosen ranks."""
    inside = [
        (step.step, start)
        for step, start, end in source.steps(asked.ranks[0])
        if end > asked.window.start_ns and start < asked.window.end_ns
    ]
    if len(inside) > MAX_STEPS:
        return [], []
    lines = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": axis_ms(start), "x1": axis_ms(start), "y0": 0, "y1": 1,
         "line": {"color": "rgba(134,142,150,0.9)", "width": 1, "dash": "dot"}, "name": "step"}
        for _, start in inside
    ]  # fmt: skip
    notes = [
        {"x": axis_ms(max(start, asked.window.start_ns)), "y": 1, "xref": "x", "yref": "paper",
         "text": f"step {number}", "showarrow": False, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}}
        for number, start in inside
    ]  # fmt: skip
    return lines, notes
