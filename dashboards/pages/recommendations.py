"""The recommendations page: what to change, its gain and risks, how to apply it and how to verify it."""

from collections.abc import Mapping, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.errors import InputError
from overlapscope.report.formatting import EXPLAIN, ms
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.parts.text import aria, chips, code, evidence
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import run_address
from overlapscope_dashboards.views import recommendations as view

TITLE = "Recommendations"
ORDER = 60
HEAD = ("settings", "measured in", "predicted on", "predicted ms", "90 % interval", "measured ms", "error", "")


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `?for=deepspeed` selects the framework of the code snippets."""
    found, reasons = opened.advice
    shown = view.shown(found, view.current_step(opened.analysis))
    known = view.frameworks(shown)
    chosen = query.get("for") if query.get("for") in known else None
    most = max((each.interval.high_ns for each in shown if each.interval), default=0)
    items = [_one(opened, number, each, chosen, most) for number, each in enumerate(shown, 1)]
    return [
        html.Div(html.P(view.lead(found), className="lead"), className="intro"),
        *_frameworks(opened, known, chosen),
        html.Div([*items, _reasons(opened, reasons), _earlier(opened)], className="grid"),
    ]


def _frameworks(opened: OpenRun, known: Sequence[str], chosen: str | None) -> list[Component]:
    if len(known) < 2:
        return []
    links = [
        (view.framework_name(each), run_address(opened.id, "recommendations", {"for": each}),
         each == (chosen or known[0]))
        for each in known
    ]  # fmt: skip
    return [chips("Framework", links)]


def _one(opened: OpenRun, number: int, each: view.ShownAdvice, framework: str | None, most_ns: int) -> Component:
    facts = html.Dl(
        [html.Div([html.Dt(name), html.Dd(words)]) for name, words in each.facts],
        className="facts",
    )
    snippet = view.code_for(each, framework)
    how: list[Component] = []
    if snippet is not None:
        how = [html.H3(f"Apply, {snippet[1]}"), code(snippet[2], label=f"{each.title}, {snippet[1]}")]
        if framework is not None and snippet[0] != framework:
            how.append(html.P(f"Available for {snippet[1]} only.", className="note"))
    return card(
        f"{number}. {each.title}",
        [
            html.P(
                [
                    html.Span(each.verdict, className="tag"),
                    f" · {each.gain}" if each.gain else "",
                    evidence(
                        "on the timeline",
                        run_address(opened.id, "timeline", {"chain": f"advice-{each.id}"}),
                        f"what this rests on: {each.title}",
                    ),
                ],
                className="gain-line",
            ),
            *([_interval(each.interval, most_ns)] if each.interval and most_ns > 0 else []),
            facts,
            *how,
            next_command("Verify", opened.command(each.verify)),
            html.P([html.Span("More: "), html.Code(f"{EXPLAIN} {each.id}")], className="command"),
        ],
        wide="half",
    )


def _interval(gain: view.GainInterval, most_ns: int) -> Component:
    """Return the gain as a bar from zero, with its interval as a line over it; all cards share one scale."""

    def percent(ns: float) -> str:
        return f"{max(0.0, min(100.0, 100 * ns / most_ns)):.2f}%"

    low = max(gain.low_ns, 0)
    line = {"left": percent(low), "width": percent(gain.high_ns - low)}
    drawn = [
        html.Div(className="k-hidden", style={"width": percent(gain.gain_ns)}),
        html.Span(style=line),
    ]
    return html.Div(
        drawn, className="gain-bar", title=f"{ms(gain.low_ns)} to {ms(gain.high_ns)} ms", **aria(hidden="true")
    )


def _reasons(opened: OpenRun, reasons: Sequence[str]) -> Component:
    links = html.P([
        dcc.Link("Try other settings", href=run_address(opened.id, "what-if")), " · ",
        dcc.Link("Stragglers and wait times", href=run_address(opened.id, "ranks")),
    ], className="note")  # fmt: skip
    return card("Notes", [*([notes(reasons)] if reasons else []), links], wide="half")


def _earlier(opened: OpenRun) -> Component:
    try:
        outcomes = view.earlier(opened.prediction_outcomes)
    except InputError as error:
        return card("Earlier predictions", empty(opened.without_root(error)), wide="half")
    if not outcomes:
        words = "No earlier prediction for this run was measured."
        then = next_command("Record a run with changed settings, and compare it with this one",
                            opened.command("overlapscope compare RUN NEW_RUN"))  # fmt: skip
        return card("Earlier predictions", empty(words, then), wide="half")
    rows = table(HEAD, view.earlier_rows(outcomes), caption="Earlier predictions", left=3, hide_caption=True)
    return card("Earlier predictions", rows, words=view.earlier_words(outcomes))
