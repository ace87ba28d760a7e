"""The charts of a document: where step time goes, why communication is exposed, and how both change."""

from collections.abc import Iterator, Sequence
from typing import Literal

from overlapscope.analysis.common.cause_table import cause_label, idle_label
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.compare.collective_changes import CollectiveChange
from overlapscope.analysis.compare.compare import Comparison, headline_attributions
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.job_step.attribution import Attribution
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import Analysis
from overlapscope.report.formatting import count, ms, size
from overlapscope.report.model import Chart, Series
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.sheet.analysis import call_name
from overlapscope.report.sheet.document import Document, comparison_of
from overlapscope.report.sheet.history import charts_of_history
from overlapscope.report.sheet.scaling import charts_of_scaling
from overlapscope.report.sheet.waiting import wait_charts
from overlapscope.report.text.compare import METRIC_LABELS, part_names
from overlapscope.report.text.exposed_causes import exposed_by_cause
from overlapscope.report.text.idle_time import idle_of_steps

MAX_ROWS = 64
"""At most this many ranks are drawn as bars."""
MAX_POINTS = 1_000
"""A chart of lines draws at most this many steps; of more steps every n-th, which the chart states."""
MAX_PARTS = 10
PARTS = {
    "exposed_comm_ns": ("exposed communication", "exposed"),
    "overlapped_ns": ("overlapped communication", "hidden"),
    "compute_only_ns": ("compute only", "compute"),
    "copy_only_ns": ("memcpy only", "copy"),
    "idle_ns": ("idle", "idle"),
}
"""The parts of a window by label and colour; they add up to its length."""


def charts_of(document: Document) -> tuple[Chart, ...]:
    """Return the charts of a document that have any values."""
    comparison = comparison_of(document)
    if comparison is not None:
        found = [*_of_comparison(comparison)]
    elif isinstance(document, History):
        found = [*charts_of_history(document)]
    elif isinstance(document, Scaling):
        found = [*charts_of_scaling(document)]
    else:
        assert isinstance(document, Analysis)
        found = [*_of_analysis(document)]
    return tuple(each for each in found if each.categories and any(s.values for s in each.series))


def _of_analysis(analysis: Analysis) -> Iterator[Chart]:
    head = analysis.headline
    if head.window is None:
        return
    what, there, mean = head.window, set(head.ranks), analysis.mean_step
    of_rank = {info.rank: rank_figures(info, mean) for info in analysis.ranks if info.rank in there}
    shown = sorted(sorted(of_rank, key=lambda rank: -(of_rank[rank]["exposed_comm_ns"] or 0))[:MAX_ROWS])
    cut = (
        f" Shown: the {len(shown)} of {len(of_rank)} ranks with the most exposed time."
        if len(shown) < len(of_rank)
        else ""
    )
    exposed = [(rank, of_rank[rank]["exposed_comm_ns"] or 0) for rank in shown]
    worst = max(exposed, key=lambda each: each[1])
    parts = "Medians of each part, which need not add up" if head.steps > 1 else f"Parts of a {what}"
    parts = parts if mean is None else f"Means of {count(mean.steps, 'step')}"
    yield Chart(
        title=f"Where a {what} goes, by rank",
        words=f"{parts}; most exposed on rank {worst[0]}, {ms(worst[1])} ms.{cut}",
        kind="stacked",
        axis=f"ms a {what}",
        categories=tuple(f"rank {rank}" for rank in shown),
        series=tuple(
            _part(label, colour, [of_rank[rank][name] for rank in shown]) for name, (label, colour) in PARTS.items()
        ),
    )
    yield from _steps(head)
    on_cpu = not analysis.run.has_device
    exposed_ns, of_mean = exposed_by_cause(analysis)
    causes = [(cause_label(name, on_cpu=on_cpu), ns) for name, ns in exposed_ns.items()]
    yield _parts("Why communication is exposed", f"{'mean ' * of_mean}ms a {what}", causes)
    main = analysis.main_figures
    times = idle_of_steps(analysis)[0] / (main.idle_ns or 1)
    idle = [(idle_label(name, on_cpu=on_cpu), times * ns) for name, ns in main.idle_causes.items()]
    if {*main.idle_causes} != {"unknown"}:
        of_mean = mean is not None or times != 1
        yield _parts("Why time is idle", f"{'mean ' * of_mean}ms a {what}", idle, "idle")
    yield from wait_charts(analysis)
    rows = [(_call_label(each), each.exposed_ns or 0) for each in analysis.collectives]
    yield _parts(
        "Exposed time by collective", "ms, sum over all calls, mean over ranks", [each for each in rows if each[1]]
    )


def _call_label(row: CollectiveRow) -> str:
    size_words = "" if row.bytes is None else f" {size(row.bytes)}"
    return f"{call_name(row)}{size_words}"


def _part(label: str, colour: str, values: Sequence[float | None]) -> Series:
    return Series(name=label, values=tuple(None if value is None else value / 1e6 for value in values), colour=colour)


def _parts(title: str, axis: str, rows: Sequence[tuple[str, float]], what: str = "exposed communication") -> Chart:
    """Return a chart with one bar per part of `what`, the largest first."""
    largest = sorted(rows, key=lambda each: -each[1])[:MAX_PARTS]
    words = f"Most: {largest[0][0]}, {ms(largest[0][1])} ms." if largest else ""
    return Chart(
        title=title, words=words, kind="grouped", axis=axis, section="why",
        categories=tuple(name for name, _ in largest),
        series=(
            Series(
                name=what, colour="idle" if what == "idle" else "exposed", values=tuple(ns / 1e6 for _, ns in largest)
            ),
        ),
    )  # fmt: skip


def _steps(head: Headline) -> Iterator[Chart]:
    """Yield the chart over steps: step time, and exposed time as the mean over ranks."""
    steps = len(head.job_steps)
    if steps < 2:
        return
    stride = -(-steps // MAX_POINTS)
    shown = head.job_steps[::stride]
    lengths, exposed = ([getattr(each, name) / 1e6 for each in shown] for name in ("step_ns", "exposed_comm_ns"))
    thinned = f" Every {stride}. step is drawn." if stride > 1 else ""
    yield Chart(
        title="Step by step",
        words=f"{steps} steps of {min(lengths):,.3f} to {max(lengths):,.3f} ms; "
        f"exposed {min(exposed):,.3f} to {max(exposed):,.3f} ms.{thinned}",
        kind="lines",
        axis="ms",
        categories=tuple(f"step {each.step}" for each in shown),
        series=(
            Series(name="step time", values=tuple(lengths)),
            Series(name="exposed communication, mean of ranks", values=tuple(exposed), colour="exposed"),
        ),
    )


def _of_comparison(comparison: Comparison) -> Iterator[Chart]:
    by_name = {each.name: each for each in comparison.metrics}
    chosen = [by_name[name] for name in METRIC_LABELS if name in by_name and by_name[name].unit == "ns"]
    known = [each for each in chosen if each.base.value or each.candidate.value]
    base, candidate = (
        [None if side.value is None else side.value / 1e6 for side in sides]
        for sides in ([each.base for each in known], [each.candidate for each in known])
    )
    names = [METRIC_LABELS[each.name] for each in known]
    what = comparison.window or "step"
    axis = f"ms a {what}"
    yield _base_and_candidate("Figures of a step, side by side", axis, names, base, candidate)
    found = headline_attributions(comparison)
    if found is None:
        return
    rows = comparison.collectives
    yield _shares("What the step consists of", found.step_time, rows, "how much", what)
    yield _shares("Why communication is exposed", found.exposed_by_cause, rows, "why", what)
    yield _shares("Exposed time by collective", found.exposed_by_collective, rows, "why", what)


def _shares(
    title: str, whole: Attribution, rows: Sequence[CollectiveChange], section: Literal["how much", "why"], what: str
) -> Chart:
    names = [short(each) for each in part_names(whole, rows)[:MAX_PARTS]]
    base, candidate = (
        [getattr(p, side) / 1e6 for p in whole.parts[:MAX_PARTS]] for side in ("base_ns", "candidate_ns")
    )
    return _base_and_candidate(title, f"ms a {what}", names, base, candidate, section)


def _base_and_candidate(
    title: str,
    axis: str,
    names: Sequence[str],
    base: Sequence[float | None],
    candidate: Sequence[float | None],
    section: Literal["how much", "why"] = "how much",
) -> Chart:
    changes = [
        (name, after - before)
        for name, before, after in zip(names, base, candidate, strict=True)
        if before is not None and after is not None
    ]
    most = max(changes, key=lambda each: abs(each[1]), default=None)
    return Chart(
        title=title, words=f"Largest change: {most[0]}, {most[1]:+,.3f} ms." if most else "", kind="grouped",
        axis=axis, categories=tuple(names), section=section,
        series=(Series(name="base", values=tuple(base)), Series(name="candidate", values=tuple(candidate))),
    )  # fmt: skip
