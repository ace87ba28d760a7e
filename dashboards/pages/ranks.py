"""The ranks page: stragglers and their causes, wait times, clock offsets, and telemetry."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.analysis.common.cause_table import WAITS_FOR_ANOTHER_RANK
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.telemetry import readings
from overlapscope.report.formatting import EXPLAIN
from overlapscope.report.palette import SEQUENCE
from overlapscope_dashboards.parts import card, empty, figure_card, key_figures, next_command, notes, table
from overlapscope_dashboards.parts.charts import DASHES
from overlapscope_dashboards.parts.panels import height, panels
from overlapscope_dashboards.parts.text import evidence
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, Site, parse_query, run_address
from overlapscope_dashboards.theme import COLOURS, faded, figure, plain
from overlapscope_dashboards.views import ranks as view

TITLE = "Ranks"
ORDER = 40
MAX_ROWS: Final = 1_024
PANEL_PX: Final = 96
MARKED_STEPS: Final = 24
MARKED_POINTS: Final = 120
WIDEST: Final = 0.75
"""Largest width of a bar; one rank has the width 1."""
BARS: Final = (
    ("wait_ns", "wait time, ms", "waiting"),
    ("blame_ns", "wait caused on other ranks, ms", "exposed"),
    ("idle_ns", "idle, ms", "idle"),
)


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `?ranks=0,6` selects the ranks whose telemetry is shown."""
    analysis = opened.analysis
    if not analysis.ranks:
        words = "No rank was recorded, so wait times are not known."
        return [html.Section(empty(words, _record()), className="card")]
    chosen, unknown = view.chosen(query.get("ranks"), analysis)
    if unknown:
        there = [
            (f"rank {each.rank}", run_address(opened.id, "ranks", {"ranks": each.rank})) for each in analysis.ranks
        ]
        raise NotFound(f"This run has no rank {', '.join(unknown)}.", there[:64])
    figures = view.key_figures(analysis)
    return [
        html.Div(_lead(opened), className="intro"),
        *([key_figures(figures)] if figures else []),
        html.Div([*_late(analysis), _bars(analysis), _telemetry(opened, chosen), *_clocks(analysis),
                  *_matching(analysis)], className="grid"),
    ]  # fmt: skip


def register(app: Dash, site: Site) -> None:
    """Register the callback that writes the typed ranks into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("ranks-chosen", "value"),
        State("address", "search"),
        State("address", "pathname"),
        prevent_initial_call=True,
    )
    def choose(typed: str | None, search: str | None, path: str) -> Any:
        requested, now = (typed or "").replace(" ", ""), parse_query(search).get("ranks")
        found = site.in_background(("ranks.chosen", now), path, lambda opened: view.chosen(now, opened.analysis))
        if found is None:
            return no_update
        shown, _ = found
        if requested == ",".join(map(str, shown)):
            return no_update
        return f"?{urlencode({'ranks': requested}, safe=',')}" if requested else ""


def _lead(opened: OpenRun) -> list[Component]:
    """Return who is late, and a link to the longest wait for another rank where there is one."""
    causes = opened.analysis.main_figures.causes
    place = run_address(opened.id, "timeline", {"chain": "longest-waiting"})
    waited = any(causes.get(cause) for cause in WAITS_FOR_ANOTHER_RANK)
    proof = [evidence("the longest single wait", place, "on the timeline")] if waited else []
    return [html.P([view.lead(opened.analysis), *proof], className="lead")]


def _late(analysis: Analysis) -> list[Component]:
    found = view.late(analysis)
    if not found:
        return []
    items = [
        html.Li([html.P(each.sentence, className="title"), html.P(each.evidence, className="note")]) for each in found
    ]
    inside = [html.Ol(items, className="recommended"), next_command("What to do", f"{EXPLAIN} straggler")]
    words = "Over the whole recording. A late arrival in several groups counts in each, so a fix gains less."
    return [card("Stragglers and their causes", inside, words=words)]


def _bars(analysis: Analysis) -> Component:
    found = view.rows(analysis)
    shown = []
    wide = 1
    for name, title, colour in BARS:
        bars = view.bars(found, name)
        wide = bars.width
        if any(each is not None for each in bars.values_ms):
            shown.append((title, [_bar(bars, colour)]))
    waits = any(each.wait_ns is not None for each in found)
    words = f"Over the whole recording{', matched collectives only' if waits else ''}." + (
        f" Each bar is the maximum of {wide} neighbouring ranks." if wide > 1 else ""
    )
    cells = view.table_rows(found[:MAX_ROWS])
    note = (
        ""
        if len(cells) == len(found)
        else f"The first {len(cells)} of {len(found)} ranks: overlapscope analyze RUN --all"
    )
    head = ("rank", "wait ms", "of its collectives", "wait caused on others ms", "times last", "idle ms")
    twin = table(head, cells, caption="Wait time by rank", note=note, hide_caption=True)
    if not shown:
        return card("By rank", [empty("Wait and idle times are not known.", _record()), twin])
    few = len(found) <= MARKED_STEPS
    axis = {"tickmode": "linear", "dtick": 1} if few else {"nticks": 16, "tickformat": "d"}
    chart = panels(shown, x="rank", each_px=PANEL_PX, xaxis=axis)
    return figure_card("By rank", chart, twin, words=words, id="ranks-waiting", height=height(len(shown), PANEL_PX))


def _bar(bars: view.RankBars, colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": list(bars.at),
        "y": list(bars.values_ms),
        "width": min(WIDEST, len(bars.at) / 16) * bars.width,
        "marker": {"color": COLOURS[colour]},
        "customdata": list(bars.words),
        "hovertemplate": "%{customdata}<br><b>%{y:,.3f} ms</b><extra></extra>",
        "showlegend": False,
    }


def _clocks(analysis: Analysis) -> list[Component]:
    skew = analysis.skew
    if len(skew.clock_offset_ns) < 2:
        return []
    within = "" if skew.residual_ns is None else f", to within {skew.residual_ns / 1e3:,.1f} µs"
    if not any(skew.clock_offset_ns.values()):
        return [card("Clocks", notes([f"The ranks' clocks agree{within}."]), wide="half")]
    offsets = sorted((int(rank), ns) for rank, ns in skew.clock_offset_ns.items())
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [rank for rank, _ in offsets],
        "y": [ns / 1e3 for _, ns in offsets],
        "error_y": {"type": "constant", "value": (skew.residual_ns or 0) / 1e3, "thickness": 1.5, "width": 3},
        "marker": {"color": COLOURS["accent"], "size": 8},
        "hovertemplate": "rank %{x}<br><b>%{y:+,.1f} µs</b><extra></extra>",
    }
    axes = {
        "yaxis": {"rangemode": "normal", "zeroline": True, "zerolinecolor": COLOURS["idle"], "tickformat": ",d"},
        "xaxis": {"tickmode": "linear", "dtick": 1}
        if len(offsets) <= MARKED_STEPS
        else {"nticks": 16, "tickformat": "d"},
    }
    rows = [(f"rank {rank}", f"{ns / 1e3:+,.1f}") for rank, ns in offsets[:MAX_ROWS]]
    words = f"Each rank's clock relative to the median{within}. All figures are corrected for it. Error bars: residual."
    return [
        figure_card(
            "Clocks", figure([trace], x="rank", y="µs", layout=axes),
            table(("rank", "offset µs"), rows, caption="Clock offsets", hide_caption=True),
            words=words, id="ranks-clocks", height=240, wide="half",
        )
    ]  # fmt: skip


def _telemetry(opened: OpenRun, chosen: Sequence[int]) -> Component:
    clocks = opened.cross_rank.clocks
    found = readings(opened.run, clocks, chosen)
    choose = html.Div(
        [
            html.Label("Ranks", htmlFor="ranks-chosen"),
            dcc.Input(id="ranks-chosen", type="text", value=",".join(map(str, chosen)), debounce=True,
                      autoComplete="off", maxLength=80, className="field"),
            html.Span(f"as 0,3; up to {view.MAX_CHOSEN}", className="note"),
            html.Span([
                html.Span([html.Span(className="swatch", style={"backgroundColor": colour}), f"rank {rank}"])
                for rank, colour in _colours(chosen).items()
            ], className="key"),
        ],
        className="choose",
    )  # fmt: skip
    missing = view.not_recorded(found)
    without = html.P(f"Not recorded for these ranks: {', '.join(missing)}.", className="note") if missing else None
    reported = sorted(
        {str(each) for rank in chosen for each in opened.run.ranks[rank].recorded.get("telemetry_unsupported", [])}
    )
    reasons = [notes(reported)] if reported else []
    if not found:
        words = "No telemetry was recorded for these ranks: only OverlapScope's own capture samples it."
        return card("Telemetry", [choose, empty(words, _record()), *reasons])
    axis = view.axis(opened.run, clocks, chosen, found)
    shown = [(plain(panel.title), _lines(panel, chosen)) for panel in view.panels(found, axis.origin_ns)]
    chart = panels(shown, x=axis.title, each_px=PANEL_PX, layout=_shaded(axis.shaded))
    twin = table(("rank", "reading", "mean", "min", "max", "readings"), view.reading_rows(found),
                 caption="Telemetry", left=2, hide_caption=True)  # fmt: skip
    words = f"Readings of the selected ranks on one time axis; {axis.words}."
    after = [each for each in (without, *reasons) if each is not None]
    return figure_card("Telemetry", chart, twin, words=words, id="ranks-telemetry",
                       height=height(len(shown), PANEL_PX), controls=[choose, *after])  # fmt: skip


def _colours(chosen: Sequence[int]) -> dict[int, str]:
    return {rank: COLOURS[SEQUENCE[at % len(SEQUENCE)]] for at, rank in enumerate(chosen)}


def _lines(panel: view.MeasurePanel, chosen: Sequence[int]) -> list[dict[str, Any]]:
    colours = _colours(chosen)
    seen: dict[int, int] = {}
    traces = []
    for line in panel.lines:
        at = seen[line.rank] = seen.get(line.rank, -1) + 1
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(line.seconds) <= MARKED_POINTS else "lines",
                "name": plain(line.name),
                "showlegend": False,
                "x": list(line.seconds),
                "y": list(line.values),
                "line": {"color": colours[line.rank], "dash": DASHES[at % len(DASHES)], "width": 1.5},
                "marker": {"size": 5, "symbol": list(colours).index(line.rank)},
                "hovertemplate": "%{x:,.3f} s<br><b>%{y:,.4g}</b><extra>%{fullData.name}</extra>",
            }
        )
    return traces


def _shaded(steps: Sequence[view.ShadedStep]) -> dict[str, Any]:
    bands = [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": each.start_s, "x1": each.end_s, "y0": 0, "y1": 1,
         "layer": "below", "line": {"width": 0}, "fillcolor": faded("idle", 0.12)}
        for each in steps
    ]  # fmt: skip
    return {"shapes": bands}


def _matching(analysis: Analysis) -> list[Component]:
    matched = view.matching(analysis)
    return [card("Matching", notes(matched), wide="half")] if matched else []


def _record() -> Component:
    return next_command("Record every rank's training loop", "with overlapscope.profile(path, model=model) as scope:")
