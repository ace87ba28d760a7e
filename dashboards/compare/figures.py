"""The figures of the compare page, from a gate's verdicts and its comparison of two runs."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from overlapscope.analysis.common.cause_table import CAUSES, cause_label
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.compare.compare import Attributions, Comparison, headline_attributions
from overlapscope.analysis.job_step.attribution import (
    COMPUTE,
    COPY,
    EXPOSED,
    IDLE,
    IDLE_OR_COPIES,
    OUTSIDE,
    START,
    Attribution,
)
from overlapscope.analysis.job_step.metrics import Metric
from overlapscope.gate.judge import MetricVerdict
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import ms, signed_percent
from overlapscope.report.model import Chart, Series
from overlapscope.report.sheet.gate import headline, metric_words
from overlapscope.report.text.compare import (
    METRIC_LABELS,
    difference_words,
    part_names,
    relative_words,
    value_words,
)
from overlapscope.report.verdicts import GATE
from overlapscope_dashboards.parts.bars import Segment
from overlapscope_dashboards.parts.waterfall import Waterfall, WaterfallRow

MAX_ROWS: Final = 10
"""Most rows of a waterfall; the rest is summed in one row."""
CHANGED: Final = tuple(GATE[each].words for each in ("regressed", "improved"))
"""Verdicts of metrics that changed."""
NOT_OF_A_RANK: Final = (START, OUTSIDE)
"""Parts of a step outside the ranks' own windows: drawn as idle, and no idle time of a rank."""
STATE_CLASSES: Final = {
    COMPUTE: "compute", COPY: "copy", IDLE: "idle", IDLE_OR_COPIES: "idle", **dict.fromkeys(NOT_OF_A_RANK, "idle"),
}  # fmt: skip


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one run (`base` or `candidate`)."""

    side: str
    whole_ns: int
    segments: tuple[Segment, ...]
    """Medians, which need not add up to `whole_ns`."""

    @property
    def drawn_ns(self) -> float:
        """Length of the bar: all segments fit in."""
        return max(self.whole_ns, sum(each.ns for each in self.segments))


class MetricRow(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both runs, as text."""

    name: str
    base: str
    candidate: str
    difference: str
    relative: str
    verdict: str
    why: str
    gates: bool
    """Whether it can fail the gate."""


def finding(gate: Gate) -> str:
    """Return the finding of the page: the verdict, and how much longer or shorter a step takes where that is known."""
    step = next((each for each in gate.metrics if each.name == "step_time_ns"), None)
    word, _, why = headline(gate).partition(":")
    if step is None or step.difference is None or gate.comparison.structure is not None:
        return f"{word.capitalize()}:{why}"
    if gate.verdict == "passed":  # says what the gate found, not what came of it
        word = GATE[step.verdict].words
    what = "a step takes" if gate.comparison.window == "step" else "the recording takes"
    if not step.difference:
        return f"{word.capitalize()}: {what} {ms(step.candidate)} ms as before"
    moved = f"{ms(abs(step.difference))} ms {'more' if step.difference > 0 else 'less'}"
    relative = f" ({signed_percent(step.relative)})" if step.relative is not None else ""
    return f"{word.capitalize()}: {what} {moved}, {ms(step.base)} → {ms(step.candidate)} ms{relative}"


def bars(comparison: Comparison) -> tuple[StepBar, ...]:
    """Return the parts of a step of each run, exposed communication by cause; empty without times."""
    found = headline_attributions(comparison)
    if found is None:
        return ()
    return tuple(
        StepBar(side=side, whole_ns=getattr(found.step_time, f"{side}_ns"), segments=_segments(found, side))
        for side in ("base", "candidate")
    )


def waterfalls(comparison: Comparison) -> tuple[Waterfall, ...]:
    """Return the differences in step time and in exposed communication, split by part, cause and collective."""
    found = headline_attributions(comparison)
    if found is None:
        return ()
    what = "step time" if comparison.window == "step" else "length of the recording"
    of_collectives = found.exposed_by_collective
    calls, causes, parts = (
        part_names(each, comparison.collectives) for each in (of_collectives, found.exposed_by_cause, found.step_time)
    )
    kinds = {**STATE_CLASSES, EXPOSED: "exposed"}
    cause_kinds = [_kind_of_cause(each.name) for each in found.exposed_by_cause.parts]
    return (
        _waterfall(f"Difference in {what}", found.step_time, parts, [kinds.get(each, "") for each in parts]),
        _waterfall("Difference in exposed time, by cause", found.exposed_by_cause, causes, cause_kinds),
        _waterfall("Difference in exposed time, by collective", of_collectives, calls, [""] * len(calls)),
    )


def metric_rows(gate: Gate) -> tuple[MetricRow, ...]:
    """Return every metric known of either run, gating ones first, with verdict and reason."""
    judged = {each.name: each for each in gate.metrics}
    known = {each.name: each for each in gate.comparison.metrics}
    order = sorted(
        (name for name in METRIC_LABELS if name in known), key=lambda name: not (name in judged and judged[name].gates)
    )
    return tuple(
        _row(known[name], judged.get(name))
        for name in order
        if known[name].base.value is not None or known[name].candidate.value is not None
    )


def exposed_by_step(sides: Sequence[tuple[str, Sequence[Chart]]]) -> Chart | None:
    """Return a chart of the exposed time of both runs' complete steps, aligned at the first complete step of each.

    `sides` are pairs of name and charts of the analysis. None where a run has fewer than two complete steps.
    """
    found = [
        (name, series.values)
        for name, charts in sides
        for chart in charts
        if chart.kind == "lines"
        for series in chart.series
        if series.name.startswith("exposed")
    ]
    if len(found) < len(sides):
        return None
    longest = max(len(values) for _, values in found)
    return Chart(
        title="Exposed communication, step by step",
        words="Mean over ranks; complete steps in order.",
        kind="lines",
        axis="ms",
        categories=tuple(str(at + 1) for at in range(longest)),
        series=tuple(Series(name=name, values=(*values, *[None] * (longest - len(values)))) for name, values in found),
    )


def _segments(found: Attributions, side: str) -> tuple[Segment, ...]:
    causes = [
        Segment(name=f"exposed: {cause_label(each.name)}", ns=getattr(each, f"{side}_ns"),
                kind=_kind_of_cause(each.name))
        for each in found.exposed_by_cause.parts
    ]  # fmt: skip
    others = {
        each.name: Segment(name=each.name, ns=getattr(each, f"{side}_ns"), kind=STATE_CLASSES.get(each.name, "unknown"))
        for each in found.step_time.parts
        if each.name != EXPOSED
    }
    compute = [others.pop(COMPUTE)] if COMPUTE in others else []
    return tuple(each for each in (*compute, *causes, *others.values()) if each.ns > 0)


def _kind_of_cause(name: str) -> str:
    return name if name in CAUSES else "unknown"


def _waterfall(title: str, whole: Attribution, names: Sequence[str], kinds: Sequence[str]) -> Waterfall:
    parts = [
        (short(name), kind, each.base_ns, each.candidate_ns)
        for name, kind, each in zip(names, kinds, whole.parts, strict=True)
    ]
    shown, rest = parts[:MAX_ROWS], parts[MAX_ROWS:]
    if rest:
        shown.append((f"{len(rest)} more", "", sum(each[2] for each in rest), sum(each[3] for each in rest)))
    edges = pairwise(accumulate((after - before for _, _, before, after in shown), initial=whole.base_ns))
    rows = tuple(
        WaterfallRow(name=name, kind=kind, base_ns=before, candidate_ns=after, from_ns=start, to_ns=end)
        for (name, kind, before, after), (start, end) in zip(shown, edges, strict=True)
    )
    return Waterfall(title=title, base_ns=whole.base_ns, candidate_ns=whole.candidate_ns, rows=rows)


def _row(metric: Metric, judged: MetricVerdict | None) -> MetricRow:
    return MetricRow(
        name=METRIC_LABELS[metric.name],
        base=value_words(metric, metric.base),
        candidate=value_words(metric, metric.candidate),
        difference=difference_words(metric),
        relative=relative_words(metric),
        verdict="" if judged is None else GATE[judged.verdict].words,
        why="" if judged is None else metric_words(judged).partition(": ")[2],
        gates=judged is not None and judged.gates,
    )
