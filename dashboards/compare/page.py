"""The page that compares two runs: what changed, whether that is more than chance, and where it comes from."""

from collections.abc import Mapping, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.compare import ComparedRun
from overlapscope.analysis.findings import titles
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import Gate, judge
from overlapscope.report.formatting import count, ms
from overlapscope.report.sheet.charts import charts_of
from overlapscope.report.sheet.gate import headline
from overlapscope.report.text.compare import sentence
from overlapscope.report.verdicts import GATE
from overlapscope_dashboards.compare import figures as view
from overlapscope_dashboards.compare.steps import step_cards
from overlapscope_dashboards.parts import card, empty, figure_card, next_command, notes, stacked_bar, table, waterfall
from overlapscope_dashboards.parts.charts import lines, twin
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.recent import Recent
from overlapscope_dashboards.runs.site import run_address

MAX_NOTES = 8
MAX_COMPARED = 8
"""Comparisons kept of a run."""


def layout(base: Opened, candidate: Opened, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `query` chooses the step that is laid above the other run's."""
    compared = candidate.once("compare", lambda: Recent[Gate](MAX_COMPARED))
    gate = compared.get((base.id, base.revision), lambda: judge([base.replicate], [candidate.replicate], Policy()))
    said = [line for line in sentence(gate.comparison).splitlines() if line]
    urgent, others = titles(gate.comparison.findings)
    findings = [
        *([notes(urgent, warning=True)] if urgent else []),
        *([notes(others[:MAX_NOTES])] if others else []),
        *_commands(base, candidate),
    ]
    return [
        html.Div(
            [
                html.P(said[0], className="lead"),
                *(html.P(line, className="under-lead") for line in said[1:]),
                _verdict(gate),
            ],
            className="intro",
        ),
        html.Div(
            [
                *_bars(gate, base, candidate),
                *_waterfalls(gate, card("Beside it", findings)),
                *_metrics(gate),
                *step_cards(base, candidate, query),
                *_steps(base, candidate),
            ],
            className="grid",
        ),
    ]


def sides(base: Opened, candidate: Opened) -> Component:
    """Return the two runs by name, as links."""
    return html.P(
        ["base ", dcc.Link(base.name, href=run_address(base.id)), ", candidate ",
         dcc.Link(candidate.name, href=run_address(candidate.id)), " · ",
         dcc.Link("the other way round", href=compare_address(candidate.id, base.id))],
        className="over",
    )  # fmt: skip


def compare_address(base: str, candidate: str) -> str:
    """Return the address that compares two runs by their ids."""
    return f"/compare?base={base}&candidate={candidate}"


def _verdict(gate: Gate) -> Component:
    word, _, rest = headline(gate).partition(":")
    return html.P([html.Strong(word, className=GATE[gate.verdict].tone), f":{rest}"], className="under-lead")


def _bars(gate: Gate, base: Opened, candidate: Opened) -> list[Component]:
    found = view.bars(gate.comparison)
    longest = max((each.whole_ns for each in found), default=0)
    if not longest:
        return []
    rows = []
    told = (base, gate.comparison.base[0]), (candidate, gate.comparison.candidate[0])
    for each, (opened, run) in zip(found, told, strict=True):
        drawn = html.Div(stacked_bar(each.segments, each.whole_ns),
                         style={"width": f"{100 * each.whole_ns / longest:.2f}%"})  # fmt: skip
        what = gate.comparison.window or "recording"
        rows += [
            html.P([html.Strong(f"{each.side}: {opened.name}"),
                    f"  {ms(each.whole_ns)} ms a {what}, {_told(run)}"], className="side"),
            drawn,
        ]  # fmt: skip
    words = "Means over ranks and steps, on one scale. The tables below have every part."
    return [card("A step, side by side", rows, words=words)]


def _told(run: ComparedRun) -> str:
    steps = count(len(run.steps), "step") if run.steps else "whole recording"
    return f"{count(len(run.ranks), 'rank')}, {steps}"


def _waterfalls(gate: Gate, beside: Component) -> list[Component]:
    unit = f"ms a {gate.comparison.window}" if gate.comparison.window == "step" else "ms"
    cards = [
        card(each.title, waterfall(each, unit=unit), wide=wide)
        for each, wide in zip(view.waterfalls(gate.comparison), ("", "half", ""), strict=False)
    ]
    if not cards:
        return [beside]
    step, causes, collectives = cards
    return [step, causes, html.Div([collectives, beside], className="stack half")]


def _metrics(gate: Gate) -> list[Component]:
    found = view.metric_rows(gate)
    if not found:
        return [card("Metric by metric", empty("Neither side knows any figure of a step."))]
    head = (f"a {gate.comparison.window or 'recording'}, ms", "verdict", "base", "candidate", "difference", "%", "why")
    rows = [
        (each.name, each.verdict, each.base, each.candidate, each.difference, each.relative, _why(each.why))
        for each in found
    ]
    note = "Medians over steps; means over ranks. Of one run a side; more runs tell smaller differences from chance."
    told = table(head, rows, caption="Metrics of both runs", left=2, hide_caption=True, note=note)
    return [card("Metric by metric", html.Div(told, className="verdicts"))]


def _why(words: str) -> Component:
    return html.Span(words, className="why")


def _steps(base: Opened, candidate: Opened) -> list[Component]:
    charts = [(f"{side}: {each.name}", charts_of(each.analysis))
              for side, each in (("base", base), ("candidate", candidate))]  # fmt: skip
    found = view.exposed_by_step(charts)
    if found is None:
        return []
    return [figure_card(found.title, lines(found, ("accent", "exposed"), x="step"), twin(found), words=found.words,
                        id="compare-steps")]  # fmt: skip


def _commands(base: Opened, candidate: Opened) -> Sequence[Component]:
    both = f"{base.command('RUN')} {candidate.command('RUN')}"
    return [
        next_command("The same in a terminal", f"overlapscope compare {both} --all"),
        next_command("With an exit code, for CI", f"overlapscope gate {both}"),
    ]
