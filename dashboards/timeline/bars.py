"""Draw single spans as bars: one plotly trace for each kind, and one for each cause of exposed communication."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, Ints
from overlapscope_dashboards.theme import COLOURS, plain
from overlapscope_dashboards.timeline.labels import format_duration
from overlapscope_dashboards.timeline.lane_rows import LaneRow
from overlapscope_dashboards.timeline.lanes import RankLanes, SpanLane, pieces
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.raster import plotly_array
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.tracks import TRACK_COLOURS, Track

NAMED: Final = 400
"""Most spans in view for which bars contain names."""
MAX_LETTERS: Final = 80
FEWEST_LETTERS: Final = 4
LETTER_PIXELS: Final = 7
_KINDS: Final = ((COMPUTE, "compute"), (COMM, "hidden"), (COPY, "copy"))


class DrawingOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where lanes are drawn: the time shown as 0 (ns from the run's start), and the first row of the axis."""

    origin_ns: int = 0
    row: int = 0


def span_bars(
    source: TimelineSource, query: TimelineQuery, ranks: Sequence[RankLanes], lower: Sequence[LaneRow],
    found: Sequence[Ints], width: int, origin: DrawingOrigin,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one trace for each kind of span, then the exposed parts of communication on top."""
    exposed = {each.rank: each.exposed for each in ranks}
    bars: dict[str, list[tuple[int, SpanLane, Ints]]] = {name: [] for _, name in _KINDS}
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
    drawn = [_kind_trace(source, query, lower, name, bars[name], room, origin) for _, name in _KINDS if bars[name]]
    starts = np.concatenate([each[0] for each in over] or [np.empty(0, np.int64)])
    ends = np.concatenate([each[1] for each in over] or [np.empty(0, np.int64)])
    places = np.repeat([each[2] for each in over], [each[0].size for each in over])
    if starts.size:
        # The communication bars again, transparent and on top, because the exposed parts would cover their names.
        whole = next(each for each in drawn if each["name"] == "hidden")
        seen_through = {**whole, "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}}}
        plain_bars = {name: whole[name] for name in whole if not name.startswith(("text", "inside", "hover"))}
        drawn[drawn.index(whole)] = {**plain_bars, "textposition": "none", "hoverinfo": "skip"}
        drawn += [_bars("exposed", starts, ends, places, origin) | {"hoverinfo": "skip"}, seen_through]
    return [*drawn, *_names_of_cut(source, query, lower, found, room, origin)]


def _names_of_cut(
    source: TimelineSource, query: TimelineQuery, lower: Sequence[LaneRow], found: Sequence[Ints], width: int,
    origin: DrawingOrigin,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the names of spans that began before the window, at its begin: one a lane, of the one that began last.

    The bars themselves stay where they ran, as a figure may be moved without asking for another one.
    """
    window, cut = query.window, []
    for at, (row, rows) in enumerate(zip(lower, found, strict=True)):
        if row.lane is None or not width:
            continue
        begun = rows[(row.lane.start_ns[rows] < window.start_ns) & (row.lane.end_ns[rows] > window.start_ns)]
        if begun.size:
            timeline, place = source.tables(row.rank), int(begun[-1])
            code = int(timeline.spans.name[row.lane.rows[place]])
            cut.append(
                (at, int(row.lane.end_ns[place]), timeline.names[code][:MAX_LETTERS] if code >= 0 else "unnamed")
            )
    if not cut:
        return []
    start, end = np.full(len(cut), window.start_ns), np.minimum([each[1] for each in cut], window.end_ns)
    bars = _bars("idle", start, end, np.array([each[0] for each in cut]), origin)
    words = _named([each[2] for each in cut], start, end, query, width)
    return [{**bars, **words, "name": "names", "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}},
             "hoverinfo": "skip", "hovertemplate": None}]  # fmt: skip


def _kind_trace(
    source: TimelineSource,
    query: TimelineQuery,
    lower: Sequence[LaneRow],
    kind: str,
    parts: Sequence[tuple[int, SpanLane, Ints]],
    width: int,
    origin: DrawingOrigin,
) -> dict[str, Any]:
    """Return the bars of one kind of span; with names if `width`, the pixels of the axis, is not 0."""
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
    custom = [[key, format_duration(taken)] for key, taken in zip(keys, (end - start).tolist(), strict=True)]
    trace = _bars(kind, start, end, places, origin) | {"customdata": custom}
    return trace | _named(plainly, start, end, query, width)


def _named(names: Sequence[str], start_ns: Ints, end_ns: Ints, query: TimelineQuery, width: int) -> dict[str, Any]:
    """Return what names bars on hover, and inside them where there is room if `width`, the pixels of the axis, is not
    0."""
    shown = {name: plain(name) for name in set(names)}
    named: dict[str, Any] = {
        "hovertext": [shown[name] for name in names],
        "hovertemplate": "<b>%{hovertext}</b><br>%{customdata[1]}<extra></extra>",
    }
    if width:
        fits = (np.minimum(end_ns, query.window.end_ns) - start_ns) * width // (query.window.length_ns * LETTER_PIXELS)
        fits[(start_ns < query.window.start_ns) | (fits < FEWEST_LETTERS)] = 0
        named |= {
            "text": [_cut(name, room) for name, room in zip(names, fits.tolist(), strict=True)],
            "textposition": "inside", "insidetextanchor": "start", "textangle": 0, "cliponaxis": True,
            "insidetextfont": {"color": "#fff", "size": 11}, "constraintext": "none",
        }  # fmt: skip
    return named


MOST_DRAWN: Final = 1_200
"""Times of host threads and of the critical path that are drawn one by one; of more, only the widest are ..."""
WIDE_PIXELS: Final = 3
"""... and only those so wide."""


def track_bars(
    query: TimelineQuery, lower: Sequence[LaneRow], width: int, origin: DrawingOrigin
) -> tuple[list[dict[str, Any]], bool]:
    """Return the bars of host threads and of the critical path by colour, and whether all in view are drawn."""
    window = query.window
    rows = [(at, row.track, row.track.in_view(window.start_ns, window.end_ns))
            for at, row in enumerate(lower) if row.track is not None]  # fmt: skip
    total = sum(found.size for _, _, found in rows)
    if total > MOST_DRAWN:
        least = WIDE_PIXELS * window.length_ns // max(width, 1)
        rows = [(at, track, _widest(track, found, least, MOST_DRAWN // len(rows))) for at, track, found in rows]
    traces = []
    for code, colour in enumerate(TRACK_COLOURS):
        parts = [(at, track, found[track.colour[found] == code]) for at, track, found in rows]
        parts = [each for each in parts if each[2].size]
        if not parts:
            continue
        start, end = (
            np.concatenate([getattr(track, name)[found] for _, track, found in parts])
            for name in ("start_ns", "end_ns")
        )
        places = np.repeat([at for at, _, _ in parts], [found.size for _, _, found in parts])
        words = [each[:MAX_LETTERS] for _, track, found in parts for each in track.words(found)]
        custom = [["", format_duration(taken)] for taken in (end - start).tolist()]
        room = width if start.size <= NAMED else 0
        start, end = np.maximum(start, window.start_ns), np.minimum(end, window.end_ns)  # names stay in view
        trace = _bars(colour, start, end, places, origin) | {"customdata": custom, "name": f"track-{colour}"}
        traces.append(trace | _named(words, start, end, query, room))
    return traces, total <= MOST_DRAWN


def _widest(track: Track, found: Ints, least_ns: int, most: int) -> Ints:
    length = track.end_ns[found] - track.start_ns[found]
    wide = np.flatnonzero(length >= least_ns)
    chosen = wide[np.argsort(-length[wide], kind="stable")[:most]]
    return found[np.sort(chosen)]


def _bars(colour: str, start_ns: Ints, end_ns: Ints, places: npt.NDArray[Any], origin: DrawingOrigin) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "base": plotly_array((start_ns - origin.origin_ns) / 1e6),
        "x": plotly_array((end_ns - start_ns) / 1e6), "y": plotly_array((places + origin.row).astype(np.float64)),
        "width": 0.84, "xaxis": "x", "yaxis": "y2", "name": colour, "showlegend": False,
        "marker": {"color": COLOURS[colour], "line": {"width": 0}}, "textposition": "none",
    }  # fmt: skip


def cause_bars(
    source: TimelineSource, query: TimelineQuery, lower: Sequence[LaneRow], origin: DrawingOrigin
) -> list[dict[str, Any]]:
    """Return bars of exposed communication, one trace for each cause."""
    parts: dict[str, list[tuple[int, Ints, Ints]]] = {}
    for at, row in enumerate(lower):
        if row.is_causes:
            for cause, start, end in source.causes(row.rank, query.window):
                parts.setdefault(cause, []).append((at, start, end))
    drawn = []
    for cause, found in parts.items():
        looks = CAUSES[cause]
        start, end = (np.concatenate([each[at] for each in found]) for at in (1, 2))
        places = np.repeat([at for at, _, _ in found], [each.size for _, each, _ in found])
        trace = _bars(looks.colour, start, end, places, origin)
        trace["marker"] = {
            **trace["marker"],
            "pattern": {"shape": looks.pattern, "size": 6, "solidity": 0.3, "fillmode": "overlay", "fgcolor": "#fff"},
        }
        words = [
            [f"why:{lower[at].rank}", format_duration(taken)]
            for at, taken in zip(places, (end - start).tolist(), strict=True)
        ]
        drawn.append(trace | {
            "width": 0.5, "customdata": words, "name": cause,
            "hovertemplate": f"<b>{looks.label}</b><br>exposed %{{customdata[1]}}<extra></extra>",
        })  # fmt: skip
    return drawn


def _cut(name: str, room: int) -> str:
    return plain(name if len(name) <= room else name[: room - 1] + "…") if room else ""
