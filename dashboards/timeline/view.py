"""A view of the timeline as a value: the figure, its words and its table; and what is pointed at in it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.occupancy import STATES, spent_together
from overlapscope.report.formatting import ms
from overlapscope.timeline.columns import NONE, Ints
from overlapscope_dashboards.runs.recent import Recent
from overlapscope_dashboards.timeline.figure import Drawn, draw
from overlapscope_dashboards.timeline.gradient_bucket import bucket_words, ready_marks
from overlapscope_dashboards.timeline.heat_map import map_rows
from overlapscope_dashboards.timeline.labels import (
    NAMES,
    ORDER,
    Amount,
    amounts,
    in_view,
    length,
    of_cell,
    of_span,
)
from overlapscope_dashboards.timeline.lane_rows import lower_rows
from overlapscope_dashboards.timeline.overview_strip import cause_times
from overlapscope_dashboards.timeline.query import Asked
from overlapscope_dashboards.timeline.raster import Raster
from overlapscope_dashboards.timeline.same_step import same_step
from overlapscope_dashboards.timeline.search import Hits, from_here, hits
from overlapscope_dashboards.timeline.source import Source
from overlapscope_dashboards.timeline.window import Window, around

MAX_ROWS: Final = 64
"""Ranks of the table."""
MAX_LISTED: Final = 50
"""Spans of the table."""
MAX_DRAWN: Final = 32
"""Views kept of a run."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows."""

    figure: dict[str, Any]
    rasters: list[Raster]
    height: int
    when: str
    ranks: int
    amounts: list[Amount]
    note: str
    twin_head: list[str]
    twin: list[list[str]]
    twin_note: str
    listed: list[list[str]]
    found: dict[str, Any]
    """How many spans have the name, and which one is shown: its number and its window."""
    coming: bool
    """Whether more will be known soon."""


class Pointed(msgspec.Struct, frozen=True, kw_only=True):
    """What is pointed at: words, and the same call on all ranks as marks of the figure."""

    title: str
    parts: list[str]
    links: list[dict[str, Any]] = []


_DRAWINGS: WeakKeyDictionary[Source, Recent[Drawn]] = WeakKeyDictionary()
"""The last views of each run."""


def show(source: Source, asked: Asked, width: int, at: int | None = None) -> View:
    """Show a view on a time axis of so many pixels; `at` is the number of the span that was found last."""
    begun = source.version
    key = (begun, asked.window, asked.ranks, asked.mode, width)
    drawn = _DRAWINGS.setdefault(source, Recent(MAX_DRAWN)).get(key, lambda: draw(source, asked, width))
    if source.clocks is None:
        source.work_out()
    chosen = sorted(source.ranks, key=lambda rank: (rank not in asked.ranks, rank))[:MAX_ROWS]
    spent = in_view(source, asked.window, chosen)
    states = [state for state in ORDER if state != "unrecorded" or drawn.spent_ns[STATES.index(state)]]
    return View(
        figure=drawn.figure,
        rasters=drawn.rasters,
        height=drawn.height,
        when=f"{ms(asked.window.start_ns)} to {ms(asked.window.end_ns)} ms",
        ranks=len(source.ranks),
        amounts=amounts(drawn.spent_ns),
        note=_note(source, drawn),
        twin_head=["rank", *(NAMES[state] for state in states)],
        twin=[[f"rank {rank}", *(ms(spent[rank][STATES.index(state)]) for state in states)] for rank in chosen],
        twin_note=f"{MAX_ROWS} of {len(source.ranks)} ranks" if len(chosen) < len(source.ranks) else "",
        listed=_listed(source, asked) if drawn.detailed else [],
        found=_found(source, asked, at),
        coming=source.waiting or source.version != begun,
    )


def nothing(asked: Asked) -> Pointed:
    """Say what to do, where nothing is pointed at."""
    return Pointed(title="Point at anything", parts=["exact times stand here; a click keeps them"])


def point(source: Source, asked: Asked, width: int, probe: Mapping[str, Any]) -> Pointed:
    """Say what a pointer is at: `{"key": "rank:row"}` for a span, or `{"row", "bin", "part": "map" | "lanes"}`."""
    try:
        key = str(probe.get("key") or "")
        if key:
            rank, row = (int(each) for each in key.split(":"))
            return _span(source, asked, rank, row)
        row, bin_ = int(probe["row"]), int(probe["bin"])
        return _cell(source, asked, width, row, bin_, of_map=probe.get("part") == "map")
    except (KeyError, ValueError, TypeError, IndexError):
        return nothing(asked)


def _cell(source: Source, asked: Asked, width: int, row: int, bin_: int, *, of_map: bool) -> Pointed:
    now = source.now
    bins = now.bins(asked.window, width)
    if row < 0 or bin_ < 0:
        raise IndexError
    window = Window(start_ns=int(bins[bin_]), end_ns=int(bins[bin_ + 1]))
    if not of_map:
        shown = lower_rows(source, [source.lanes(rank) for rank in asked.ranks])[row]
        if shown.lane is None:
            return _why(source, asked, shown.rank, bins[bin_ : bin_ + 2])
        number = shown.lane.in_view(window.start_ns, window.end_ns).size
        spent = shown.lane.occupancy.spent(bins[bin_ : bin_ + 2])[0].tolist()
        _, parts = of_cell((shown.rank,), window, spent)
        return Pointed(title=f"rank {shown.rank}, {shown.label[:60]}", parts=[f"{number} spans", *parts])
    places = map_rows(len(source.ranks))[row]
    begin, end = (bins[bin_ : bin_ + 2] + now.origin_ns).tolist()
    spent = spent_together([now.occupancy[place] for place in places], begin, end).tolist()
    title, parts = of_cell([source.ranks[place] for place in places], window, spent)
    return Pointed(title=title, parts=parts)


def _why(source: Source, asked: Asked, rank: int, bins: Ints) -> Pointed:
    spent = cause_times(source, asked, rank, bins)[:, 0].tolist()
    parts = [f"{cause.label} {length(ns)}" for cause, ns in zip(CAUSES.values(), spent, strict=True) if ns]
    when = f"{ms(int(bins[0]))} ms, {length(int(bins[1] - bins[0]))} long"
    return Pointed(title=f"rank {rank} at {when}: why exposed", parts=parts or ["nothing was exposed"])


def _span(source: Source, asked: Asked, rank: int, row: int) -> Pointed:
    if rank not in source.ranks or row < 0:
        raise IndexError
    title, parts = of_span(source, rank, row)
    source.work_out()
    call = int(source.tables(rank).spans.collective[row])
    if call == NONE or source.figures is None:
        said, marks = same_step(source, asked, rank, row)
        return Pointed(title=title, parts=[*parts, *said], links=marks)
    linked = source.figures.links.of(rank, call)
    parts += bucket_words(source, rank, call)
    if len(linked.ranks) > 1:
        parts.append(f"the same call on {len(linked.ranks)} ranks is outlined")
    marks = _marks(source, asked, linked.ranks, linked.rows)
    return Pointed(title=title, parts=parts, links=[*marks, *ready_marks(source, asked, linked.ranks, linked.rows)])


def _marks(source: Source, asked: Asked, ranks: Sequence[int], rows: Sequence[int]) -> list[dict[str, Any]]:
    """Outline a call: a box on each row of the map that has one of its ranks, and on each lane where it ran."""
    start, end = source.call_times(ranks, rows)
    marks: list[dict[str, Any]] = []
    place = {rank: at for at, rank in enumerate(source.ranks)}
    times = {rank: (a, b) for rank, a, b in zip(ranks, start.tolist(), end.tolist(), strict=True) if a != NONE}
    path = []
    for at, row in enumerate(map_rows(len(source.ranks))):
        own = [times[source.ranks[each]] for each in row if source.ranks[each] in times]
        if own:
            left, right = min(a for a, _ in own) / 1e6, max(b for _, b in own) / 1e6
            path.append(f"M{left},{at - 0.5}L{right},{at - 0.5}L{right},{at + 0.5}L{left},{at + 0.5}Z")
    if path:
        marks.append({"type": "path", "path": "".join(path), "xref": "x", "yref": "y", "name": "link",
                      "line": {"color": "#111", "width": 1.5}, "fillcolor": "rgba(255,255,255,.25)"})  # fmt: skip
    found = lower_rows(source, [source.lanes(rank) for rank in asked.ranks])
    for at, shown in enumerate(found):
        if shown.lane is None or shown.rank not in times or shown.rank not in place:
            continue
        calls = source.tables(shown.rank).spans.collective[shown.lane.rows]
        pieces = np.flatnonzero(calls == dict(zip(ranks, rows, strict=True))[shown.rank])
        if pieces.size:
            marks.append({
                "type": "rect", "xref": "x", "yref": "y2", "name": "link", "y0": at - 0.5, "y1": at + 0.5,
                "x0": int(shown.lane.start_ns[pieces].min()) / 1e6, "x1": int(shown.lane.end_ns[pieces].max()) / 1e6,
                "line": {"color": "#111", "width": 2},
            })  # fmt: skip
    return marks


def _note(source: Source, drawn: Drawn) -> str:
    said = [f"{drawn.spans:,} spans in view" if drawn.detailed else f"zoom in to see kernels ({drawn.spans:,} in view)"]
    if drawn.left_out:
        said.append(f"{drawn.left_out} quieter lanes are not shown")
    if source.problem:
        said.append(f"causes and links cannot be shown: {source.problem}")
    elif source.clocks is None:
        said.append("clocks are being aligned: until then each rank stands on its own clock")
    elif source.waiting:
        said.append("causes and links are being worked out")
    return "; ".join(said)


def _listed(source: Source, asked: Asked) -> list[list[str]]:
    rows: list[tuple[int, list[str]]] = []
    for rank in asked.ranks:
        timeline = source.tables(rank)
        for lane in source.lanes(rank).lanes:
            at = lane.in_view(asked.window.start_ns, asked.window.end_ns)
            taken = lane.end_ns[at] - lane.start_ns[at]
            for place in np.argsort(-taken, kind="stable")[:MAX_LISTED].tolist():
                code = int(timeline.spans.name[lane.rows[at[place]]])
                name = timeline.names[code][:120] if code >= 0 else "unnamed"
                start = ms(int(lane.start_ns[at[place]]))
                rows.append((int(taken[place]), [name, str(rank), lane.label, start, length(int(taken[place]))]))
    return [row for _, row in sorted(rows, key=lambda each: -each[0])[:MAX_LISTED]]


def _found(source: Source, asked: Asked, at: int | None) -> dict[str, Any]:
    if not asked.text.strip():
        return {"text": "", "number": 0}
    ranks = []
    for rank in asked.ranks:
        timeline = source.tables(rank)
        spans = timeline.spans
        ranks.append((timeline, source.aligned(rank, spans.start_ns), source.aligned(rank, spans.end_ns)))
    found = hits(ranks, asked.text)
    told: dict[str, Any] = {"text": asked.text, "number": found.number, "at": at if isinstance(at, int) else None}
    for name, step in (("next", 1), ("previous", -1)):
        number = from_here(found, told["at"], asked.window.start_ns, step)
        if number is not None:
            told[name] = _place(source, found, number)
    return told


def _place(source: Source, found: Hits, number: int) -> dict[str, Any]:
    window = around(int(found.start_ns[number]), int(found.end_ns[number]), source.whole)
    return {
        "at": number, "t0": window.start_ns, "t1": window.end_ns,
        "key": f"{int(found.rank[number])}:{int(found.row[number])}",
    }  # fmt: skip
