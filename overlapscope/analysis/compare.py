"""Compare two sides, each one run or several runs of the same code (`overlapscope.comparison/1`)."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from overlapscope.analysis.attribution import EXPOSED, Attribution, Part, attribute_exposed, attribute_step_time
from overlapscope.analysis.collective_changes import CollectiveChange, FamilyChange, collective_changes, family_changes
from overlapscope.analysis.comparison_findings import (
    change_findings,
    difference_findings,
    few_runs,
    rank_findings,
    side_findings,
    straggler_changes,
    unknown_job,
    unread_findings,
)
from overlapscope.analysis.findings import Finding
from overlapscope.analysis.job_identity import Difference, differences
from overlapscope.analysis.kernel_changes import KernelChanges, KernelSums, kernel_changes
from overlapscope.analysis.measured_run import MeasuredRun
from overlapscope.analysis.metrics import Metric, communicates, metrics
from overlapscope.analysis.prediction_check import Outcome
from overlapscope.analysis.step_table import WHOLE, StepTable

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
    """Numbers of the compared steps; empty where the whole recording is compared."""
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


class CommonSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The window, ranks and steps by which two sides are compared, so that every figure is over the same ranks."""

    window: Literal["step", "recording"] | None
    ranks: tuple[int, ...]
    tables: tuple[list[StepTable], list[StepTable]]
    """One table for each run of the base, and of the candidate."""


def common_steps(base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> CommonSteps:
    """Choose the window, the ranks and the steps by which two sides are compared."""
    sides = (base, candidate)
    differ = differences([run.identity for run in base], [run.identity for run in candidate])
    ranks = _common_ranks(sides, one_size=not any(each.key == "world_size" for each in differ))
    window = _window(sides, ranks)
    ours, theirs = ([_table(run, window, ranks) for run in side] for side in sides)
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
    findings = [*difference_findings(differ), *unknown_job(base, candidate)]
    for name, side, own, unread in zip(("base", "candidate"), sides, tables, left_out, strict=True):
        findings += unread_findings(name, side, unread)
        findings += side_findings(
            name, side, own, of_steps=window == "step", communicates=any(communicates(table) for table in own)
        )
    findings += rank_findings((*base, *candidate), ranks)
    findings += change_findings(families, kernels)
    findings += straggler_changes(base, candidate)
    findings += few_runs(len(base), len(candidate))
    return Comparison(
        base=[_described(run, table) for run, table in zip(base, tables[0], strict=True)],
        candidate=[_described(run, table) for run, table in zip(candidate, tables[1], strict=True)],
        window=window,
        ranks=list(ranks),
        same_job=not any(each.sort == "job" for each in differ),
        differences=differ,
        metrics=metrics(*tables, of_steps=window == "step"),
        tokens_per_s=_tokens_per_s(base, candidate),
        attribution=attribution,
        collectives=collectives,
        families=families,
        kernels=kernels,
        findings=findings,
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
        ranks=list(table.ranks),
        missing_ranks=list(run.missing_ranks),
        unread_ranks=list(run.unread_ranks),
        steps=[step for step, _ in table.steps] if of_steps else [],
        left_out=len(run.steps.steps) - len(table.steps) if of_steps else 0,
        identity=dict(run.identity),
        stragglers=[
            ComparedStraggler(rank=each.rank, held_by=each.held_by, blame_ns=each.blame_ns) for each in run.stragglers
        ],
    )
