"""Mark the same step on all ranks on hover over one of its spans."""

from typing import Any, Final
from weakref import WeakKeyDictionary

from overlapscope.timeline.columns import NONE
from overlapscope_dashboards.timeline.lane_rows import lower_rows
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.source import TimelineSource

MAX_MARKED: Final = 64
"""Most ranks for which the step is marked in the map too: each rank's tables must be read."""
Windows = dict[tuple[int, int], tuple[int, int]]
"""Start and end of a rank's steps, by recording and number."""
_KNOWN: WeakKeyDictionary[TimelineSource, dict[tuple[str, int], Windows]] = WeakKeyDictionary()


def same_step(
    source: TimelineSource, query: TimelineQuery, rank: int, row: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return a phrase and the marks of a span's step on all ranks; both empty for a span outside steps."""
    spans = source.tables(rank).spans
    step = int(spans.recording[row]), int(spans.step[row])
    if step[1] == NONE:
        return [], []
    every = source.figures is not None and len(source.ranks) <= MAX_MARKED
    windows = {each: _windows(source, each).get(step) for each in (source.ranks if every else query.ranks)}
    times = {each: (start / 1e6, end / 1e6) for each, (start, end) in
             ((key, value) for key, value in windows.items() if value is not None)}  # fmt: skip
    marks = [
        _bracket(*times[each], "y", at, at) for at, each in enumerate(source.ranks if every else ()) if each in times
    ]
    rows = [each.rank for each in lower_rows(source, query)]
    marks += [
        _bracket(*times[each], "y2", rows.index(each), rows.index(each) + rows.count(each) - 1)
        for each in dict.fromkeys(rows)
        if each in times
    ]
    phrase = f"step {step[1]} is marked on {len(times)} ranks"
    return [phrase] if len(times) > 1 else [], marks


def _bracket(start: float, end: float, axis: str, first: int, last: int) -> dict[str, Any]:
    return {"type": "rect", "xref": "x", "yref": axis, "name": "link", "x0": start, "x1": end, "y0": first - 0.42,
            "y1": last + 0.42, "line": {"color": "#111", "width": 1}}  # fmt: skip


def _windows(source: TimelineSource, rank: int) -> Windows:
    known = _KNOWN.setdefault(source, {})
    key = (source.version, rank)
    if key not in known:
        found: Windows = {}
        for each, start, end in source.steps(rank):
            found.setdefault((each.recording, each.step), (start, end))
        known[key] = found
    return known[key]
