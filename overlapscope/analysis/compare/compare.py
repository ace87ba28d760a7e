"""Compare two sides, each one run or several runs of the same code (`overlapscope.comparison/1`)."""

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import Difference, differences
from overlapscope.analysis.compare.collective_changes import (
    CollectiveChange,
    FamilyChange,
    collective_changes,
    family_changes,
)
from overlapscope.analysis.compare.comparison_findings import (
    change_findings,
    difference_findings,
    few_runs,
    rank_findings,
    side_findings,
    straggler_changes,
    unknown_job,
    unread_findings,
)
from overlapscope.analysis.compare.kernel_changes import KernelChanges, KernelSums, kernel_changes
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.compare.prediction_check import Outcome
from overlapscope.analysis.job_step.attribution import (
    COMPUTE,
    COPY,
    EXPOSED,
    IDLE,
    IDLE_OR_COPIES,
    OUTSIDE,
    START,
    Attribution,
    Part,
    attribute_exposed,
    attribute_step_time,
    of_values,
    scaled,
)
from overlapscope.analysis.job_step.headline import StepsBy
from overlapscope.analysis.job_step.metrics import STEP_TIME, Metric, communicates, metrics
from overlapscope.analysis.job_step.step_table import WHOLE, StepTable
from overlapscope.analysis.structure.compare_structure import StructureComparison, compare_structures

SCHEMA: Literal["overlapscope.comparison/1"] = "overlapscope.comparison/1"


class ComparedStraggler(msgspec.Struct, kw_only=True, frozen=True):
    """A rank that other ranks waited for, over the whole recording of one run."""

    rank: int
    held_by: str
    blame_ns: int


class ComparedRun(msgspec.Struct, kw_only=True, frozen=True):
    """One run of a side, and which of its ranks and steps were compared."""

    name: str
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int]
    unread_ranks: list[int] = []
    """Missing ranks that have a file, which could not be read."""
    steps: list[int]
    """Numbers of the compared steps; empty where the whole recording is compared, and for a dry run."""
    left_out: int
    """Complete steps that were left out because fewer ranks recorded them completely than other steps."""
    identity: dict[str, str]
    stragglers: list[ComparedStraggler]


class Attributions(msgspec.Struct, kw_only=True, frozen=True):
    """Where the differences come from: means over ranks and steps; each adds up to its total exactly."""

    step_time: Attribution
    exposed_by_cause: Attribution
    exposed_by_collective: Attribution


class RateChange(msgspec.Struct, kw_only=True, frozen=True):
    """A rate on both sides: medians over the runs that know it."""

    base: float
    candidate: float
    difference: float
    """Candidate less base."""
    relative: float | None
    """difference / base; null where the base is 0."""


class Comparison(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.comparison/1`. Differences are candidate less base; missing is null."""

    schema_: Literal["overlapscope.comparison/1"] = SCHEMA
    base: list[ComparedRun]
    candidate: list[ComparedRun]
    window: Literal["step", "recording"] | None
    """What is compared: steps, or whole recordings where a side has no complete step; null without times on a side."""
    ranks: list[int]
    """Ranks compared: those recorded in all runs; empty (all ranks of each run) where there are none, or the world
    sizes differ."""
    same_job: bool
    """Whether world size and device are the same, where they are known."""
    differences: list[Difference]
    metrics: list[Metric]
    tokens_per_s: RateChange | None = None
    """Null unless both sides know it. It is over each run's own complete steps, and of its whole job."""
    attribution: Attributions | None
    """Null without times on a side."""
    collectives: list[CollectiveChange]
    families: list[FamilyChange]
    """The collectives, with all sizes of an operation on a group together."""
    kernels: KernelChanges | None
    findings: list[Finding]
    predictions: list[Outcome] = []
    """Predictions made from the base (`advise --record`) that the candidate's runs tested."""
    steps_by: StepsBy = "longest_window"
    """`job_step`: a step lasts from the earliest start to the latest end over its ranks. `longest_window`: for as long
    as the longest window of any rank, because version 0.1 recorded a run, or in one the clocks cannot be aligned or
    the ranks do not keep step."""
    structure: StructureComparison | None = None
    """How the steps of two dry runs differ, the first of each side; null for other runs, or without a common rank."""


class CommonSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The window, ranks and steps by which two sides are compared, so that every figure is over the same ranks."""

    window: Literal["step", "recording"] | None
    ranks: tuple[int, ...]
    tables: tuple[list[StepTable], list[StepTable]]
    """One table for each run of the base, and of the candidate."""

    @property
    def steps_by(self) -> StepsBy:
        """How all runs are measured: by longest windows where one has to be."""
        aligned = all(table.windows is not None for side in self.tables for table in side)
        return "job_step" if aligned else "longest_window"


def common_steps(base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> CommonSteps:
    """Choose the window, the ranks and the steps by which two sides are compared."""
    sides = (base, candidate)
    differ = differences([run.identity for run in base], [run.identity for run in candidate])
    ranks = _common_ranks(sides, one_size=not any(each.key == "world_size" for each in differ))
    window = _window(sides, ranks)
    ours, theirs = ([_table(run, window, ranks) for run in side] for side in sides)
    if any(table.windows is None and table.recorded.any() for table in (*ours, *theirs)):
        ours, theirs = ([replace(table, windows=None) for table in side] for side in (ours, theirs))
    return CommonSteps(window=window, ranks=ranks, tables=(ours, theirs))


def compare(
    base: Sequence[MeasuredRun],
    candidate: Sequence[MeasuredRun],
    chosen: CommonSteps | None = None,
    left_out: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Comparison:
    """Compare two sides of at least one run each.

    `chosen` is the result of `common_steps` for them, where the caller has it already. `left_out` holds, for each side,
    the reasons why runs of it could not be read.
    """
    sides = (base, candidate)
    differ = differences([run.identity for run in base], [run.identity for run in candidate])
    chosen = chosen or common_steps(base, candidate)
    window, ranks, tables = chosen.window, chosen.ranks, chosen.tables
    attribution, collectives, kernels = None, list[CollectiveChange](), None
    if window is not None:
        attribution, collectives = _attributed(sides, tables)
        kernels = kernel_changes(*([_kernels(run, ranks) for run in side if run.ranks] for side in sides))
    families = family_changes(collectives)
    structure = compare_structures(base[0].structure, candidate[0].structure)
    findings = [*difference_findings(differ), *unknown_job(base, candidate)]
    for name, side, own, unread in zip(("base", "candidate"), sides, tables, left_out, strict=True):
        findings += unread_findings(name, side, unread)
        if not all(run.structure for run in side):
            findings += side_findings(
                name, side, own, of_steps=window == "step", communicates=any(communicates(table) for table in own)
            )
    findings += rank_findings((*base, *candidate), ranks)
    findings += change_findings(families, kernels)
    findings += straggler_changes(base, candidate)
    findings += [] if base[0].structure else few_runs(len(base), len(candidate))
    return Comparison(
        base=[_described(run, table) for run, table in zip(base, tables[0], strict=True)],
        candidate=[_described(run, table) for run, table in zip(candidate, tables[1], strict=True)],
        window=window,
        ranks=list(ranks),
        steps_by=chosen.steps_by,
        same_job=not any(each.sort == "job" for each in differ),
        differences=differ,
        metrics=metrics(*tables, of_steps=window == "step"),
        tokens_per_s=_tokens_per_s(base, candidate),
        attribution=attribution,
        collectives=collectives,
        families=families,
        kernels=kernels,
        findings=findings,
        structure=structure,
    )


def _tokens_per_s(*sides: Sequence[MeasuredRun]) -> RateChange | None:
    known = [[run.tokens_per_s for run in side if run.tokens_per_s is not None] for side in sides]
    if not all(known):
        return None
    base, candidate = map(median, known)
    difference = candidate - base
    return RateChange(
        base=base, candidate=candidate, difference=difference, relative=difference / base if base else None
    )


OF_PART: Final = {
    COMPUTE: ("compute_ns",), EXPOSED: ("exposed_comm_ns",), COPY: ("copy_only_ns",), IDLE: ("idle_ns",),
    IDLE_OR_COPIES: ("idle_ns", "copy_only_ns"), START: ("start_of_recording_ns",), OUTSIDE: ("outside_ns",),
}  # fmt: skip
"""Metrics of each part of a step."""


def headline_attributions(comparison: Comparison) -> Attributions | None:
    """Return where the differences of the compared metrics come from, as people are shown them; None without times.

    Exposed communication is divided as that of all steps together. The parts of a step are its metrics: medians, which
    need not add up to that of the step; what they lack is a part of its own.
    """
    found = comparison.attribution
    if found is None:
        return None
    by_name = {each.name: each for each in comparison.metrics}
    step = by_name[STEP_TIME]
    totals, waits = (_both_sides(by_name.get(name)) for name in ("exposed_comm_ns", "exposed_wait_ns"))
    parts = {}
    for part in found.step_time.parts:
        known = [by_name[name] for name in OF_PART.get(part.name, ()) if name in by_name]
        parts[part.name] = (
            _median_of(known, "base", part.base_ns), _median_of(known, "candidate", part.candidate_ns),
        )  # fmt: skip
    ours, theirs = (
        mean_ns if each.value is None else round(each.value)
        for each, mean_ns in ((step.base, found.step_time.base_ns), (step.candidate, found.step_time.candidate_ns))
    )
    return Attributions(
        step_time=of_values(parts, ours, theirs),
        exposed_by_cause=scaled(found.exposed_by_cause, totals, waits),
        exposed_by_collective=scaled(found.exposed_by_collective, totals),
    )


def _both_sides(metric: Metric | None) -> tuple[float | None, float | None]:
    return (None, None) if metric is None else (metric.base.value, metric.candidate.value)


def _median_of(known: Sequence[Metric], side: str, mean_ns: int) -> int:
    """Return the sum of metrics on one side; the mean of the part where none of them is known there."""
    values = [value for each in known if (value := getattr(each, side).value) is not None]
    return round(sum(values)) if values else mean_ns


def _window(sides: Sequence[Sequence[MeasuredRun]], ranks: Sequence[int]) -> Literal["step", "recording"] | None:
    """Return what to compare: steps where both sides have complete ones on these ranks, else whole recordings."""
    if all(any(_table(run, "step", ranks).recorded.any() for run in side) for side in sides):
        return "step"
    return "recording" if all(any(run.ranks for run in side) for side in sides) else None


def _common_ranks(sides: Sequence[Sequence[MeasuredRun]], *, one_size: bool) -> tuple[int, ...]:
    """Return the ranks that all runs with times have; none where the world sizes differ.

    A rank without a complete step (its file was cut) is left out: it cannot be compared by steps.
    """
    if not one_size:
        return ()
    stepping = [[set(run.steps.ranks_recorded) for run in side if run.steps.recorded.any()] for side in sides]
    if all(stepping):
        found = set.intersection(*(ranks for side in stepping for ranks in side))
        if found:
            return tuple(sorted(found))
    recorded = [set(run.ranks) for side in sides for run in side if run.ranks]
    return tuple(sorted(set.intersection(*recorded))) if recorded else ()


def _table(run: MeasuredRun, window: Literal["step", "recording"] | None, ranks: Sequence[int]) -> StepTable:
    table = run.steps if window == "step" else run.whole
    return table.alike([rank for rank in ranks if rank in table.ranks] or table.ranks)


def _attributed(
    sides: Sequence[Sequence[MeasuredRun]], tables: Sequence[Sequence[StepTable]]
) -> tuple[Attributions, list[CollectiveChange]]:
    """Attribute the differences, using the runs that have the compared steps or times."""
    timed = [
        [(table, run.collectives) for run, table in zip(side, own, strict=True) if table.recorded.any()]
        for side, own in zip(sides, tables, strict=True)
    ]
    base, candidate = ([table for table, _ in own] for own in timed)
    step_time = attribute_step_time(base, candidate)
    nothing = Part(name=EXPOSED, base_ns=0, candidate_ns=0, difference_ns=0)
    whole = next((part for part in step_time.parts if part.name == EXPOSED), nothing)
    collectives, by_collective = collective_changes(timed[0], timed[1], whole)
    by_cause = attribute_exposed(base, candidate, whole)
    return Attributions(
        step_time=step_time, exposed_by_cause=by_cause, exposed_by_collective=by_collective
    ), collectives


def _kernels(run: MeasuredRun, ranks: Sequence[int]) -> list[KernelSums]:
    return [run.kernels[rank] for rank in ranks or run.ranks]


def _described(run: MeasuredRun, table: StepTable) -> ComparedRun:
    of_steps = table.steps != (WHOLE,)
    return ComparedRun(
        name=run.name,
        world_size=run.world_size,
        ranks=list(table.ranks or run.structure),
        missing_ranks=list(run.missing_ranks),
        unread_ranks=list(run.unread_ranks),
        steps=[step for step, _ in table.steps] if of_steps else [],
        left_out=len(run.steps.steps) - len(table.steps) if of_steps else 0,
        identity=dict(run.identity),
        stragglers=[
            ComparedStraggler(rank=each.rank, held_by=each.held_by, blame_ns=each.blame_ns) for each in run.stragglers
        ],
    )
