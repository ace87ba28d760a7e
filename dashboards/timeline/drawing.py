"""The figure of the timeline: the heat map above, the chosen ranks' lanes below, on one axis of time.

Times on the axis are milliseconds from the run's begin. What cells and bars hold is small integers and floats counted
from there: exact times stay here, and are asked for when something is pointed at.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.causes import CAUSES
from overlapscope.analysis.occupancy import STATES, spent_together
from overlapscope.report.text import WORDS
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals
from overlapscope.values import dataclass
from overlapscope_dashboards.theme import COLOURS, GRID, figure, plain
from overlapscope_dashboards.timeline.asked import Asked
from overlapscope_dashboards.timeline.heat import DOMINATING, FULL, MAP_PIXELS, Cells, heat, map_rows
from overlapscope_dashboards.timeline.lanes import MAX_SPANS, Lane, RankLanes, pieces, state_cells
from overlapscope_dashboards.timeline.said import length
from overlapscope_dashboards.timeline.source import Aligned, Source

ROW_PIXELS: Final = 28
"""Height of a row of the heat map of few ranks."""
LANE_PIXELS: Final = 24
GAP_PIXELS: Final = 28
TOP_PIXELS: Final = 24
BOTTOM_PIXELS: Final = 32
AROUND_PIXELS: Final = GAP_PIXELS + TOP_PIXELS + BOTTOM_PIXELS
LANES: Final = 2
"""Lanes of a rank for which a page leaves room before it knows them: one that computes, one that communicates."""
WIDTH: Final = 1_100
"""Pixels of the time axis before the browser has told."""
NAMED: Final = 400
"""Spans in view up to which their names stand in them."""
MAX_LETTERS: Final = 80
FEWEST_LETTERS: Final = 4
LETTER_PIXELS: Final = 7
MAX_STEPS: Final = 40
"""Steps in view up to which each is marked."""
CAUSE_LOOKS: Final = {
    "peer_compute": ("waiting", ""), "peer_comm": ("waiting", "/"), "peer_host": ("waiting", "|"),
    "pipeline": ("waiting", "."), "slow_transfer": ("exposed", ""), "late_launch": ("launch", ""),
    "queued": ("launch", "/"), "dependency": ("exposed", "/"), "tail": ("exposed", "|"), "unknown": ("exposed", "."),
}  # fmt: skip
_KINDS: Final = ((COMPUTE, "compute"), (COMM, "hidden"), (COPY, "copy"))
ASIDE: Final = {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
"""Keeps the labels of rows off what they label."""
_NOTHING: Final = (0, 0, 0, 0)
_IDLE_SEEN: Final = 0.16
"""How much of its colour is seen where a rank is idle."""
_IDLE: Final = f"rgba(134,142,150,{_IDLE_SEEN})"
_STATE_COLOURS: Final = (
    "rgba(0,0,0,0)", _IDLE, COLOURS["compute"], COLOURS["hidden"], COLOURS["exposed"], COLOURS["copy"]
)  # fmt: skip


_AXES: Final = tuple(
    {"type": "scatter", "x": [None], "y": [None], "xaxis": "x", "yaxis": axis, "hoverinfo": "skip", "showlegend": False,
     "name": "axes"}
    for axis in ("y", "y2")
)  # fmt: skip
"""Nothing, on both axes: plotly draws no axis that has no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the lower part: a lane of a rank, or why its communication was exposed (`lane` is None)."""

    rank: int
    lane: Lane | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """Cells that the page draws under the figure by itself: plotly would take longer than for all the rest."""

    part: str
    """What it shows: "map" or "lanes"."""
    axis: str
    """The axis whose rows they are; the first is on top."""
    first_ms: float
    width_ms: float
    """Where the first bin begins, and how long each is."""
    rows: int
    bins: int
    gap: int
    """Pixels between rows."""
    colours: list[tuple[int, int, int, int]]
    """Red, green, blue and how much of it is seen, 0 to 255, by the value of a cell."""
    cells: bytes
    """A byte each, row after row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """Where lanes are drawn: what is 0 on the axis of time, counted from the run's begin, and the first row."""

    origin_ns: int = 0
    row: int = 0


OWN: Final = Corner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The chosen ranks' lanes, drawn."""

    traces: list[dict[str, Any]]
    rows: list[Row]
    spans: int
    """Spans in view."""
    detailed: bool
    """Whether they are drawn one by one."""
    left_out: int
    """Lanes that are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
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
        rasters=[_map(heat(spent, asked.mode), asked.mode, bins)],
        spent_ns=_in_view(now, asked, bins, spent),
        height=upper + below + AROUND_PIXELS,
        spans=lanes.spans,
        detailed=lanes.detailed,
        left_out=lanes.left_out,
    )


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
        traces = _spans(source, asked, ranks, lower, found, width, corner)
        traces += _causes(source, asked, lower, corner)
    else:
        traces = [_lane_map(source, asked, lower, source.now.bins(asked.window, width), corner)]
    left_out = sum(each.left_out for each in ranks)
    return Strip(traces=traces, rows=lower, spans=spans, detailed=detailed, left_out=left_out)


def height_before(source: Source, ranks: Sequence[int]) -> int:
    """Give the height of a figure before it is drawn: of a large run, whose lanes are not read yet, a guess."""
    rows = len(map_rows(len(source.ranks)))
    lower = len(ranks) * LANES if source.large else len(lower_rows(source, [source.lanes(rank) for rank in ranks]))
    return rows * map_row_pixels(rows) + lower * LANE_PIXELS + AROUND_PIXELS


def map_row_pixels(rows: int) -> int:
    """Give the height of each."""
    return max(min(ROW_PIXELS, MAP_PIXELS // max(rows, 1)), 1)


def lower_rows(source: Source, ranks: Sequence[RankLanes]) -> list[Row]:
    """Give the rows of the lower part: each rank's lanes, then why it was exposed."""
    rows: list[Row] = []
    for each in ranks:
        rows += [Row(rank=each.rank, lane=lane, label=lane.label) for lane in each.lanes]
        if source.figures is not None:
            rows.append(Row(rank=each.rank, lane=None, label="why exposed"))
    return rows


def _in_view(now: Aligned, asked: Asked, bins: Ints, spent: Ints) -> list[int]:
    """Give the times in the window itself: those of the bins, without what sticks out at both ends."""
    begin, end = (each + now.origin_ns for each in (asked.window.start_ns, asked.window.end_ns))
    before = spent_together(now.occupancy, int(bins[0]) + now.origin_ns, begin)
    after = spent_together(now.occupancy, end, int(bins[-1]) + now.origin_ns)
    told: list[int] = (spent.sum(axis=(0, 2)) - before - after).tolist()
    return told


def _map(cells: Cells, mode: str, bins: Ints) -> Raster:
    return Raster(
        part="map", axis="yaxis", first_ms=_ms(int(bins[0])), width_ms=_ms(int(bins[1] - bins[0])), rows=len(cells),
        bins=bins.size - 1, gap=1 if map_row_pixels(len(cells)) > 6 else 0,
        colours=_state_colours() if mode == DOMINATING else _fading(mode), cells=cells.tobytes(),
    )  # fmt: skip


def _lane_map(source: Source, asked: Asked, lower: Sequence[Row], bins: Ints, corner: Corner) -> dict[str, Any]:
    """Give each lane's cells, and why communication was exposed: the cause of most of that time, however short."""
    shown = [(at, row.lane) for at, row in enumerate(lower) if row.lane is not None]
    cells = np.zeros((len(lower), bins.size - 1), np.uint8)
    cells[[at for at, _ in shown]] = state_cells([lane for _, lane in shown], bins)
    for at, row in enumerate(lower):
        if row.lane is None:
            spent = cause_times(source, asked, row.rank, bins)
            cells[at] = np.where(spent.any(axis=0), spent.argmax(axis=0) + len(STATES), 0)
    return {
        "type": "heatmap", "z": typed(cells), "zmin": 0, "zmax": len(STATES) + len(CAUSES) - 1,
        "colorscale": _steps((*_STATE_COLOURS, *(COLOURS[CAUSE_LOOKS[cause][0]] for cause in CAUSES))),
        "showscale": False, "hoverinfo": "none", "xaxis": "x", "yaxis": "y2", "zsmooth": False, "ygap": 3,
        "name": "lanes", "y0": corner.row, "dy": 1,
    } | _cells(bins - corner.origin_ns)  # fmt: skip


def cause_times(source: Source, asked: Asked, rank: int, bins: Ints) -> Ints:
    """Give the exposed nanoseconds of each cause, a row each in the order of `CAUSES`, in each bin."""
    spent = np.zeros((len(CAUSES), bins.size - 1), np.int64)
    for cause, starts, ends in source.causes(rank, asked.window):
        spent[CAUSES.index(cause)] = BusyTime(Intervals(starts, ends)).within(bins[:-1], bins[1:])
    return spent


def _cells(bins: Ints) -> dict[str, Any]:
    """Give where the cells lie: plotly counts from the middle of the first."""
    width = int(bins[1] - bins[0])
    return {"x0": _ms(int(bins[0]) + width / 2), "dx": _ms(width)}


def _spans(
    source: Source, asked: Asked, ranks: Sequence[RankLanes], lower: Sequence[Row], found: Sequence[Ints],
    width: int, corner: Corner,
) -> list[dict[str, Any]]:  # fmt: skip
    """Give the spans one by one: a trace for each kind, then what of communication is exposed on top."""
    exposed = {each.rank: each.exposed for each in ranks}
    bars: dict[str, list[tuple[int, Lane, Ints]]] = {name: [] for _, name in _KINDS}
    over: list[tuple[Ints, Ints, int]] = []
    for at, (row, rows) in enumerate(zip(lower, found, strict=True)):
        if row.lane is None:
            continue
        kinds = source.tables(row.rank).spans.kind[row.lane.rows[rows]]
        for kind, name in _KINDS:
            if (kinds == kind).any():
                bars[name].append((at, row.lane, rows[kinds == kind]))
        comm = rows[kinds == COMM]
        _, start, end = pieces(row.lane, comm, exposed[row.rank])
        over.append((start, end, at))
    room = width if sum(each.size for each in found) <= NAMED else 0
    drawn = [_kind_trace(source, asked, lower, name, bars[name], room, corner) for _, name in _KINDS if bars[name]]
    starts = np.concatenate([each[0] for each in over] or [np.empty(0, np.int64)])
    ends = np.concatenate([each[1] for each in over] or [np.empty(0, np.int64)])
    places = np.repeat([each[2] for each in over], [each[0].size for each in over])
    if starts.size:
        # The bars of communication once more, on top and seen through: what is exposed would cover their names.
        whole = next(each for each in drawn if each["name"] == "hidden")
        seen_through = {**whole, "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}}}
        plain_bars = {name: whole[name] for name in whole if not name.startswith(("text", "inside", "hover"))}
        drawn[drawn.index(whole)] = {**plain_bars, "textposition": "none", "hoverinfo": "skip"}
        drawn += [_bars("exposed", starts, ends, places, corner) | {"hoverinfo": "skip"}, seen_through]
    return drawn


def _kind_trace(
    source: Source,
    asked: Asked,
    lower: Sequence[Row],
    kind: str,
    parts: Sequence[tuple[int, Lane, Ints]],
    width: int,
    corner: Corner,
) -> dict[str, Any]:
    """Give the bars of one kind of span; with their names in them, as far as they fit on so many pixels."""
    start = np.concatenate([lane.start_ns[rows] for _, lane, rows in parts])
    end = np.concatenate([lane.end_ns[rows] for _, lane, rows in parts])
    places = np.repeat([at for at, _, _ in parts], [rows.size for _, _, rows in parts])
    plainly: list[str] = []
    keys: list[str] = []
    for at, lane, rows in parts:
        timeline = source.tables(lower[at].rank)
        own = lane.rows[rows]
        codes = timeline.spans.name[own].tolist()
        plainly += [timeline.names[code][:MAX_LETTERS] if code >= 0 else "unnamed" for code in codes]
        keys += [f"{lower[at].rank}:{row}" for row in own.tolist()]
    shown = {name: plain(name) for name in set(plainly)}
    names = [shown[name] for name in plainly]
    told = [[key, length(taken)] for key, taken in zip(keys, (end - start).tolist(), strict=True)]
    trace = _bars(kind, start, end, places, corner) | {
        "customdata": told, "hovertext": names,
        "hovertemplate": "<b>%{hovertext}</b><br>%{customdata[1]}<extra></extra>"
    }  # fmt: skip
    if width:
        fits = (end - start) * width // (asked.window.length_ns * LETTER_PIXELS)
        fits[(start < asked.window.start_ns) | (fits < FEWEST_LETTERS)] = 0
        trace |= {
            "text": [_cut(name, room) for name, room in zip(plainly, fits.tolist(), strict=True)],
            "textposition": "inside", "insidetextanchor": "start", "textangle": 0, "cliponaxis": True,
            "insidetextfont": {"color": "#fff", "size": 11}, "constraintext": "none",
        }  # fmt: skip
    return trace


def _bars(colour: str, start_ns: Ints, end_ns: Ints, places: npt.NDArray[Any], corner: Corner) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "base": typed((start_ns - corner.origin_ns) / 1e6),
        "x": typed((end_ns - start_ns) / 1e6), "y": typed((places + corner.row).astype(np.float64)),
        "width": 0.84, "xaxis": "x", "yaxis": "y2", "name": colour, "showlegend": False,
        "marker": {"color": COLOURS[colour], "line": {"width": 0}}, "textposition": "none",
    }  # fmt: skip


def _causes(source: Source, asked: Asked, lower: Sequence[Row], corner: Corner) -> list[dict[str, Any]]:
    """Give why communication was exposed, one trace a cause."""
    parts: dict[str, list[tuple[int, Ints, Ints]]] = {}
    for at, row in enumerate(lower):
        if row.lane is None:
            for cause, start, end in source.causes(row.rank, asked.window):
                parts.setdefault(cause, []).append((at, start, end))
    drawn = []
    for cause, found in parts.items():
        colour, pattern = CAUSE_LOOKS[cause]
        start, end = (np.concatenate([each[at] for each in found]) for at in (1, 2))
        places = np.repeat([at for at, _, _ in found], [each.size for _, each, _ in found])
        trace = _bars(colour, start, end, places, corner)
        trace["marker"] = {
            **trace["marker"],
            "pattern": {"shape": pattern, "size": 6, "solidity": 0.3, "fillmode": "overlay", "fgcolor": "#fff"},
        }
        words = [
            [f"why:{lower[at].rank}", length(taken)] for at, taken in zip(places, (end - start).tolist(), strict=True)
        ]
        drawn.append(trace | {
            "width": 0.5, "customdata": words, "name": cause,
            "hovertemplate": f"<b>{WORDS[cause]}</b><br>exposed %{{customdata[1]}}<extra></extra>",
        })  # fmt: skip
    return drawn


def _layout(
    source: Source, asked: Asked, rows: Sequence[range], lower: Sequence[Row], upper: int, below: int
) -> dict[str, Any]:
    inside = upper + GAP_PIXELS + below
    window = [_ms(asked.window.start_ns), _ms(asked.window.end_ns)]
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
        {"type": "line", "xref": "x", "yref": "paper", "x0": _ms(start), "x1": _ms(start), "y0": 0, "y1": 1,
         "line": {"color": "rgba(134,142,150,0.9)", "width": 1, "dash": "dot"}, "name": "step"}
        for _, start in inside
    ]  # fmt: skip
    notes = [
        {"x": _ms(max(start, asked.window.start_ns)), "y": 1, "xref": "x", "yref": "paper", "text": f"step {number}",
         "showarrow": False, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}}
        for number, start in inside
    ]  # fmt: skip
    return lines, notes


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """Give a scale on which value i is colour i, without anything between."""
    edges = np.linspace(0, 1, len(colours) * 2 - 1)
    bounds = [0.0, *edges[1::2].tolist(), 1.0]
    return [[float(place), colour] for at, colour in enumerate(colours) for place in (bounds[at], bounds[at + 1])]


def _state_colours() -> list[tuple[int, int, int, int]]:
    """Give the colours of `STATES`."""
    seen = {"idle": _IDLE_SEEN}
    return [_NOTHING if each == "unrecorded" else _seen(each, seen.get(each, 1.0)) for each in STATES]


def _fading(state: str) -> list[tuple[int, int, int, int]]:
    """Give colours from the paper to the state's; 0, not recorded, has none."""
    shares = np.linspace(0.2, 1.0, FULL - 1).tolist()
    return [_NOTHING, _seen(state, 0.07), *(_seen(state, share) for share in shares)]


def _seen(state: str, share: float) -> tuple[int, int, int, int]:
    red, green, blue = (int(COLOURS[state][at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(255 * share)


def _cut(name: str, room: int) -> str:
    return plain(name if len(name) <= room else name[: room - 1] + "…") if room else ""


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Give numbers as plotly reads them without parsing any: their bytes, little-endian."""
    told = {"dtype": {"uint8": "u1", "float64": "f8"}[str(values.dtype)], "bdata": b64encode(values.tobytes()).decode()}
    return told | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def _ms(ns: float) -> float:
    return float(ns) / 1e6
