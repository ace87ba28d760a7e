"""Render a document as OpenMetrics text, which GitLab shows in merge requests and Prometheus reads.

Times are gauges in seconds, exact to the nanosecond. An unknown value has no sample; it is not written as 0.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.compare.compare import Comparison, headline_attributions
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.cost.throughput import Throughput
from overlapscope.analysis.job_step.attribution import Part
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.job_step.metrics import METRICS
from overlapscope.analysis.result import Analysis, MeanStep
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import count, inert
from overlapscope.report.rank_columns import RATIOS, TIMES, rank_figures
from overlapscope.report.sheet.document import Document, comparison_of
from overlapscope.report.text.compare import METRIC_LABELS

PREFIX: Final = "overlapscope_"
HEADLINES: Final = ("step_ns", "exposed_comm_ns", "exposed_wait_ns", "overlapped_ns", "idle_ns", "exposed_fraction",
                    "overlap_efficiency")  # fmt: skip
"""Main figures of a job; its ranks have figures of their own."""
Labels = tuple[tuple[str, str], ...]


class _Family(NamedTuple):
    name: str
    unit: str
    words: str
    samples: list[tuple[Labels, str]]


def render(document: Document) -> str:
    """Return the exposition, ending in `# EOF` and a newline."""
    lines = []
    for family in _families(document):
        if family.samples:
            lines.append(f"# TYPE {family.name} gauge")
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines.append(f"# HELP {family.name} {family.words}")
            lines += [f"{family.name}{_labels(labels)} {value}" for labels, value in family.samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(document: Document) -> Iterator[_Family]:
    if isinstance(document, Analysis):
        yield from _of_analysis(document)
        return
    if isinstance(document, History):
        yield from _of_history(document)
        return
    if isinstance(document, Scaling):
        yield from _of_scaling(document)
        return
    comparison = comparison_of(document)
    if comparison is not None:
        yield from _of_comparison(comparison)
    if isinstance(document, Gate):
        yield from _of_gate(document)


def _of_analysis(analysis: Analysis) -> Iterator[_Family]:
    """Yield medians; where the mean step is the main figure, families of their own with means, too."""
    head, mean = analysis.headline, analysis.mean_step
    of = f"median of {count(head.steps, 'step')}, mean over ranks" if head.steps else "whole recording, mean over ranks"
    yield from _of_ranks(analysis, "median over complete steps, else the whole recording")
    yield from _of_job(head, of)
    if mean is not None:
        stands_first = f"mean of {count(mean.steps, 'step')}, which is the main figure of this run"
        yield from _of_ranks(analysis, stands_first, mean)
        yield from _of_job(mean, stands_first, "mean_")
    if analysis.throughput is not None:
        yield from _of_throughput(analysis.throughput)


def _of_ranks(analysis: Analysis, of: str, mean: MeanStep | None = None) -> Iterator[_Family]:
    ranks = {info.rank: rank_figures(info, mean) for info in analysis.ranks}
    for name in (*TIMES, *RATIOS):
        words = f"{METRIC_LABELS.get(name, 'length')}: {of}"
        known = ((rank, value) for rank, figures in ranks.items() if (value := figures[name]) is not None)
        samples: list[tuple[Labels, str]] = [((("rank", str(rank)),), _value(value, name)) for rank, value in known]
        yield _family(name if mean is None else f"mean_{name}", words, samples)


def _of_job(main: Headline | MeanStep, of: str, before: str = "") -> Iterator[_Family]:
    for name in HEADLINES:
        value = getattr(main, name)
        samples: list[tuple[Labels, str]] = [] if value is None else [((), _value(value, name))]
        yield _family(f"job_{before}{name}", f"{METRIC_LABELS.get(name, 'step time')} of the job: {of}", samples)
    for name, words, causes in (
        ("exposed", "exposed communication", main.causes), ("idle", "idle time", main.idle_causes)
    ):  # fmt: skip
        shares: list[tuple[Labels, str]] = [((("cause", each),), _value(ns, "_ns")) for each, ns in causes.items()]
        yield _family(f"job_{before}{name}_by_cause_ns", f"{words} of the job by cause: adds up to it", shares)


def _of_throughput(found: Throughput) -> Iterator[_Family]:
    tokens, samples, flops = (
        None if each is None else each.per_second for each in (found.tokens, found.samples, found.flops_per_device)
    )
    for name, unit, words, value in (
        ("tokens_per_second", "", "tokens of the job a second of its complete steps", tokens),
        ("samples_per_second", "", "samples of the job a second of its complete steps", samples),
        ("flops_per_second", "", "model FLOPs of a device a second of the complete steps", flops),
        ("mfu_ratio", "ratio", "model FLOPs a second of a device / its peak", found.mfu),
        ("goodput_ratio", "ratio", "share of the recorded wall time in complete steps", found.goodput),
        ("exposed_gpu_hours_a_day", "", "GPU-hours a day of exposed communication", found.exposed_gpu_hours_a_day),
        ("idle_gpu_hours_a_day", "", "GPU-hours a day of idle devices", found.idle_gpu_hours_a_day),
        (
            "late_starts_gpu_hours_a_day",
            "",
            "GPU-hours a day before the first kernels of ranks that begin late",
            found.late_starts_gpu_hours_a_day,
        ),
    ):
        yield _Family(f"{PREFIX}{name}", unit, words, [] if value is None else [((), repr(float(value)))])


def _of_history(history: History) -> Iterator[_Family]:
    """Yield the metrics of all runs; a label numbers the runs, as two runs may have the same name."""
    for definition in METRICS:
        samples: list[tuple[Labels, str]] = [
            ((("at", str(at)), ("run", run.name)), _value(value, definition.name))
            for at, run in enumerate(history.runs)
            if (value := run.values.get(definition.name)) is not None
        ]
        yield _family(definition.name, f"{METRIC_LABELS[definition.name]}: median over steps of each run", samples)


def _of_scaling(found: Scaling) -> Iterator[_Family]:
    sizes = [((("world_size", str(size)),), each) for size, each in {e.world_size: e for e in found.points}.items()]
    for name, field, words in (
        ("step_time_ns", "step_ns", "step time: mean over ranks, complete steps and runs"),
        ("ideal_step_time_ns", "ideal_ns", "step time if nothing were lost compared with the smallest world size"),
        ("scaling_efficiency_ratio", "efficiency", "ideal step time / step time"),
        ("speedup_ratio", "speedup", "throughput / throughput of the smallest world size"),
    ):
        yield _family(name, words, [(at, _value(getattr(each, field), name)) for at, each in sizes])
    lost: dict[Labels, str] = {
        (*at, ("part", part.name), ("exposed", "yes" if part.exposed else "no")): _value(part.loss_ns, "_ns")
        for at, each in sizes
        for part in each.parts
    }
    yield _family("scaling_loss_ns", "time of a step that each part takes beyond its ideal", list(lost.items()))


def _of_comparison(comparison: Comparison) -> Iterator[_Family]:
    found = {each.name: each for each in comparison.metrics}
    for definition in METRICS:
        metric = found.get(definition.name)
        sides = (("base", metric.base.value), ("candidate", metric.candidate.value)) if metric else ()
        words = f"{METRIC_LABELS[definition.name]}: median of runs of medians over steps"
        known = ((side, value) for side, value in sides if value is not None)
        yield _family(definition.name, words, [((("side", s),), _value(v, definition.name)) for s, v in known])
    rates = comparison.tokens_per_s
    tokens = (("base", rates.base), ("candidate", rates.candidate)) if rates else ()
    words = "tokens of the job a second of its complete steps: median of runs"
    yield _Family(f"{PREFIX}tokens_per_second", "", words, [((("side", side),), repr(each)) for side, each in tokens])
    shown = headline_attributions(comparison)
    parts = shown.exposed_by_cause.parts if shown else []
    yield _family("exposed_by_cause_ns", "exposed communication by cause: adds up to exposed_comm", _causes(parts))


def _causes(parts: list[Part]) -> list[tuple[Labels, str]]:
    return [
        ((("cause", part.name), ("side", side)), _value(value, "_ns"))
        for part in parts
        if part.name in CAUSES
        for side, value in (("base", part.base_ns), ("candidate", part.candidate_ns))
    ]


def _of_gate(gate: Gate) -> Iterator[_Family]:
    known = {each.name for each in METRICS}
    samples: list[tuple[Labels, str]] = [
        ((("metric", each.name), ("verdict", each.verdict), ("gates", "yes" if each.gates else "no")), "1")
        for each in {each.name: each for each in gate.metrics if each.name in known}.values()
    ]
    yield _Family(f"{PREFIX}gate_verdict", "", "verdict of each metric", samples)
    yield _Family(f"{PREFIX}gate_exit_code", "", "exit code of the gate, 0 if it passed", [((), str(gate.exit_code))])


def _family(name: str, words: str, samples: list[tuple[Labels, str]]) -> _Family:
    """Return a metric family whose name ends in its base unit, as OpenMetrics requires."""
    unit = "seconds" if name.endswith("_ns") else "ratio"
    stem = name.removesuffix("_ns").removesuffix("_ratio")
    return _Family(f"{PREFIX}{stem}_{unit}", unit, words, samples)


def _value(value: float, name: str) -> str:
    """Return a value as text; nanoseconds become exact seconds."""
    if not name.endswith("_ns"):
        return repr(float(value))
    sign, ns = ("-" if value < 0 else ""), abs(round(value))
    return f"{sign}{ns // 10**9}.{ns % 10**9:09d}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return inert(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
