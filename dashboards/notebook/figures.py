"""Plotly figures of a run for a notebook: its timeline, and where a step goes or what changed as a waterfall.

Background and text are those of the reader's own plotly template, which may be a dark one.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import plotly.graph_objects as go

from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.analysis.result import Analysis
from overlapscope.display import list_some
from overlapscope.errors import InputError, UsageError
from overlapscope.report.formatting import count, ms
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.manifest import RankEntry
from overlapscope_dashboards.compare.figures import waterfalls
from overlapscope_dashboards.notebook.looks import looks
from overlapscope_dashboards.parts.waterfall import WaterfallRow
from overlapscope_dashboards.theme import plain
from overlapscope_dashboards.timeline.figure import draw
from overlapscope_dashboards.timeline.lanes import MAX_RANKS
from overlapscope_dashboards.timeline.query import FIRST_RANKS, TimelineQuery
from overlapscope_dashboards.timeline.raster import Raster, Rgba
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.tracks import HOST, PATH
from overlapscope_dashboards.timeline.window import TimeWindow, around, within
from overlapscope_dashboards.views.overview import step as parts_of_step

WIDTH: Final = 1_100
"""Pixels of the time axis: cells of many spans are that fine."""
ROW_PIXELS: Final = 30
MARGIN_PIXELS: Final = 110
ROUNDING: Final = 1e-6
"""Relative difference up to which parts add up."""
LABEL_SHARE: Final = 0.12
"""Room for the words beside the longest bar, as a share of the axis."""
WATERFALLS: Final = ("part", "cause", "collective")
"""What a difference can be split by, in the order of the page Compare."""
SplitBy = Literal["part", "cause", "collective"]
_QUIET: Final = {"modebar": {"remove": ["sendChartToCloud", "sendDataToCloud"]}}  # of plotly 7 and 6
"""Names in traces are private: no button that uploads a figure."""


class RunInMemory:
    """A run that was read, for its timeline."""

    folder: Path | None = None
    entries: Sequence[RankEntry] = ()
    revision = "memory"

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def cross_rank(self) -> CrossRank:
        """Matched collectives and aligned clocks."""
        return match_and_align(self.run)

    @cached_property
    def chains(self) -> RunChains:
        """The dependency graphs."""
        return RunChains(self.run, self.cross_rank)

    @cached_property
    def source(self) -> TimelineSource:
        """The timeline; raises InputError where the run has no times."""
        return TimelineSource(self)


def timeline(
    of: RunInMemory, *, ranks: Sequence[int] | None, step: int | None, window_ms: tuple[float, float] | None,
    host: bool, critical_path: bool,
) -> go.Figure:  # fmt: skip
    """Return the timeline of a run, as the dashboard draws it, with times in ms from the run's start.

    Raises UsageError for a rank or step that was not recorded, InputError where the run has no times.
    """
    source = of.source
    chosen = _ranks(source.ranks, ranks)
    if critical_path:
        source.follow_path()
        if source.path is None:
            raise InputError(f"there is no critical path: {source.no_path}")
    show = tuple(name for name, wanted in ((HOST, host), (PATH, critical_path)) if wanted)
    drawn = draw(source, TimelineQuery(window=_window(source, chosen, step, window_ms), ranks=chosen, show=show), WIDTH)
    own = {name: value for name, value in drawn.figure["layout"].items() if name != "template"}
    layout = {**own, **_QUIET, "height": drawn.height, "showlegend": False}
    return go.Figure({"data": [*map(_heat_map, drawn.rasters), *drawn.figure["data"]], "layout": layout})


def step_waterfall(analysis: Analysis) -> go.Figure:
    """Return a waterfall of a step's parts: medians, with a bar for what they miss of, or exceed, the median step; or
    means, which only miss something where steps overlap.

    Raises InputError where the run has no times.
    """
    parts = parts_of_step(analysis)
    if parts is None:
        raise InputError("the run has no times, so there are no parts of a step")
    rows = [(each.name, each.kind, each.ns) for each in parts.segments]
    missed = parts.whole_ns - sum(ns for _, _, ns in rows)
    if abs(missed) > ROUNDING * parts.whole_ns:
        what = "medians" if analysis.mean_step is None else "means"
        rows.append((f"{what} do not add up", "idle", missed))
    edges = pairwise(accumulate((ns for _, _, ns in rows), initial=0.0))
    bars = [(name, kind, *edge) for (name, kind, _), edge in zip(rows, edges, strict=True)]
    bars.append((parts.what, "idle", 0.0, parts.whole_ns))
    title = f"Where a {parts.what} of {ms(parts.whole_ns)} ms goes"
    return _floating(title, parts.basis, bars)


def difference_waterfall(comparison: Comparison, by: SplitBy) -> go.Figure:
    """Return a waterfall from the base to the candidate, as the page Compare draws it.

    Raises InputError where a side has no times, UsageError for another `by`.
    """
    if by not in WATERFALLS:
        raise UsageError(f"by={by!r}: it is one of {', '.join(WATERFALLS)}")
    found = waterfalls(comparison)
    if not found:
        raise InputError("a run has no times, so there is no difference in step time")
    drawn = found[WATERFALLS.index(by)]
    bars = [("base", "total", 0.0, float(drawn.base_ns)), *map(_moved, drawn.rows)]
    bars.append(("candidate", "total", 0.0, float(drawn.candidate_ns)))
    return _floating(drawn.title, "", bars)


def _moved(row: WaterfallRow) -> tuple[str, str, float, float]:
    return row.name, "more" if row.to_ns > row.from_ns else "less", row.from_ns, row.to_ns


def _floating(title: str, below: str, bars: Sequence[tuple[str, str, float, float]]) -> go.Figure:
    """Return one horizontal bar for each (name, kind, from ns, to ns), the first on top."""
    named = [looks(kind) for _, kind, _, _ in bars]
    shown = go.Bar(
        orientation="h",
        base=[start / 1e6 for *_, start, _ in bars],
        x=[(end - start) / 1e6 for *_, start, end in bars],
        y=list(range(len(bars))),
        text=[f"{ms(end - start)} ms" for *_, start, end in bars],
        customdata=[plain(name) for name, *_ in bars],
        hovertemplate="%{customdata}: %{text}<extra></extra>",
        textposition="outside",
        cliponaxis=False,
        marker={"color": [colour for colour, _ in named],
                "pattern": {"shape": [pattern for _, pattern in named], "fgcolor": "#fff", "fillmode": "overlay"}},
    )  # fmt: skip
    edges = [edge / 1e6 for *_, start, end in bars for edge in (start, end)]
    room = (max(edges) - min(edges)) * LABEL_SHARE
    axis = {"tickvals": list(range(len(bars))), "ticktext": [plain(name) for name, *_ in bars], "automargin": True}
    return go.Figure(
        shown,
        {
            "title": {"text": plain(title), "subtitle": {"text": plain(below)}}, "bargap": 0.3, **_QUIET,
            "height": len(bars) * ROW_PIXELS + MARGIN_PIXELS, "margin": {"t": 70, "b": 40},
            "xaxis": {"ticksuffix": " ms", "separatethousands": True, "range": [min(edges), max(edges) + room]},
            "yaxis": {"range": [len(bars) - 0.5, -0.5], "fixedrange": True, **axis},
        },
    )  # fmt: skip


def _heat_map(raster: Raster) -> dict[str, Any]:
    """Return the cells of all ranks, which the dashboard draws itself, as a trace."""
    cells = np.frombuffer(raster.cells, np.uint8).reshape(raster.rows, raster.bins)
    last = max(len(raster.colours) - 1, 1)
    scale = [
        [edge, _css(colour)]
        for at, colour in enumerate(raster.colours)
        for edge in (max((at - 0.5) / last, 0), min((at + 0.5) / last, 1))
    ]
    return {
        "type": "heatmap", "z": cells, "zmin": 0, "zmax": last, "colorscale": scale, "showscale": False,
        "x0": raster.first_ms + raster.width_ms / 2, "dx": raster.width_ms, "xaxis": "x", "yaxis": "y",
        "hoverinfo": "skip", "ygap": raster.gap, "name": raster.part,
    }  # fmt: skip


def _css(colour: Rgba) -> str:
    red, green, blue, seen = colour
    return f"rgba({red},{green},{blue},{seen / 255:.3f})"


def _ranks(there: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(there[:FIRST_RANKS])
    missing = [rank for rank in wanted if rank not in set(there)]
    if not wanted:
        raise UsageError(f"ranks is empty: name one of {list_some(there)}, or leave it out")
    if missing:
        raise UsageError(f"rank {list_some(missing)} was not recorded; there are ranks {list_some(there)}")
    if len(wanted) > MAX_RANKS:
        raise UsageError(
            f"the streams of {count(len(wanted), 'rank')} cannot be shown at once; name at most {MAX_RANKS}"
        )
    return tuple(sorted(set(wanted)))


def _window(
    source: TimelineSource, ranks: Sequence[int], step: int | None, window_ms: tuple[float, float] | None
) -> TimeWindow:
    if window_ms is not None:
        if step is not None:
            raise UsageError("name a step or a window_ms, not both")
        start_ns, end_ns = (round(each * 1e6) for each in window_ms)
        return within(start_ns, end_ns, source.whole)
    if step is None:
        return source.whole
    found = [(start, end) for rank in ranks for each, start, end in source.steps(rank) if each.step == step]
    if not found:
        there = sorted({each.step for rank in ranks for each, _, _ in source.steps(rank)})
        raise UsageError(f"step {step} was not recorded; there are steps {list_some(there) or 'of no number'}")
    return around(min(start for start, _ in found), max(end for _, end in found), source.whole, share=0.96)
