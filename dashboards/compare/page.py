"""The page that compares two runs: what changed, whether the change is significant, and where it comes from."""

from collections.abc import Mapping, Sequence

from dash import dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.common.findings import titles
from overlapscope.analysis.common.wording import short
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
from overlapscope_dashboards.parts.tables import VERDICT
from overlapscope_dashboards.parts.text import aria, copy_link
from overlapscope_dashboards.parts.waterfall import Waterfall
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.runs.site import run_address
from overlapscope_dashboards.timeline.evidence import STATES

MAX_NOTES = 8
MAX_SETTINGS = 6
STEPS_HEIGHT = 260
SHOWN_BY = {*CAUSES, *STATES}
"""Parts of a step whose longest time the timeline can show."""
MAX_COMPARED = 8
"""Most comparisons cached for a run."""


def layout(base: OpenRun, candidate: OpenRun, query: Mapping[str, str]) -> tuple[str, list[Component]]:
    """Return the finding and the page below it: the picture, then verdicts, then everything else folded.

    `query` selects the step that is shown for both runs.
    """
    compared = candidate.once("compare", lambda: RecentCache[Gate](MAX_COMPARED))
    gate = compared.get((base.id, base.revision), lambda: judge([base.replicate], [candidate.replicate], Policy()))
    step_of_both = step_cards(base, candidate, query)
    by_part, *by_cause = view.waterfalls(gate.comparison)[:2] or [None]
    beside = [
        each for each in (_waterfall(gate, by_part, base, candidate), *_steps(base, candidate)) if each is not None
    ]
    causes = [_waterfall(gate, each, base, candidate) for each in by_cause]
    why = [each for each in (*causes, _findings(gate, base, candidate)) if each]
    return view.finding(gate), [
        html.Div([*_lead(gate), _changed_settings(gate)], className="intro"),
        html.Div(
            [*step_of_both, *_pairwise(beside), *_pairwise(why), *_verdicts(gate), *_folded(gate, base, candidate)],
            className="grid",
        ),
    ]  # fmt: skip


def sides(base: OpenRun, candidate: OpenRun) -> Component:
    """Return the two runs by name, as links."""
    return html.P(
        ["base ", dcc.Link(base.name, href=run_address(base.id)), ", candidate ",
         dcc.Link(candidate.name, href=run_address(candidate.id)), " · ",
         dcc.Link("swap", href=compare_address(candidate.id, base.id)), " · ",
         dcc.Link("choose others", href=f"/?pick={base.id},{candidate.id}"), " ", copy_link()],
        className="over",
    )  # fmt: skip


def compare_address(base: str, candidate: str) -> str:
    """Return the address that compares two runs by their ids."""
    return f"/compare?base={base}&candidate={candidate}"


def _lead(gate: Gate) -> list[Component]:
    """Return what changed besides the step, and the verdict with the figures that decided it."""
    exposed, *others = [line for line in sentence(gate.comparison).splitlines() if line]
    others = [line for line in others if not line.startswith("Step time ")]
    word, _, rest = headline(gate).partition(":")
    if not view.finding(gate).endswith(rest):  # otherwise the heading says it already
        others.append(f"{word}:{rest}")
    lines = [html.P(_with_tone(line, gate), className="under-lead") for line in others]
    return [html.P(exposed, className="lead"), *lines]


def _with_tone(line: str, gate: Gate) -> list[Component | str]:
    word, _, rest = line.partition(":")
    return [html.Strong(word, className=GATE[gate.verdict].tone), f":{rest}"] if word.isupper() else [line]


def _changed_settings(gate: Gate) -> Component:
    """Return the settings and versions that differ, each as before and after."""
    return html.Ul(
        [
            html.Li(html.Code(f"{each.key} {short(', '.join(each.base))} → {short(', '.join(each.candidate))}"))
            for each in gate.comparison.differences[:MAX_SETTINGS]
        ],
        className="differences",
        **aria(label="What differs between the runs"),
    )


def _pairwise(cards: Sequence[Component]) -> list[Component]:
    """Return cards side by side, an only one over the whole width."""
    return [html.Div(each, className="stack half" if len(cards) > 1 else "stack whole") for each in cards]


def _findings(gate: Gate, base: OpenRun, candidate: OpenRun) -> Component:
    urgent, others = titles([each for each in gate.comparison.findings if not each.id.startswith("differs_")])
    parts: list[Component] = [notes(urgent, warning=True)] if urgent else []
    parts += [notes(others[:MAX_NOTES])] if others else []
    return card("Findings", [*parts, *_commands(base, candidate)])


def _bars(gate: Gate, base: OpenRun, candidate: OpenRun) -> list[Component]:
    found = view.bars(gate.comparison)
    longest = max((each.drawn_ns for each in found), default=0)
    if not longest:
        return []
    rows = []
    runs = (base, gate.comparison.base[0]), (candidate, gate.comparison.candidate[0])
    for each, (opened, run) in zip(found, runs, strict=True):
        drawn = html.Div(stacked_bar(each.segments, each.drawn_ns),
                         style={"width": f"{100 * each.drawn_ns / longest:.4f}%"})  # fmt: skip
        what = gate.comparison.window or "recording"
        rows += [
            html.P([html.Strong(f"{each.side}: {opened.name}"),
                    f"  {ms(each.whole_ns)} ms per {what}, {_extent(run)}"], className="side"),
            drawn,
        ]  # fmt: skip
    words = "On the same scale; medians, which need not add up. The tables above list every part."
    return [card("A step, side by side", rows, words=words)]


def _extent(run: ComparedRun) -> str:
    steps = count(len(run.steps), "step") if run.steps else "whole recording"
    return f"{count(len(run.ranks), 'rank')}, {steps}"


def _waterfall(gate: Gate, drawn: Waterfall | None, base: OpenRun, candidate: OpenRun) -> Component | None:
    """Return the card; each part leads to its longest time in the run that has more of it."""
    if drawn is None:
        return None
    rows = tuple(
        replace(each, address=run_address(longer.id, "timeline", {"chain": f"longest-{each.kind}"}))
        if each.kind in SHOWN_BY and each.name not in view.NOT_OF_A_RANK and max(each.base_ns, each.candidate_ns) > 0
        else each
        for each in drawn.rows
        for longer in [candidate if each.candidate_ns >= each.base_ns else base]
    )
    unit = f"ms per {gate.comparison.window}" if gate.comparison.window == "step" else "ms"
    return card(drawn.title, waterfall(replace(drawn, rows=rows), unit=unit))


def _verdicts(gate: Gate) -> list[Component]:
    found = view.metric_rows(gate)
    if not found:
        return [card("Verdicts", empty("No step figure is known for either run."))]
    first = [each for each in found if each.gates or each.verdict in view.CHANGED]
    rest = [each for each in found if each not in first]
    shown: list[Component] = [html.P("No metric has a verdict.")]
    if first:
        shown = [_metrics(gate, first, "Metrics that gate or changed")]
    if rest:
        summary = html.Summary(f"{count(len(rest), 'metric')} more" if first else count(len(rest), "metric"))
        shown.append(html.Details([summary, _metrics(gate, rest, "Other metrics")]))
    words = "Medians over steps, means over ranks, one run per side. More runs make smaller differences significant."
    return [card("Verdicts", shown, words=words)]


def _metrics(gate: Gate, found: Sequence[view.MetricRow], caption: str) -> Component:
    head = (f"ms per {gate.comparison.window or 'recording'}", VERDICT, "base", "candidate", "difference", "%", "why")
    rows = [
        (each.name, each.verdict, each.base, each.candidate, each.difference, each.relative, _why(each.why))
        for each in found
    ]
    return html.Div(table(head, rows, caption=caption, left=2, hide_caption=True), className="verdicts")


def _folded(gate: Gate, base: OpenRun, candidate: OpenRun) -> list[Component]:
    """Return the same differences by collective, and the parts of a step of each run, folded."""
    by_collective = [_waterfall(gate, each, base, candidate) for each in view.waterfalls(gate.comparison)[2:]]
    cards = [each for each in (*by_collective, *_bars(gate, base, candidate)) if each is not None]
    if not cards:
        return []
    summary = html.Summary("By collective, and every part of a step side by side")
    return [html.Details([summary, html.Div(cards, className="stack")], className="whole folded")]


def _why(words: str) -> Component:
    return html.Span(words, className="why")


def _steps(base: OpenRun, candidate: OpenRun) -> list[Component]:
    charts = [(f"{side}: {each.name}", charts_of(each.analysis))
              for side, each in (("base", base), ("candidate", candidate))]  # fmt: skip
    found = view.exposed_by_step(charts)
    if found is None:
        return []
    return [figure_card(found.title, lines(found, ("accent", "exposed"), x="step"), chart_table(found),
                        words=found.words, id="compare-steps", height=STEPS_HEIGHT)]  # fmt: skip


def _commands(base: OpenRun, candidate: OpenRun) -> Sequence[Component]:
    both = f"{base.command('RUN')} {candidate.command('RUN')}"
    return [
        next_command("The same in a terminal", f"overlapscope compare {both} --all"),
        next_command("With an exit code, for CI", f"overlapscope gate {both}"),
    ]
