"""The page that compares two runs: what changed, whether the change is significant, and where it comes from."""

from collections.abc import Mapping, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.common.findings import titles
from overlapscope.analysis.compare.compare import ComparedRun
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
from overlapscope_dashboards.parts.charts import chart_table, lines
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.runs.site import run_address

MAX_NOTES = 8
MAX_COMPARED = 8
"""Most comparisons cached for a run."""


def layout(base: OpenRun, candidate: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `query` selects the step that is shown for both runs."""
    compared = candidate.once("compare", lambda: RecentCache[Gate](MAX_COMPARED))
    gate = compared.get((base.id, base.revision), lambda: judge([base.replicate], [candidate.replicate], Policy()))
    sentences = [line for line in sentence(gate.comparison).splitlines() if line]
    urgent, others = titles(gate.comparison.findings)
    findings = [
        *([notes(urgent, warning=True)] if urgent else []),
        *([notes(others[:MAX_NOTES])] if others else []),
        *_commands(base, candidate),
    ]
    return [
        html.Div(
            [
                html.P(sentences[0], className="lead"),
                *(html.P(line, className="under-lead") for line in sentences[1:]),
                _verdict(gate),
            ],
            className="intro",
        ),
        html.Div(
            [
                *_bars(gate, base, candidate),
                *_waterfalls(gate, card("Findings", findings)),
                *_metrics(gate),
                *step_cards(base, candidate, query),
                *_steps(base, candidate),
            ],
            className="grid",
        ),
    ]


def sides(base: OpenRun, candidate: OpenRun) -> Component:
    """Return the two runs by name, as links."""
    return html.P(
        ["base ", dcc.Link(base.name, href=run_address(base.id)), ", candidate ",
         dcc.Link(candidate.name, href=run_address(candidate.id)), " · ",
         dcc.Link("swap", href=compare_address(candidate.id, base.id))],
        className="over",
    )  # fmt: skip


def compare_address(base: str, candidate: str) -> str:
    """Return the address that compares two runs by their ids."""
    return f"/compare?base={base}&candidate={candidate}"


def _verdict(gate: Gate) -> Component:
    word, _, rest = headline(gate).partition(":")
    return html.P([html.Strong(word, className=GATE[gate.verdict].tone), f":{rest}"], className="under-lead")


def _bars(gate: Gate, base: OpenRun, candidate: OpenRun) -> list[Component]:
    found = view.bars(gate.comparison)
    longest = max((each.drawn_ns for each in found), default=0)
    if not longest:
        return []
    rows = []
    runs = (base, gate.comparison.base[0]), (candidate, gate.comparison.candidate[0])
    for each, (opened, run) in zip(found, runs, strict=True):
        drawn = html.Div(stacked_bar(each.segments, each.drawn_ns),
                         style={"width": f"{100 * each.drawn_ns / longest:.2f}%"})  # fmt: skip
        what = gate.comparison.window or "recording"
        rows += [
            html.P([html.Strong(f"{each.side}: {opened.name}"),
                    f"  {ms(each.whole_ns)} ms per {what}, {_extent(run)}"], className="side"),
            drawn,
        ]  # fmt: skip
    words = "On the same scale; medians, which need not add up. The tables below list every part."
    return [card("A step, side by side", rows, words=words)]


def _extent(run: ComparedRun) -> str:
    steps = count(len(run.steps), "step") if run.steps else "whole recording"
    return f"{count(len(run.ranks), 'rank')}, {steps}"


def _waterfalls(gate: Gate, findings: Component) -> list[Component]:
    unit = f"ms per {gate.comparison.window}" if gate.comparison.window == "step" else "ms"
    cards = [
        card(each.title, waterfall(each, unit=unit), wide=wide)
        for each, wide in zip(view.waterfalls(gate.comparison), ("", "half", ""), strict=False)
    ]
    if not cards:
        return [findings]
    step, causes, collectives = cards
    return [step, causes, html.Div([collectives, findings], className="stack half")]


def _metrics(gate: Gate) -> list[Component]:
    found = view.metric_rows(gate)
    if not found:
        return [card("Metric by metric", empty("No step figure is known for either run."))]
    head = (f"ms per {gate.comparison.window or 'recording'}", "verdict", "base", "candidate", "difference", "%", "why")
    rows = [
        (each.name, each.verdict, each.base, each.candidate, each.difference, each.relative, _why(each.why))
        for each in found
    ]
    note = "Medians over steps, means over ranks, one run per side. More runs make smaller differences significant."
    metrics = table(head, rows, caption="Metrics of both runs", left=2, hide_caption=True, note=note)
    return [card("Metric by metric", html.Div(metrics, className="verdicts"))]


def _why(words: str) -> Component:
    return html.Span(words, className="why")


def _steps(base: OpenRun, candidate: OpenRun) -> list[Component]:
    charts = [(f"{side}: {each.name}", charts_of(each.analysis))
              for side, each in (("base", base), ("candidate", candidate))]  # fmt: skip
    found = view.exposed_by_step(charts)
    if found is None:
        return []
    return [figure_card(found.title, lines(found, ("accent", "exposed"), x="step"), chart_table(found),
                        words=found.words, id="compare-steps")]  # fmt: skip


def _commands(base: OpenRun, candidate: OpenRun) -> Sequence[Component]:
    both = f"{base.command('RUN')} {candidate.command('RUN')}"
    return [
        next_command("The same in a terminal", f"overlapscope compare {both} --all"),
        next_command("With an exit code, for CI", f"overlapscope gate {both}"),
    ]
