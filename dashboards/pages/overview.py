"""The overview page: how much communication is exposed, why, and what to do about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.result import Analysis
from overlapscope.report.formatting import count, ms
from overlapscope.report.sheet.charts import charts_of
from overlapscope.report.text.analysis import recording_lines
from overlapscope.timeline.columns import NONE
from overlapscope_dashboards.parts import (
    BarRow,
    bar_table,
    card,
    empty,
    figure_card,
    key_figures,
    next_command,
    notes,
    stacked_bar,
    table,
)
from overlapscope_dashboards.parts.charts import chart_table, lines
from overlapscope_dashboards.parts.quantities import with_times
from overlapscope_dashboards.parts.text import documentation, evidence
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.theme import HEAT_SCALE, figure
from overlapscope_dashboards.views import overview as view
from overlapscope_dashboards.views import recommendations as advice

TITLE = "Overview"
ORDER = 10
LOOK_MS = 1_500
"""How often the page asks whether the recommendations are ready."""
MAX_RECOMMENDED = 3
MAX_NOTES = 3
ROUNDING = 1e-6
"""Relative difference up to which parts add up."""
MAX_ROWS, MAX_HEIGHT = 64, 440
MAX_MAP_ROWS, MAX_MAP_COLUMNS = 120, 200
"""Most rows and columns of the heat map, about three pixels each; more ranks or steps share cells."""
WIDTHS = ("", "", "half", "third")
"""Width classes of cards, by the number of cards side by side."""


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; a callback adds the recommendations later, because a replay may take a while."""
    analysis = opened.analysis
    figures = view.key_figures(analysis)
    what = [view.facts(analysis), *recording_lines(analysis)]
    return [
        html.Div([_sentence(opened, view.lead(analysis), "lead"), *(html.P(line, className="note") for line in what)],
                 className="intro"),
        _answers(opened, analysis),
        *([key_figures(figures)] if figures else []),
        html.Div(
            [*_step(opened, analysis), *_places(analysis), *_over_time(opened, analysis), *_findings(opened, analysis)],
            className="grid",
        ),
    ]  # fmt: skip


def _answers(opened: OpenRun, analysis: Analysis) -> Component:
    """Return the cards on what happened, why, and what to do; one that has nothing to say is not there."""
    priced = [html.P(["What it would take on a device: ",
                      dcc.Link("What-if", href=run_address(opened.id, "what-if")), "."])]  # fmt: skip
    is_dry = analysis.headline.window is None and analysis.dry_step is not None
    said = (
        ("What happened", view.happened(analysis), priced if is_dry else []),
        ("Why", view.why(analysis), _warnings(opened, analysis)),
    )
    parts = [(title, [_sentence(opened, each, "") for each in own], more) for title, own, more in said if own or more]
    wide = WIDTHS[len(parts) + 1]
    cards = [card(title, [*sentences, *more], wide=wide) for title, sentences, more in parts]
    return html.Div([*cards, _advice_card(wide)], className="grid three")


def _sentence(opened: OpenRun, each: view.Sentence, kind: str) -> Component:
    return html.P([*with_times(each.words), *_shown_at(opened, each.proofs)], className=kind)


def register(app: Dash, site: Site) -> None:
    """Register the callback that fills in the recommendations after the page is shown."""

    @app.callback(
        Output("overview-advice", "children"),
        Output("overview-look", "disabled"),
        Input("overview-advice", "id"),
        Input("overview-look", "n_intervals"),
        State("address", "pathname"),
    )
    def fill(_: str, __: int | None, path: str) -> tuple[Any, bool]:
        found = site.in_background("overview.advice", path, recommended)
        return (no_update, False) if found is None else (found, True)


def recommended(opened: OpenRun) -> list[Component]:
    """Return the first recommendations, each with its gain, and the way to its card."""
    found, reasons = opened.advice
    if not found:
        return [empty("Nothing to recommend."), *([notes(reasons)] if reasons else [])]
    page = run_address(opened.id, "recommendations")
    items = [
        html.Li([
            html.P([each.title, evidence("show", _place(opened, f"advice-{each.id}"), "what it rests on")],
                   className="title"),
            *([html.P(with_times(gain), className="gain")] if (gain := advice.gain_words(each)) else []),
            html.P([dcc.Link("How to apply and verify it", href=f"{page}#advice-{each.id.replace(':', '-')}"), " · ",
                    documentation("advice", each.id)], className="how"),
        ])
        for each in found[:MAX_RECOMMENDED]
    ]  # fmt: skip
    more = len(found) - MAX_RECOMMENDED
    rest = [html.P(dcc.Link(f"{more} more", href=page))] if more > 0 else []
    said = [html.Details([html.Summary(count(len(reasons), "remark")), notes(reasons)])] if reasons else []
    return [html.Ol(items, className="recommended"), *rest, *said]


def _place(opened: OpenRun, chain: str) -> str:
    return run_address(opened.id, "timeline", {"chain": chain})


def _step(opened: OpenRun, analysis: Analysis) -> list[Component]:
    found = view.step(analysis)
    if found is None:
        return []
    rows = [
        BarRow(name=each.name, ns=each.ns, kind=each.kind, shows=shows,
               address=_place(opened, chain) if chain else "")
        for each in found.segments
        for chain, shows in [view.place_of_part(each)]
    ]  # fmt: skip
    drawn_ns = sum(each.ns for each in found.segments)
    parts = bar_table(rows, caption=f"Parts of a {found.what}", unit=f"ms per {found.what}", whole_ns=found.whole_ns,
                      stacked_ns=drawn_ns)  # fmt: skip
    adds = abs(drawn_ns - found.whole_ns) < found.whole_ns * ROUNDING
    sums = "" if adds else f"; they need not add up to {ms(found.whole_ns)} ms"
    words = f"{found.basis or 'One recording'}{sums}. To scale."
    return [card(f"Where a {found.what} goes", [stacked_bar(found.segments, drawn_ns), parts], words=words)]


def _advice_card(wide: str) -> Component:
    waiting = html.P("Replaying the steps …", className="note")
    return card(
        "What to do",
        [
            html.Div(waiting, id="overview-advice", className="later"),
            dcc.Interval(id="overview-look", interval=LOOK_MS, disabled=True),
        ],
        wide=wide,
    )


def _places(analysis: Analysis) -> list[Component]:
    what = analysis.headline.window or "recording"
    found = view.by_place(analysis)
    return [
        card(
            f"Exposed by {each.name}",
            bar_table(each.rows, caption=f"Exposed time by {each.name}", unit=f"ms per {what}", first=each.name,
                      whole_ns=sum(row.ns for row in each.rows)),
            wide=WIDTHS[len(found)],
        )
        for each in found
    ]  # fmt: skip


def _over_time(opened: OpenRun, analysis: Analysis) -> list[Component]:
    """Return the trend over steps and the chart by rank, side by side if both exist."""
    trend = [each for each in charts_of(analysis) if each.kind == "lines"]
    found = view.grid(analysis)
    missing = [] if trend or analysis.headline.window is None else [_no_trend(opened, analysis)]
    height = 280 if found is None else max(280, min(100 + 18 * len(found.ranks), MAX_HEIGHT))
    ranks = _ranks(opened, analysis, found, height=height, alone=not trend and not missing)
    wide = WIDTHS[len(trend) + len(ranks)]
    return [
        *(
            figure_card(each.title, lines(each), chart_table(each), words=each.words,
                        id=f"overview-trend-{at}", wide=wide, height=height)
            for at, each in enumerate(trend)
        ),
        *ranks,
        *missing,
    ]  # fmt: skip


def _no_trend(opened: OpenRun, analysis: Analysis) -> Component:
    steps = analysis.headline.steps
    words = (
        "One complete step was recorded"
        if steps == 1 and analysis.headline.window == "step"
        else "No complete step was recorded"
    )
    then = next_command("Record more", "overlapscope capture --steps 8 -- torchrun train.py")
    return card("Trend over steps", empty(f"{words}: a trend needs two.", then), wide="half")


def _ranks(
    opened: OpenRun, analysis: Analysis, found: view.RankStepGrid | None, *, height: int, alone: bool
) -> list[Component]:
    by_rank = view.by_rank(analysis)
    wide = "" if alone else "half"
    if not by_rank:
        return []
    if found is None:
        if len(by_rank) == 1:
            return []
        shown = sorted(by_rank, key=lambda each: -each.ns)[:MAX_ROWS]
        words = (
            "The time of each rank."
            if len(shown) == len(by_rank)
            else f"The {MAX_ROWS} most exposed of {len(by_rank)} ranks."
        )
        rows = [
            msgspec.structs.replace(each, address=_place(opened, f"longest-exposed-{each.name.removeprefix('rank ')}"))
            if each.ns
            else each
            for each in by_rank
            if each in shown
        ]
        bars = bar_table(rows, caption="Exposed time by rank", unit="ms",
                         first="rank", whole_ns=None)  # fmt: skip
        return [card("Exposed by rank", bars, words=words, wide=wide)]
    drawn = view.heat_map(found, MAX_MAP_ROWS, MAX_MAP_COLUMNS)
    words = f"Exposed communication; stronger colour means more. {drawn.words}".rstrip()
    return [
        figure_card("Exposed by rank and step", draw_heat_map(drawn), _grid_table(found), words=words,
                    id="overview-ranks", wide=wide, height=height)
    ]  # fmt: skip


def draw_heat_map(found: view.HeatMap) -> dict[str, Any]:
    """Return a heat map figure of exposed time by rank and step."""
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": list(found.columns),
        "y": list(found.rows),
        "z": [[None if ns == NONE else round(ns / 1e6, 3) for ns in row] for row in found.most_ns.tolist()],
        "colorscale": [list(each) for each in HEAT_SCALE],
        "zmin": 0,
        "zmax": int(found.most_ns.max(initial=0)) / 1e6 or 1,
        "xgap": 1 if len(found.columns) <= 100 else 0,
        "ygap": 1 if len(found.rows) <= 32 else 0,
        "colorbar": {"title": {"text": "ms", "side": "top"}, "thickness": 10, "outlinewidth": 0, "len": 0.9},
        "hovertemplate": "rank %{y}, step %{x}<br><b>%{z:,.3f} ms</b> exposed<extra></extra>",
        "hoverongaps": False,
    }
    if found.words:
        trace["customdata"] = np.stack((found.rank, found.step), axis=2).tolist()
        trace["hovertemplate"] = (
            "ranks %{y}, steps %{x}<br>most: <b>%{z:,.3f} ms</b> exposed on rank %{customdata[0]}, "
            "step %{customdata[1]}<extra></extra>"
        )
    axes = {
        "xaxis": {"type": "category", "nticks": 12, "showgrid": False},
        "yaxis": {"type": "category", "autorange": "reversed", "nticks": 24, "showgrid": False},
    }
    return figure([trace], x="step", y="rank", layout=axes)


def _grid_table(found: view.RankStepGrid) -> Component:
    """Return a table of the most exposed ranks and steps; a table of all would be too large."""
    rows, columns = view.most_exposed(found, MAX_ROWS)
    cells = [
        (
            f"rank {found.ranks[row]}",
            *(ms(None if ns == NONE else ns) for ns in found.exposed_ns[row, columns].tolist()),
        )
        for row in rows
    ]
    cut = [
        f"{len(shown)} most exposed of {len(there)} {noun}"
        for shown, there, noun in ((rows, found.ranks, "ranks"), (columns, found.steps, "steps"))
        if len(shown) < len(there)
    ]
    return table(
        ("exposed, ms", *(f"step {found.steps[at]}" for at in columns)), cells,
        caption="Exposed milliseconds by rank and step", note=f"The {', the '.join(cut)}." if cut else "",
    )  # fmt: skip


def _warnings(opened: OpenRun, analysis: Analysis) -> list[Component]:
    urgent = [each for each in analysis.findings if each.severity == "warning"]
    if not urgent:
        return []
    shown, more = urgent[:MAX_NOTES], urgent[MAX_NOTES:]
    rest = [html.Details([html.Summary(f"{len(more)} more"), _listed(opened, more)])] if more else []
    return [_listed(opened, shown, warning=True), *rest]


def _findings(opened: OpenRun, analysis: Analysis) -> list[Component]:
    others = [each for each in analysis.findings if each.severity != "warning"]
    return [card("Findings", _listed(opened, others))] if others else []


def _listed(opened: OpenRun, found: Sequence[Finding], *, warning: bool = False) -> Component:
    lines = [
        [each.title, " ", documentation("findings", each.id), *_shown_at(opened, view.place_of_finding(each))]
        for each in found
    ]
    return notes(lines, warning=warning)


def _shown_at(opened: OpenRun, proofs: Sequence[view.Evidence]) -> list[Component]:
    return [evidence(each.words, _place(opened, each.chain), each.what) for each in proofs]
