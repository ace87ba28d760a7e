"""All recommendations of a run: what to change, what it gains and risks, how to do it and how to verify it."""

from collections.abc import Mapping, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.errors import InputError
from overlapscope.report.formatting import ms
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.parts.text import aria, chips, code
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.site import run_address
from overlapscope_dashboards.views import recommendations as view

TITLE = "Recommendations"
ORDER = 60
HEAD = ("settings", "measured in", "predicted on", "predicted ms", "90 % interval", "measured ms", "error", "")


def layout(opened: Opened, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `?for=deepspeed` says in whose words changes are written."""
    found, reasons = opened.advice
    shown = view.shown(found, view.now(opened.analysis))
    known = view.frameworks(shown)
    chosen = query.get("for") if query.get("for") in known else None
    most = max((each.interval.high_ns for each in shown if each.interval), default=0)
    items = [_one(opened, number, each, chosen, most) for number, each in enumerate(shown, 1)]
    return [
        html.Div(html.P(view.lead(found), className="lead"), className="intro"),
        *_frameworks(opened, known, chosen),
        html.Div([*items, _reasons(opened, reasons), _earlier(opened)], className="grid"),
    ]


def _frameworks(opened: Opened, known: Sequence[str], chosen: str | None) -> list[Component]:
    if len(known) < 2:
        return []
    links = [
        (view.framework_name(each), run_address(opened.id, "recommendations", {"for": each}),
         each == (chosen or known[0]))
        for each in known
    ]  # fmt: skip
    return [chips("Framework", links)]


def _one(opened: Opened, number: int, each: view.Shown, framework: str | None, most_ns: int) -> Component:
    facts = html.Dl(
        [html.Div([html.Dt(name), html.Dd(words)]) for name, words in each.facts],
        className="facts",
    )
    told = view.code_for(each, framework)
    how: list[Component] = []
    if told is not None:
        how = [html.H3(f"Apply, {told[1]}"), code(told[2], label=f"{each.title}, {told[1]}")]
        if framework is not None and told[0] != framework:
            how.append(html.P(f"It is told for {told[1]} only.", className="note"))
    return card(
        f"{number}. {each.title}",
        [
            html.P(
                [html.Span(each.verdict, className="tag"), f" · {each.gain}" if each.gain else ""],
                className="gain-line",
            ),
            *([_interval(each.interval, most_ns)] if each.interval and most_ns > 0 else []),
            facts,
            *how,
            next_command("Verify", opened.command(each.verify)),
            html.P([html.Span("More: "), html.Code(f"docs/advice/{each.id}.md")], className="command"),
        ],
        wide="half",
    )


def _interval(gain: view.Gain, most_ns: int) -> Component:
    """Draw the gain as a bar from nought, with its interval as a line over it: all cards have one scale."""

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


def _reasons(opened: Opened, reasons: Sequence[str]) -> Component:
    links = html.P([
        dcc.Link("Try other settings", href=run_address(opened.id, "what-if")), " · ",
        dcc.Link("Who waited for whom", href=run_address(opened.id, "ranks")),
    ], className="note")  # fmt: skip
    return card("Besides", [*([notes(reasons)] if reasons else []), links], wide="half")


def _earlier(opened: Opened) -> Component:
    try:
        tested = view.earlier(opened.tested)
    except InputError as error:
        return card("Earlier predictions", empty(opened.without_root(error)), wide="half")
    if not tested:
        words = "No earlier prediction of this run was measured."
        then = next_command("Record a run under changed settings, and hold it against this one",
                            opened.command("overlapscope compare RUN NEW_RUN"))  # fmt: skip
        return card("Earlier predictions", empty(words, then), wide="half")
    rows = table(HEAD, view.earlier_rows(tested), caption="Earlier predictions", left=3, hide_caption=True)
    return card("Earlier predictions", rows, words=view.earlier_words(tested))
