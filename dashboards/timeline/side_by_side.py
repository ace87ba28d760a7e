"""Draw the same step of two runs one above the other: the rank's lanes, and ribbons between paired collectives.

Time is in milliseconds since the step's start on the rank. The collectives that changed most are connected by ribbons
from one run to the other, with a number at both ends.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope.timeline.columns import NONE, or_none
from overlapscope_dashboards.theme import GRID, faded, figure, plain
from overlapscope_dashboards.timeline.bars import DrawingOrigin
from overlapscope_dashboards.timeline.figure import LANE_PIXELS, TICK_SPACING
from overlapscope_dashboards.timeline.labels import ORDER
from overlapscope_dashboards.timeline.lane_drawing import DrawnLanes, draw_lanes
from overlapscope_dashboards.timeline.lane_rows import LaneRow
from overlapscope_dashboards.timeline.lanes import MAX_SPANS
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.window import TimeWindow
from overlapscope_dashboards.views.paired_calls import CallPairing, StepCall

MARGIN: Final = 0.02
"""Margin before and after, as a share of the longer step."""
MAX_EARLY: Final = 0.25
"""Most time shown before the step, if its own calls began earlier, as a share of the longer step."""
GAP_ROWS: Final = 2
"""Empty rows between the two runs."""
MAX_CALLS: Final = 4_000
"""Most calls of a step for which they are paired."""
TOP_PIXELS: Final = 4
BOTTOM_PIXELS: Final = 48
WIDTH: Final = 1_000
RIBBON: Final = GRID
RIBBON_EDGE: Final = faded("idle", 0.5)
MAX_LABEL: Final = 18


class StepSide(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one run on one rank."""

    name: str
    source: TimelineSource
    rank: int
    step: int
    start_ns: int
    """Relative to the run's start."""
    end_ns: int
    calls: tuple[StepCall, ...] | None
    """The collectives of the step; None if there are too many."""

    @property
    def length_ns(self) -> int:
        """Duration of the step."""
        return self.end_ns - self.start_ns


class SideBySide(msgspec.Struct, frozen=True, kw_only=True):
    """The figure, its height in pixels, and notes on omissions."""

    figure: dict[str, Any]
    height: int
    notes: tuple[str, ...]


def complete_steps(source: TimelineSource, rank: int) -> dict[int, tuple[int, int]]:
    """Return (start, end) of a rank's complete steps by number, from the run's start; the first of equal numbers."""
    found: dict[int, tuple[int, int]] = {}
    for each, start, end in source.steps(rank):
        if each.complete:
            found.setdefault(each.step, (start, end))
    return found


def side_of(name: str, source: TimelineSource, rank: int, step: int, window: tuple[int, int]) -> StepSide:
    """Return a step of a run with its collectives."""
    start, end = window
    return StepSide(name=name, source=source, rank=rank, step=step, start_ns=start, end_ns=end,
                calls=_calls(source, rank, step, start))  # fmt: skip


def window_of(side: StepSide, longest_ns: int, early_ns: int) -> TimeWindow:
    """Return the window that is shown of a run, relative to its start."""
    margin = max(int(longest_ns * MARGIN), 1)
    return TimeWindow(start_ns=side.start_ns - early_ns - margin, end_ns=side.start_ns + longest_ns + margin)


def early_start_ns(sides: Sequence[StepSide]) -> int:
    """Return how long (ns) before the steps their first own call began, limited by MAX_EARLY."""
    longest = max(each.length_ns for each in sides)
    first = min((call.start_ns for side in sides for call in side.calls or ()), default=0)
    return min(max(-first, 0), int(longest * MAX_EARLY))


def state_durations(side: StepSide) -> dict[str, int]:
    """Return the nanoseconds of the step in each state of its rank."""
    snapshot = side.source.snapshot
    edges = np.array([side.start_ns, side.end_ns]) + snapshot.origin_ns
    own = snapshot.occupancy[side.source.ranks.index(side.rank)].spent(edges)[0].tolist()
    return {state: own[STATES.index(state)] for state in ORDER if state != "unrecorded" or own[STATES.index(state)]}


def draw_side_by_side(base: StepSide, candidate: StepSide, marked: Sequence[CallPairing]) -> SideBySide:
    """Return the figure of both steps with ribbons for the marked pairings."""
    sides = (base, candidate)
    longest, before = max(each.length_ns for each in sides), early_start_ns(sides)
    strips: list[DrawnLanes] = []
    first = [1, 0]
    for at, side in enumerate(sides):
        window = window_of(side, longest, before)
        query = TimelineQuery(window=window, ranks=(side.rank,))
        origin = DrawingOrigin(origin_ns=side.start_ns, row=first[at])
        strips.append(draw_lanes(side.source, query, WIDTH, origin, MAX_SPANS // 2))
        if at == 0:
            first[1] = 1 + len(strips[0].rows) + GAP_ROWS + 1
    last = first[1] + len(strips[1].rows)
    margin = max(int(longest * MARGIN), 1)
    span = [-(before + margin) / 1e6, (longest + margin) / 1e6]
    edges = [(first[at] - 0.5, first[at] + len(strips[at].rows) - 0.5) for at in (0, 1)]
    traces = [{**trace, "yaxis": "y"} for each in strips for trace in each.traces]
    shapes, numbers = _ribbons(marked, edges, span)
    layout = _layout(sides, strips, first, last, span)
    layout["shapes"] = [*shapes, *layout["shapes"]]
    layout["annotations"] = [*layout["annotations"], *numbers]
    return SideBySide(
        figure=figure(traces, layout=layout),
        height=last * LANE_PIXELS + TOP_PIXELS + BOTTOM_PIXELS,
        notes=tuple(_notes(sides, strips)),
    )


def _calls(source: TimelineSource, rank: int, step: int, begin_ns: int) -> tuple[StepCall, ...] | None:
    timeline = source.tables(rank)
    table, names = timeline.collectives, timeline.names
    rows = np.flatnonzero((table.step == step) & (table.start_ns != NONE) & (table.end_ns != NONE))
    if rows.size > MAX_CALLS:
        return None
    starts, ends = (source.aligned(rank, each[rows]) - begin_ns for each in (table.start_ns, table.end_ns))
    found = []
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        figures = source.call_figures(rank, row)
        op, dtype, size, members = (int(each[row]) for each in (table.op, table.dtype, table.bytes, table.group_size))
        found.append(StepCall(
            op=names[op] if op >= 0 else "collective", dtype=names[dtype] if dtype >= 0 else None,
            size_bytes=or_none(size), group_size=or_none(members),
            start_ns=start, end_ns=end, exposed_ns=_whole(figures.get("exposed_ns")),
            wait_ns=_whole(figures.get("wait_ns")),
            cause=str(figures["cause"]) if "cause" in figures else None,
        ))  # fmt: skip
    return tuple(found)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ribbons(
    marked: Sequence[CallPairing], edges: Sequence[tuple[float, float]], span: Sequence[float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return each pairing as bands over its calls and ribbons between them, and the number labels."""
    shapes, numbers = [], []
    (top, bottom), (low_top, low_bottom) = edges

    def at(ns: float) -> float:
        return min(max(ns / 1e6, span[0]), span[1])

    for number, link in enumerate(marked, 1):
        corners = []
        for calls, upper, lower in ((link.base, top, bottom), (link.candidate, low_top, low_bottom)):
            for call in calls:
                left, right = at(call.start_ns), at(call.end_ns)
                corners.append([(left, upper), (right, upper), (right, lower), (left, lower)])
                numbers.append(
                    {"x": (left + right) / 2, "y": upper - 0.5, "xref": "x", "yref": "y", "text": f"<b>{number}</b>",
                     "showarrow": False, "font": {"size": 13}}
                )  # fmt: skip
        for (left, right), (low_left, low_right) in link.pieces():
            corners.append([(at(left), bottom), (at(right), bottom), (at(low_right), low_top), (at(low_left), low_top)])
        path = "".join("M" + "L".join(f"{x},{y}" for x, y in each) + "Z" for each in corners)
        shapes.append({"type": "path", "path": path, "xref": "x", "yref": "y", "name": "link", "layer": "below",
                       "fillcolor": RIBBON, "line": {"width": 1, "color": RIBBON_EDGE}})  # fmt: skip
    return shapes, numbers


def _layout(
    sides: Sequence[StepSide], strips: Sequence[DrawnLanes], first: Sequence[int], last: int, span: Sequence[float]
) -> dict[str, Any]:
    places: list[int] = []
    words: list[str] = []
    shapes: list[dict[str, Any]] = []
    for name, side, drawn, row in zip(("base", "candidate"), sides, strips, first, strict=True):
        places += [row - 1, *range(row, row + len(drawn.rows))]
        words += [f"<b>{name}</b>", *(_label(each) for each in drawn.rows)]
        shapes += [
            {"type": "line", "xref": "x", "yref": "y", "x0": at, "x1": at, "y0": row - 0.5,
             "y1": row + len(drawn.rows) - 0.5, "name": "step",
             "line": {"color": faded("idle", 0.9), "width": 1, "dash": "dot"}}
            for at in (0.0, side.length_ns / 1e6)
        ]  # fmt: skip
    return {
        "margin": {"l": 148, "r": 12, "t": TOP_PIXELS, "b": BOTTOM_PIXELS},
        "barmode": "overlay",
        "hoverdistance": 1,
        "shapes": shapes,
        "annotations": [],
        "xaxis": {
            "range": list(span), "ticks": "outside", "ticklen": 4, "tickcolor": GRID, "nticks": 10, "showgrid": True,
            "separatethousands": True, "exponentformat": "none", "automargin": False,
            "title": {"text": "ms since the step began", "standoff": 6, "font": {"size": 12}},
        },
        "yaxis": {
            "range": [last - 0.5, -0.5], "showgrid": False, "zeroline": False, "tickvals": places, "ticktext": words,
            "automargin": False, **TICK_SPACING,
        },
    }  # fmt: skip


def _label(row: LaneRow) -> str:
    return plain(row.label[:MAX_LABEL])


def _notes(sides: Sequence[StepSide], strips: Sequence[DrawnLanes]) -> list[str]:
    notes = []
    for name, side, drawn in zip(("base", "candidate"), sides, strips, strict=True):
        if not drawn.detailed:
            notes.append(f"{name}: {drawn.spans:,} spans are shown as covered time; the timeline page shows each")
        if drawn.left_out:
            notes.append(f"{name}: {drawn.left_out} less busy lanes are not shown")
        if side.source.problem:
            notes.append(f"{name}: causes of exposed time are not available: {side.source.problem}")
        elif side.source.figures is None:
            notes.append(f"{name}: causes of exposed time are still being computed; reload the page")
        if side.calls is None:
            notes.append(f"{name}: more than {MAX_CALLS:,} collectives in the step, so they are not paired")
    return notes
