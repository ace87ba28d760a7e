"""Render a comparison as text: exposed milliseconds first, then where they come from, then what else changed."""

from collections.abc import Sequence

from overlapscope.analysis.common.cause_table import cause_label
from overlapscope.analysis.common.findings import titles
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.compare.collective_changes import CollectiveChange
from overlapscope.analysis.compare.compare import ComparedRun, Comparison, headline_attributions
from overlapscope.analysis.compare.kernel_changes import KernelChange
from overlapscope.analysis.job_step.attribution import Attribution
from overlapscope.analysis.job_step.metrics import Estimate, Metric
from overlapscope.report.formatting import (
    aligned,
    amount,
    bandwidth,
    change,
    count,
    ms,
    one_row,
    signed_ms,
    signed_percent,
    size,
)
from overlapscope.report.text import predictions as predictions_text
from overlapscope.report.text import structure as structure_text
from overlapscope.report.verdicts import SEVERITY_MARKS
from overlapscope.timeline.run import DRY_RUN

MAX_PARTS = 5
MAX_FINDINGS = 6
MAX_KERNELS = 3
MAX_RUNS = 3
METRIC_LABELS = {
    "exposed_comm_ns": "exposed",
    "exposed_comm_worst_ns": "exposed, worst rank",
    "step_time_ns": "step time",
    "exposed_wait_ns": "wait time, exposed",
    "hidden_wait_ns": "wait time, overlapped",
    "overlapped_ns": "overlapped",
    "compute_ns": "compute",
    "copy_ns": "memcpy",
    "idle_ns": "idle",
    "overlap_efficiency": "overlap",
    "exposed_fraction": "exposed share",
    "blame_ns": "delayed others, worst rank",
    "comm_ns": "communication",
    "compute_only_ns": "compute only",
    "copy_only_ns": "memcpy only",
    "comm_comp_ratio": "communication / compute",
    "overlap_potential": "overlap potential",
    "outside_ns": "outside the rank's own step",
    "start_of_recording_ns": "start of recording",
}
"""The label of every metric, in the order of the table."""
SHARES_NOTE = "Medians; exposed time is divided by the shares of causes and collectives in all steps together."
SHORT = 11
"""The short table has this many of the first metrics."""


def render(comparison: Comparison, *, all_rows: bool = False) -> str:
    """Return the whole text, ending in a newline; `all_rows` shows every metric, collective, kernel and finding."""
    warnings, others = titles(comparison.findings)
    shown = others if all_rows else others[:MAX_FINDINGS]
    lines = [f"{SEVERITY_MARKS['info']} {one_row(each)}" for each in shown]
    if len(shown) < len(others):
        lines.append(f"{count(len(others) - len(shown), 'more finding')}: --all")
    parts = [
        "\n".join([*_side("base", comparison.base), *_side("candidate", comparison.candidate)]),
        "\n".join(f"{SEVERITY_MARKS['warning']} {one_row(each)}" for each in warnings),
        structure_text.render(comparison.structure, all_rows=all_rows) if comparison.structure is not None else "",
        sentence(comparison),
        _metrics(comparison, all_rows=all_rows) if comparison.window is not None else "",
        _attributions(comparison, all_rows=all_rows),
        _bandwidths(comparison.collectives) if all_rows else "",
        _kernels(comparison, all_rows=all_rows),
        predictions_text.table(comparison.predictions),
        "\n".join(lines),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _side(title: str, runs: Sequence[ComparedRun]) -> list[str]:
    lines = []
    for run in runs[:MAX_RUNS]:
        of_world = f" of {run.world_size}" if run.world_size else ""
        ranks = rank_list(run.ranks) if len(run.ranks) == 1 else f"{len(run.ranks)} ranks"
        steps = count(len(run.steps), "step") if run.steps else "whole recording"
        steps = "dry run" if run.identity.get("recording.basis") == DRY_RUN else steps
        lines.append(f"{title:<10} {short(run.name)}: {ranks}{of_world}, {steps}")
        title = ""
    if len(runs) > MAX_RUNS:
        lines.append(f"{'':<10} {count(len(runs) - MAX_RUNS, 'more run')}")
    return lines


def sentence(comparison: Comparison) -> str:
    """Return how exposed communication and step time changed, one sentence each."""
    if comparison.structure is not None and comparison.window is None:
        return structure_text.NOT_COMPARED
    if comparison.window is None:
        return "No times were recorded on both sides: there is nothing to compare."
    by_name = {each.name: each for each in comparison.metrics}
    exposed = by_name["exposed_comm_ns"]
    if exposed.difference is None:
        words = "Exposed communication cannot be compared: it is n/a on one side."
    else:
        words = f"Exposed communication {_moved(exposed)} a {comparison.window}."
    step = by_name["step_time_ns"]
    if step.difference is not None:
        words = f"{words}\nStep time {_moved(step)}."
    return f"{words}\n{LONGEST_WINDOW}" if by_longest_window(comparison) else words


LONGEST_WINDOW = (
    "Step time is the longest window of any rank here: a run of version 0.1, or with ranks that do not keep step or "
    "whose clocks cannot be aligned."
)


def by_longest_window(comparison: Comparison) -> bool:
    """Return whether the step times of a comparison are longest windows of any rank, not steps of the job."""
    return comparison.window == "step" and comparison.steps_by == "longest_window"


def _moved(metric: Metric) -> str:
    if not metric.difference:
        return f"did not change: {ms(metric.candidate.value)} ms"
    word = "grew" if metric.difference > 0 else "shrank"
    change = f" ({signed_percent(metric.relative)})" if metric.relative is not None else ""
    return (
        f"{word} by {ms(abs(metric.difference))} ms{change}: {ms(metric.base.value)} to {ms(metric.candidate.value)} ms"
    )


def _metrics(comparison: Comparison, *, all_rows: bool) -> str:
    by_name = {each.name: each for each in comparison.metrics}
    names = list(METRIC_LABELS)[: None if all_rows else SHORT]
    chosen = [by_name[name] for name in names if name in by_name]
    known = [each for each in chosen if all_rows or each.base.value or each.candidate.value]
    rows = [*map(metric_cells, known), *rate_rows(comparison)]
    several = len(comparison.base) > 1 or len(comparison.candidate) > 1
    note = f"Medians over {'runs of medians over ' if several else ''}steps; means over ranks."
    head = [f"ms a {comparison.window or 'step'}", "base", "candidate", "difference", "%"]
    lines = [*aligned([head, *rows])]
    if several:
        lines += _spreads(known)
    return "\n".join([*lines, note] if comparison.window == "step" else lines)


def _spreads(chosen: Sequence[Metric]) -> list[str]:
    """Return the range over the runs of each side, for the first three metrics."""
    lines = []
    for each in chosen[:3]:
        sides = (("base", each.base), ("candidate", each.candidate))
        ranges = [f"{name} {ms(side.low)} to {ms(side.high)}" for name, side in sides if side.low is not None]
        if ranges:
            lines.append(f"{METRIC_LABELS[each.name]}, range over runs: {', '.join(ranges)} ms")
    return lines


def metric_cells(metric: Metric) -> tuple[str, ...]:
    """Return the label of a metric, its value on both sides, and its absolute and relative difference."""
    values = value_words(metric, metric.base), value_words(metric, metric.candidate)
    return METRIC_LABELS[metric.name], *values, difference_words(metric), relative_words(metric)


def rate_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the row of tokens/s, where both sides know it, in the cells of `metric_cells`."""
    found = comparison.tokens_per_s
    if found is None:
        return []
    values = (f"{found.base:,.1f}", f"{found.candidate:,.1f}", f"{found.difference:+,.1f}")
    return [("tokens/s", *values, signed_percent(found.relative))]


def value_words(metric: Metric, side: Estimate) -> str:
    """Return the value of a metric on one side, in milliseconds or as a share."""
    if metric.name == "comm_comp_ratio" and side.value is not None:
        return f"{side.value:.3f}"
    return amount(side.value, metric.unit)


def difference_words(metric: Metric) -> str:
    """Return the difference of a metric with its sign: milliseconds, or percentage points."""
    if metric.name == "comm_comp_ratio" and metric.difference is not None:
        return f"{metric.difference:+.3f}"
    return change(metric.difference, metric.unit)


def relative_words(metric: Metric) -> str:
    """Return the relative difference of a time; empty for a share, whose difference is in points."""
    return signed_percent(metric.relative) if metric.unit == "ns" else ""


def _attributions(comparison: Comparison, *, all_rows: bool) -> str:
    """Return where the differences come from: by collective, by cause and by activity; parts add up to each total."""
    found = headline_attributions(comparison)
    if found is None:
        return ""
    wholes = {
        "exposed, by collective": found.exposed_by_collective,
        "exposed, by cause": found.exposed_by_cause,
        "step time" if comparison.window == "step" else "length of the recording": found.step_time,
    }
    shown = [
        _parts(title, whole, part_names(whole, comparison.collectives), all_rows=all_rows)
        for title, whole in wholes.items()
        if whole.parts
    ]
    if not shown:
        return ""
    rows = [row for table in shown for row in (*table, ["", "", "", ""])][:-1]
    head = ["where the difference is, ms", "base", "candidate", "difference"]
    return "\n".join([*aligned([head, *rows]), *([SHARES_NOTE] if comparison.window == "step" else [])])


def _parts(title: str, whole: Attribution, names: Sequence[str], *, all_rows: bool) -> list[list[str]]:
    """Return the total and its parts, the largest differences first; parts left out are summed in one row."""
    limit = len(whole.parts) if all_rows or len(whole.parts) <= MAX_PARTS + 1 else MAX_PARTS
    shown, rest = whole.parts[:limit], whole.parts[limit:]
    cells = [(name, p.base_ns, p.candidate_ns, p.difference_ns) for name, p in zip(names, shown, strict=False)]
    if rest:
        sums = (sum(p.base_ns for p in rest), sum(p.candidate_ns for p in rest), sum(p.difference_ns for p in rest))
        cells.append((f"{len(rest)} more: --all", *sums))
    rows = [[f"  {name}", ms(base), ms(candidate), signed_ms(change)] for name, base, candidate, change in cells]
    return [[title, ms(whole.base_ns), ms(whole.candidate_ns), signed_ms(whole.difference_ns)], *rows]


def part_names(whole: Attribution, rows: Sequence[CollectiveChange]) -> list[str]:
    """Return the name of each part as people read it; `rows` are the collectives of the comparison."""
    return [
        cause_label(each.name) if each.collective is None else collective_words(rows[each.collective])
        for each in whole.parts
    ]


def collective_words(row: CollectiveChange) -> str:
    """Return the name of a kind of collective and how often a step calls it."""
    size_words = size(row.bytes) if row.bytes is not None else ""
    named = (row.op, size_words, row.dtype, row.phase, row.module, f"group {row.group}" if row.group else "")
    words = " ".join(short(each) for each in named if each)
    calls = row.base.calls if row.base.calls == row.candidate.calls else None
    times = f"{calls:.4g}" if calls else f"{row.base.calls:.4g} to {row.candidate.calls:.4g}"
    return f"{words}, {times} a step"


def _bandwidths(rows: Sequence[CollectiveChange]) -> str:
    """Return transfer time and bus bandwidth of each kind of collective on both sides."""
    measured = [row for row in rows if row.base.busbw_gbs is not None or row.candidate.busbw_gbs is not None]
    if not measured:
        return ""
    cells = []
    for row in measured:
        sides = (row.base, row.candidate)
        times, speeds = [ms(s.transfer_ns) for s in sides], [bandwidth(s.busbw_gbs, s.estimate) for s in sides]
        cells.append([collective_words(row), *times, *speeds, signed_percent(row.busbw_relative)])
    head = ["collective", "base ms", "candidate ms", "base GB/s", "candidate GB/s", "%"]
    return "\n".join(aligned([head, *cells]))


def _kernels(comparison: Comparison, *, all_rows: bool) -> str:
    """Return the kernels that changed most; empty for fewer than two (CPU kernels have no names of their own)."""
    kernels = comparison.kernels
    if kernels is None:
        return ""
    limit = None if all_rows else MAX_KERNELS
    shown: list[KernelChange] = [*kernels.grown[:limit], *kernels.shrunk[:limit]]
    if len(kernels.grown) + len(kernels.shrunk) < 2:
        return ""
    rows = []
    for each in sorted(shown, key=lambda each: -each.difference_ns):
        launched_by = f" by {short(each.host_op)}" if each.host_op else ""
        counts = f"{each.base.count:.4g} to {each.candidate.count:.4g}"
        if each.base.count == each.candidate.count:
            counts = f"{each.base.count:.4g}"
        times = (ms(each.base.duration_ns), ms(each.candidate.duration_ns), signed_ms(each.difference_ns))
        rows.append([f"{short(each.name)}{launched_by}", *times, counts])
    head = ["kernels and memcpy, ms", "base", "candidate", "difference", "calls"]
    return "\n".join(aligned([head, *rows]))
