"""The recommendations page: a card for each change, with its chain, its gain, how to apply it and how to verify it."""

from collections.abc import Mapping, Sequence
from typing import Final

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.advice.rule_input import COMPARE, VERIFY
from overlapscope.analysis.compare.prediction_check import Outcome
from overlapscope.errors import InputError, UsageError
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.parts.chain_picture import draw_chain
from overlapscope_dashboards.parts.quantities import rounded_ms, with_times
from overlapscope_dashboards.parts.text import aria, code, documentation, evidence
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import run_address
from overlapscope_dashboards.timeline.blocking_chain import BlockingChain, blocking_chain, chain_picture
from overlapscope_dashboards.views import recommendations as view
from overlapscope_dashboards.views.scenarios import query_of_advice

TITLE = "Recommendations"
ORDER = 60
HEAD: Final = ("settings", "measured in", "predicted on", "predicted ms", "90 % interval", "measured ms", "error", "")


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; the largest loss comes first, and changes of numerics last."""
    found, reasons = opened.advice
    cards = view.shown(found, view.current_step(opened.analysis))
    outcomes, problem = _outcomes(opened)
    first = [_show(opened, each) for each in cards[:1]]
    last = ", changes of numerics last" if any(each.changes_numerics for each in found) else ""
    return [
        html.Div(
            [
                html.P([*with_times(view.lead(found)), *first], className="lead"),
                *([html.P(f"Largest loss first{last}; all bars have one scale.", className="note")] if cards else []),
            ],
            className="intro",
        ),
        html.Div([_one(opened, number, each, outcomes) for number, each in enumerate(cards, 1)], className="stack"),
        html.Div([*_notes(opened, reasons), _earlier(opened, outcomes, problem)], className="grid later-cards"),
    ]  # fmt: skip


def _one(opened: OpenRun, number: int, each: view.ShownAdvice, outcomes: Sequence[Outcome]) -> Component:
    tags = [html.Span(words, className=f"pill {tone}".rstrip()) for words, tone in each.tags]
    title = html.H2([html.Span(str(number), className="disc"), each.title])
    head = html.Div([title, html.Div(tags, className="pills")], className="advice-head")
    return html.Section(
        [
            head,
            html.Div([_because(opened, each), _gain(opened, each, outcomes), _apply(opened, each)], className="advice"),
        ],
        className="card",
        id=f"advice-{each.id.replace(':', '-')}",
    )


def _because(opened: OpenRun, each: view.ShownAdvice) -> Component:
    address = run_address(opened.id, "timeline", {"chain": f"advice-{each.id}"})
    found = _chain(opened, each)
    if isinstance(found, str):
        drawn: list[Component] = [
            html.P(f"There is no place on the timeline that shows it: {found}.", className="note")
        ]
    else:
        picture = chain_picture(opened.run, found)
        scale = [html.Span(f"{rounded_ms(ns)} ms") for ns in (picture.start_ns, picture.end_ns)]
        drawn = [
            dcc.Link([draw_chain(picture), html.Span(f"The chain on the timeline: {each.title}", className="unseen")],
                     href=address, className="chain-link"),
            html.Div(scale, className="scale", **aria(hidden="true")),
            html.P(picture.words),
            html.P(_show(opened, each)),
        ]  # fmt: skip
    facts = [html.Div([html.Dt(name), html.Dd(words)]) for name, words in each.facts]
    return html.Div([html.H3("Because"), *drawn, html.Details([html.Summary("What it is based on"),
                     html.Dl(facts, className="facts")])])  # fmt: skip


def _show(opened: OpenRun, each: view.ShownAdvice) -> Component:
    address = run_address(opened.id, "timeline", {"chain": f"advice-{each.id}"})
    return evidence("show the chain", address, f"what this rests on: {each.title}")


def _chain(opened: OpenRun, each: view.ShownAdvice) -> BlockingChain | str:
    """Return the chain of a recommendation, or why there is none."""

    def made() -> BlockingChain | str:
        try:
            return blocking_chain(opened, f"advice-{each.id}")
        except (UsageError, InputError) as error:
            return opened.without_root(error)

    return opened.once(f"recommendations.chain.{each.id}", made)


def _gain(opened: OpenRun, each: view.ShownAdvice, outcomes: Sequence[Outcome]) -> Component:
    words = [html.P(with_times(each.gain_words), className="gain-words")] if each.gain_words else []
    cost = [html.P(f"{each.cost} of the whole job.", className="note")] if each.cost else []
    return html.Div(
        [html.H3("Gain"), *words, html.P(each.why_words, className="note"), *_bar(each.gain), *cost,
         *_history(opened, each, outcomes)]
    )  # fmt: skip


def _bar(gain: view.ShownGain | None) -> list[Component]:
    """Return what is left of the step as a bar: a prediction ends in a dot with its interval, a bound is hatched."""
    if gain is None or not gain.whole_ns:
        return []
    least, most = gain.left(gain.high_ns), gain.left(max(gain.low_ns, 0))
    left = least if gain.gain_ns is None else gain.left(gain.gain_ns)
    drawn: list[Component] = [
        html.Div(className="left", style={"width": _percent(left)}),
        html.Div(className="saved", style={"width": _percent(1 - left)}),
    ]
    if gain.gain_ns is not None:
        drawn += [html.Span(className="interval", style={"left": _percent(least), "width": _percent(most - least)}),
                  html.Span(className="dot", style={"left": _percent(left)})]  # fmt: skip
    then_ns, now_ns = left * gain.whole_ns, gain.whole_ns
    said = f"{rounded_ms(then_ns)} ms {'at best' if gain.gain_ns is None else 'predicted'}, now {rounded_ms(now_ns)} ms"
    return [
        html.Div(drawn, className="gain-bar", title=said, **aria(hidden="true")),
        html.P(said, className="note"),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.4f}%"


def _history(opened: OpenRun, each: view.ShownAdvice, outcomes: Sequence[Outcome]) -> list[Component]:
    tested = view.earlier(view.of_setting(each, outcomes))
    if tested:
        return [html.P(view.earlier_words(tested))]
    if not each.knobs:
        return []
    words = "Predicted against measured: no run with these settings was compared with this one yet."
    store = opened.command("overlapscope advise RUN --record")
    return [html.P([f"{words} To have it tested, ", html.Code(store), " before that."], className="note")]


def _apply(opened: OpenRun, each: view.ShownAdvice) -> Component:
    used, others = each.apply[:1], each.apply[1:]
    inside: list[Component] = []
    for _, name, text in used:
        inside += [html.H3(f"Apply: {name}"), code(text, label=f"{each.title}, {name}")]
    if others:
        names = ", ".join(name for _, name, _ in others)
        folded = [part for _, name, text in others
                  for part in (html.H4(name), code(text, label=f"{each.title}, {name}"))]  # fmt: skip
        inside.append(html.Details([html.Summary(f"Also for {names}"), *folded]))
    inside.append(html.H3("Verify"))
    if each.verify == VERIFY:
        inside += [html.P("Record a run with the change, then:", className="note"),
                   code(opened.command(COMPARE), label=f"Verify: {each.title}")]  # fmt: skip
    else:
        inside.append(html.P(html.Code(opened.command(each.verify)), className="command"))
    return html.Div([*inside, html.P(_links(opened, each), className="actions")])


def _links(opened: OpenRun, each: view.ShownAdvice) -> list[Component]:
    asked = query_of_advice(each.id, each.knobs)
    tried = (
        [dcc.Link("Try it in What-if", href=run_address(opened.id, "what-if", asked), className="button")]
        if asked
        else []
    )
    return [*tried, documentation("advice", each.id, "read more")]


def _notes(opened: OpenRun, reasons: Sequence[str]) -> list[Component]:
    links = html.P([
        dcc.Link("Try other settings", href=run_address(opened.id, "what-if")), " · ",
        dcc.Link("Stragglers and wait times", href=run_address(opened.id, "ranks")),
    ], className="note")  # fmt: skip
    return [card("Notes", [notes(reasons), links], wide="half")] if reasons else []


def _outcomes(opened: OpenRun) -> tuple[list[Outcome], str]:
    """Return the predictions that later runs measured, and why they cannot be read; empty where they can."""
    try:
        return opened.prediction_outcomes, ""
    except InputError as error:
        return [], opened.without_root(error)


def _earlier(opened: OpenRun, outcomes: Sequence[Outcome], problem: str) -> Component:
    title = "Predicted against measured"
    if problem:
        return card(title, empty(problem), wide="half")
    tested = view.earlier(outcomes)
    if not tested:
        words = "No prediction of this run was measured by a later run yet."
        then = next_command("Record a run with changed settings, and compare it with this one",
                            opened.command("overlapscope compare RUN NEW_RUN"))  # fmt: skip
        return card(title, empty(words, then), wide="half")
    rows = table(HEAD, view.earlier_rows(tested), caption=title, left=3, hide_caption=True)
    return card(title, rows, words=view.earlier_words(tested))
