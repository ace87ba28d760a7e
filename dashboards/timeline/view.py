"""A view of the timeline as a value: figure, text and table; and the details under the pointer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.per_rank.occupancy import STATES, spent_together
from overlapscope.display import list_some
from overlapscope.report.formatting import count, ms
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.python_stack import frames_around
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.timeline.figure import DrawnTimeline, draw
from overlapscope_dashboards.timeline.gradient_bucket import bucket_words, ready_marks
from overlapscope_dashboards.timeline.heat_map import map_rows
from overlapscope_dashboards.timeline.labels import (
    MAX_NAME,
    NAMES,
    ORDER,
    StateTime,
    describe_cell,
    describe_span,
    format_duration,
    longest_spans,
    state_times,
    times_in_window,
)
from overlapscope_dashboards.timeline.lane_drawing import cause_times
from overlapscope_dashboards.timeline.lane_rows import NO_RANK, LaneRow, lower_rows
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.raster import Raster
from overlapscope_dashboards.timeline.same_step import same_step
from overlapscope_dashboards.timeline.search import SearchHits, find_spans, index_of_hit, next_hit
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.tracks import HOST, PATH, launching_call
from overlapscope_dashboards.timeline.window import TimeWindow, around

MAX_ROWS: Final = 64
"""Most ranks of the table."""
MAX_LISTED: Final = 50
"""Most spans of the table."""
MAX_DRAWN: Final = 32
"""Most cached figures of a run."""


MAX_FRAMES: Final = 4
"""Most frames of a Python stack that are named: the innermost."""
MAX_FRAME: Final = 60
"""Most characters of each."""


class TimelineView(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the page."""

    figure: dict[str, Any]
    rasters: list[Raster]
    height: int
    rows: list[tuple[int, int]]
    """(rank, row in its `Lanes`) of each row of the lower part; -1 for one that is no lane."""
    map_ranks: list[int]
    """The first rank of each row of the heat map."""
    when: str
    ranks: int
    amounts: list[StateTime]
    note: str
    twin_head: list[str]
    twin: list[list[str]]
    twin_note: str
    listed: list[list[str]]
    found: dict[str, Any]
    """Number of search hits, and index, window and key of the next and the previous one."""
    coming: bool
    """Whether the page should ask again because more results are being computed."""


class PointerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the item under the pointer, and marks of the same call or step on all ranks."""

    title: str
    parts: list[str]
    links: list[dict[str, Any]] = []
    launch: list[tuple[int, int, float]] = []
    """From the call that launched the span to its start: (rank, row in its `Lanes`, ms) of both ends; or nothing."""
    window: tuple[int, int] | None = None
    """Of a span the window (ns) that shows it whole."""


_DRAWINGS: WeakKeyDictionary[TimelineSource, RecentCache[DrawnTimeline]] = WeakKeyDictionary()
"""The last figures of each run."""


def show(source: TimelineSource, query: TimelineQuery, width: int, hit: str = "") -> TimelineView:
    """Return a view; `width` is the time axis in pixels, `hit` the current search hit (`rank:row`)."""
    begun = source.version
    if PATH in query.show:
        source.start_path()
    key = (begun, query.window, query.ranks, query.mode, query.show, width)
    drawn = _DRAWINGS.setdefault(source, RecentCache(MAX_DRAWN)).get(key, lambda: draw(source, query, width))
    if source.clocks is None:
        source.start_analysis()
    chosen = sorted(source.ranks, key=lambda rank: (rank not in query.ranks, rank))[:MAX_ROWS]
    spent = times_in_window(source, query.window, chosen)
    states = [state for state in ORDER if state != "unrecorded" or drawn.spent_ns[STATES.index(state)]]
    return TimelineView(
        figure=drawn.figure,
        rasters=drawn.rasters,
        height=drawn.height,
        rows=[row.place for row in drawn.rows],
        map_ranks=[source.ranks[row[0]] for row in map_rows(len(source.ranks))],
        when=f"{'whole recording, ' if query.window == source.whole else ''}"
        f"{ms(query.window.start_ns)} to {ms(query.window.end_ns)} ms",
        ranks=len(source.ranks),
        amounts=state_times(drawn.spent_ns),
        note=_note(source, query, drawn),
        twin_head=["rank", *(NAMES[state] for state in states)],
        twin=[[f"rank {rank}", *(ms(spent[rank][STATES.index(state)]) for state in states)] for rank in chosen],
        twin_note=f"{MAX_ROWS} of {len(source.ranks)} ranks" if len(chosen) < len(source.ranks) else "",
        listed=[
            [name[:MAX_NAME], str(rank), lane, ms(start), format_duration(taken)]
            for taken, name, rank, lane, start in longest_spans(source, query.window, query.ranks, MAX_LISTED)
        ]
        if drawn.detailed
        else [],
        found=_found(source, query, hit),
        coming=source.is_working or source.version != begun or (PATH in query.show and source.is_following),
    )


def no_details(query: TimelineQuery) -> PointerDetails:
    """Return the hint that is shown while nothing is under the pointer."""
    return PointerDetails(title="Hover for details, click to pin and to see what it waited for.", parts=[])


def point(source: TimelineSource, query: TimelineQuery, width: int, probe: Mapping[str, Any]) -> PointerDetails:
    """Return details of `{"key": "rank:row"}` (a span) or `{"row", "bin", "part": "map" | "lanes"}` (a cell)."""
    try:
        key = str(probe.get("key") or "")
        if key:
            rank, row = (int(each) for each in key.split(":"))
            return _span(source, query, rank, row)
        row, bin_ = int(probe["row"]), int(probe["bin"])
        return _cell(source, query, width, row, bin_, of_map=probe.get("part") == "map")
    except (KeyError, ValueError, TypeError, IndexError):
        return no_details(query)


def _cell(
    source: TimelineSource, query: TimelineQuery, width: int, row: int, bin_: int, *, of_map: bool
) -> PointerDetails:
    snapshot = source.snapshot
    bins = snapshot.bins(query.window, width)
    if row < 0 or bin_ < 0:
        raise IndexError
    window = TimeWindow(start_ns=int(bins[bin_]), end_ns=int(bins[bin_ + 1]))
    if not of_map:
        shown = lower_rows(source, query)[row]
        if shown.track is not None:
            return _track_cell(source, shown, window)
        if shown.lane is None:
            return _why(source, query, shown.rank, bins[bin_ : bin_ + 2])
        number = shown.lane.in_view(window.start_ns, window.end_ns).size
        spent = shown.lane.occupancy.spent(bins[bin_ : bin_ + 2])[0].tolist()
        _, parts = describe_cell((shown.rank,), window, spent)
        return PointerDetails(title=f"rank {shown.rank}, {shown.label[:60]}", parts=[f"{number} spans", *parts])
    places = map_rows(len(source.ranks))[row]
    begin, end = (bins[bin_ : bin_ + 2] + snapshot.origin_ns).tolist()
    spent = spent_together([snapshot.occupancy[place] for place in places], begin, end).tolist()
    title, parts = describe_cell([source.ranks[place] for place in places], window, spent)
    return PointerDetails(title=title, parts=parts)


def _why(source: TimelineSource, query: TimelineQuery, rank: int, bins: Ints) -> PointerDetails:
    spent = cause_times(source, query, rank, bins)[:, 0].tolist()
    parts = [f"{cause.label} {format_duration(ns)}" for cause, ns in zip(CAUSES.values(), spent, strict=True) if ns]
    when = f"{ms(int(bins[0]))} ms, {format_duration(int(bins[1] - bins[0]))} long"
    return PointerDetails(title=f"rank {rank} at {when}: causes of exposed time", parts=parts or ["no exposed time"])


def _span(source: TimelineSource, query: TimelineQuery, rank: int, row: int) -> PointerDetails:
    if rank not in source.ranks or row < 0:
        raise IndexError
    title, parts = describe_span(source, rank, row)
    source.start_analysis()
    spans = source.tables(rank).spans
    call = int(spans.collective[row])
    begin, end = source.aligned(rank, np.array([spans.start_ns[row], spans.end_ns[row]])).tolist()
    near = around(begin, end, source.whole)
    window = near.start_ns, near.end_ns
    launched, launch = _launch(source, rank, row) if HOST in query.show else ([], [])
    parts += launched
    if call == NONE or source.figures is None:
        phrases, marks = same_step(source, query, rank, row)
        return PointerDetails(title=title, parts=[*parts, *phrases], links=marks, launch=launch, window=window)
    linked = source.figures.links.of(rank, call)
    parts += bucket_words(source, rank, call)
    if len(linked.ranks) > 1:
        parts.append(f"the same call on {len(linked.ranks)} ranks is marked")
    marks = _marks(source, query, linked.ranks, linked.rows)
    return PointerDetails(
        title=title, parts=parts, links=[*marks, *ready_marks(source, query, linked.ranks, linked.rows)], launch=launch,
        window=window,
    )  # fmt: skip


def _launch(source: TimelineSource, rank: int, row: int) -> tuple[list[str], list[tuple[int, int, float]]]:
    """Return a phrase on the call that launched a span, and both ends of the arrow; nothing without a record."""
    timeline, host = source.tables(rank), source.host(rank)
    spans, calls = timeline.spans, host.calls
    call = launching_call(host, int(spans.correlation[row]), int(spans.launch_ns[row]))
    if call is None:
        return [], []
    begun, start = source.aligned(rank, np.array([calls.start_ns[call], spans.start_ns[row]])).tolist()
    name = (timeline.name(int(calls.name[call])) or "a call")[:MAX_NAME]
    arrow = [(rank, int(calls.lane[call]), begun / 1e6), (rank, int(spans.lane[row]), start / 1e6)]
    said = [f"launched by {name} {format_duration(start - begun)} before"]
    return [*said, *_python_words(source, rank, int(calls.lane[call]), int(calls.start_ns[call]))], arrow


def _python_words(source: TimelineSource, rank: int, lane: int, time_ns: int) -> list[str]:
    """Return a phrase on the innermost functions that a thread was in, at a time of the rank's own clock."""
    frames, timeline = source.host(rank).frames, source.tables(rank)
    stack = frames_around(frames, lane, time_ns)[-MAX_FRAMES:]
    named = [(timeline.name(int(frames.name[row])) or "?")[:MAX_FRAME] for row in stack.tolist()]
    return [f"in Python: {' > '.join(named)}"] if named else []


def _marks(
    source: TimelineSource, query: TimelineQuery, ranks: Sequence[int], rows: Sequence[int]
) -> list[dict[str, Any]]:
    """Return marks of a call: a box on each row of the map with one of its ranks, and on each lane where it ran."""
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
    found = lower_rows(source, query)
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


def _track_cell(source: TimelineSource, shown: LaneRow, window: TimeWindow) -> PointerDetails:
    assert shown.track is not None
    found = shown.track.in_view(window.start_ns, window.end_ns)
    parts = [count(found.size, "time")]
    if found.size == 1:
        lasts = int((shown.track.end_ns[found] - shown.track.start_ns[found])[0])
        parts = [f"{shown.track.words(found)[0][:MAX_NAME]} {format_duration(lasts)}"]
    spent = sum(int(each.within([window.start_ns], [window.end_ns])[0]) for each in shown.track.busy.values())
    who = shown.label or "host thread" if shown.rank == NO_RANK else f"rank {shown.rank}, {shown.label or 'operations'}"
    when = f"{ms(window.start_ns)} ms, {format_duration(window.length_ns)} long"
    parts.append(f"covered {format_duration(spent)}")
    if shown.track.thread >= 0:
        middle = (window.start_ns + window.end_ns) // 2
        on_own = middle + source.origin_ns
        on_own += middle - int(source.aligned(shown.rank, np.array([on_own]))[0])
        parts += _python_words(source, shown.rank, shown.track.thread, on_own)
    return PointerDetails(title=f"{who} at {when}", parts=parts)


def _note(source: TimelineSource, query: TimelineQuery, drawn: DrawnTimeline) -> str:
    notes = [
        f"{drawn.spans:,} spans in view" if drawn.detailed else f"zoom in to see kernels ({drawn.spans:,} in view)"
    ]
    if drawn.left_out:
        notes.append(f"{drawn.left_out} less busy lanes are not shown")
    if HOST in query.show:
        notes += _host_notes(source, query)
    if PATH in query.show and source.path is None:
        notes.append(f"no critical path: {source.no_path}" if source.no_path else "the critical path is being followed")
    if source.problem:
        notes.append(f"causes and matched calls are not available: {source.problem}")
    elif source.clocks is None:
        notes.append("clocks are being aligned: until then each rank is on its own clock")
    elif source.is_working:
        notes.append("causes and matched calls are being computed")
    return "; ".join(notes)


def _host_notes(source: TimelineSource, query: TimelineQuery) -> list[str]:
    hosts = {rank: source.host(rank) for rank in query.ranks}
    lost = [rank for rank in hosts if source.tables(rank).host_is_lost]
    without = [rank for rank, each in hosts.items() if not each.tracks and rank not in lost]
    left_out = sum(each.left_out for each in hosts.values())
    return [
        *([f"no host events of rank {list_some(without)} were recorded"] if without else []),
        *([f"the host events of rank {list_some(lost)} are damaged and cannot be read"] if lost else []),
        *([f"{count(left_out, 'host thread')} with fewer calls not shown"] if left_out else []),
    ]


def _found(source: TimelineSource, query: TimelineQuery, hit: str) -> dict[str, Any]:
    if not query.text.strip():
        return {"text": "", "number": 0}
    ranks = []
    for rank in query.ranks:
        timeline = source.tables(rank)
        spans = timeline.spans
        ranks.append((timeline, source.aligned(rank, spans.start_ns), source.aligned(rank, spans.end_ns)))
    found = find_spans(ranks, query.text)
    result: dict[str, Any] = {"text": query.text, "number": found.count, "at": index_of_hit(found, hit)}
    for name, step in (("next", 1), ("previous", -1)):
        number = next_hit(found, result["at"], query.window.start_ns, step)
        if number is not None:
            result[name] = _place(source, found, number)
    return result


def _place(source: TimelineSource, found: SearchHits, number: int) -> dict[str, Any]:
    window = around(int(found.start_ns[number]), int(found.end_ns[number]), source.whole)
    return {
        "at": number, "t0": window.start_ns, "t1": window.end_ns,
        "key": f"{int(found.rank[number])}:{int(found.row[number])}",
    }  # fmt: skip
