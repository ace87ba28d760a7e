"""Find stages of a pipeline with more work than the others, for which every stage waits.

Work is compared at the usual speed of each kernel, so that a slow device does not count as more work.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from overlapscope.analysis.checks.pipelines.stage_of_ranks import stage_of_ranks
from overlapscope.analysis.checks.pipelines.stage_work import (
    More,
    medians,
    more_than_others,
    share_of_steps,
    without_pauses,
)
from overlapscope.analysis.checks.pipelines.stages import PipelineStage, microbatches
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.display import list_some
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline, Run

WEIGHS: Final = 0.05
"""A stage has clearly more work where the difference is at least this share of the recording."""
ATTENTION: Final = re.compile(r"(?i)flash|fmha|attention|sdpa")
"""Kernels of attention, by name."""
LARGER: Final = 0.25
"""More layers make more kernels, not larger ones; with this share of its time in larger kernels, the work of a stage
differs for another reason."""
IN_STEPS: Final = 0.75
"""Without kernels, pauses of a host look like compute, and are rare: a stage computes longer in this share of steps."""
EVEN: Final = 0.01
"""Of a layer: one more is moved where it gains so much."""
MOST_OF_IT: Final = 0.5
"""Whole layers are moved where that gains this share of what stages of equal work would gain. A choice."""
_Stage = TypeVar("_Stage", int, str)


class _StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the stages in a median step, at the usual speed of their kernels."""

    work_ns: Mapping[int, float]
    computed_ns: Mapping[int, float]
    """How long they compute, as measured."""
    more_ns: float
    """Of the heaviest stage, than the median of the others: by work or as measured, whichever is less."""


def uneven_stages(
    run: Run,
    work: Mapping[int, RankCompute],
    window_ns: Mapping[int, int | None],
    step_ns: Mapping[int, Mapping[int, int]],
    held_ns: Mapping[int, int],
    still_ns: Mapping[int, int],
    usual_ns: Mapping[int, float],
    parts: Mapping[int, Mapping[str, PipelineStage]] | None = None,
) -> list[Finding]:
    """Return at most one finding: the stage with the most work, where it has clearly more than the others.

    `step_ns` holds how long each rank computed in each of its complete steps, by number; `held_ns` how long ranks
    waited for a core of their host, or collected garbage, and `still_ns` for how long they stood still while they
    computed; `usual_ns` what hosts usually compute in a step, without pauses; `parts` the result of `own_stages` for
    every rank. Each where that is known.
    """
    by_stage = _recorded(run, work)
    if len(by_stage) < 2:
        return []
    usual = medians(by_stage, {rank: own.usual_ns for rank, own in work.items()})
    heaviest = max(usual, key=usual.__getitem__)
    windows = [window for rank in by_stage[heaviest] if (window := window_ns.get(rank))]
    least_ns = WEIGHS * float(np.median(windows)) if windows else np.inf
    more = more_than_others(usual, heaviest)
    if not more.weighs(least_ns) or _larger_batch(by_stage, work, heaviest):
        return []
    kernels = any(work[rank].compared for rank in by_stage[heaviest])
    if not kernels:
        # While it waits for a core, stands still, or garbage is collected, an operation lasts, too.
        left = without_pauses(heaviest, by_stage, work, held_ns, still_ns, usual_ns)
        more = More(times=min(more.times, left.times), others_ns=min(more.others_ns, left.others_ns))
        if not more.weighs(least_ns) or share_of_steps(heaviest, by_stage, step_ns) < IN_STEPS:
            return []
    step = _of_a_step(heaviest, by_stage, work, step_ns) if kernels else None
    layer = None if step is None else _layer_ns(heaviest, by_stage, run, step, step_ns, parts or {})
    title = _title(heaviest, sorted(by_stage[heaviest]), more, step, layer, kernels=kernels)
    return [_finding(title, heaviest, sorted(by_stage[heaviest]), usual, more, step, layer)]


def _finding(
    title: str, stage: int, ranks: list[int], usual: Mapping[int, float], more: More, step: _StepWork | None,
    layer_ns: float | None,
) -> Finding:  # fmt: skip
    return Finding(
        id=f"uneven_stages:stage{stage}",
        severity="warning",
        title=title,
        evidence={
            "stage": stage,
            "ranks": ranks,
            "work_ns": _rounded(usual),
            "more_ns": round(more.ns),
            **({} if step is None else _evidence(step)),
            **({} if layer_ns is None else {"layer_step_ns": round(layer_ns)}),
        },
        known_from="trace",
    )


def _evidence(step: _StepWork) -> dict[str, Any]:
    return {
        "more_step_ns": round(step.more_ns), "step_work_ns": _rounded(step.work_ns),
        "step_computed_ns": _rounded(step.computed_ns),
    }  # fmt: skip


def _recorded(run: Run, work: Mapping[int, RankCompute]) -> dict[int, list[int]]:
    """Return the recorded ranks of each stage."""
    stages = stage_of_ranks(run)
    found: dict[int, list[int]] = {}
    for rank in work:
        if rank in stages:
            found.setdefault(stages[rank], []).append(rank)
    return found


def _larger_batch(by_stage: Mapping[int, Sequence[int]], work: Mapping[int, RankCompute], heaviest: int) -> bool:
    """Return whether more of a stage's time is in larger kernels than another's: its batch is probably larger."""
    larger = medians(by_stage, {rank: own.larger for rank, own in work.items()})
    return larger[heaviest] - min(larger.values()) > LARGER


def _title(
    stage: int, ranks: Sequence[int], more: More, step: _StepWork | None, layer_ns: float | None, *, kernels: bool
) -> str:
    # Without kernels a slow host looks like more work.
    has = f"has {more.times:.2f} times the work of" if kernels else f"computes {more.times:.2f} times as long as"
    longer = f"{more.ns / 1e6:.3f} ms more in total" if step is None else f"{step.more_ns / 1e6:.3f} ms more a step"
    return (
        f"pipeline stage {stage} (rank {list_some(ranks)}) {has} the other stages, {longer}: the other stages wait for "
        f"it; {what_to_move({} if step is None else step.work_ns, stage, layer_ns)}"
    )


def _of_a_step(
    heaviest: int, by_stage: Mapping[int, Sequence[int]], work: Mapping[int, RankCompute],
    step_ns: Mapping[int, Mapping[int, int]],
) -> _StepWork | None:  # fmt: skip
    """Return the work of a step; None where no complete step of a stage is known, or it is not heavier in its steps."""
    found, computed = {}, {}
    for stage, ranks in by_stage.items():
        own_ns = {rank: median(step_ns[rank].values()) for rank in ranks if step_ns.get(rank) and work[rank].compute_ns}
        if not own_ns:
            return None
        found[stage] = median(ns * work[rank].usual_ns / work[rank].compute_ns for rank, ns in own_ns.items())
        computed[stage] = float(median(own_ns.values()))
    more = min(each[heaviest] - median([ns for at, ns in each.items() if at != heaviest]) for each in (found, computed))
    return _StepWork(work_ns=found, computed_ns=computed, more_ns=more) if more > 0 else None


def _layer_ns(
    heaviest: int, by_stage: Mapping[int, Sequence[int]], run: Run, step: _StepWork,
    step_ns: Mapping[int, Mapping[int, int]], parts: Mapping[int, Mapping[str, PipelineStage]],
) -> float | None:  # fmt: skip
    """Return about how long the layers that are alike take, one of them, in a step: the work of the lightest other
    stage, divided by its layers; None where these cannot be counted.

    It holds that stage's embedding and optimizer, too. A layer runs its attention once a micro-batch.
    """
    lightest = min((each for each in step.work_ns if each != heaviest), key=step.work_ns.__getitem__)
    for rank in by_stage[lightest]:
        group, own = next(iter(parts.get(rank, {}).items()), ("", None))
        every = [of_rank[group] for of_rank in parts.values() if group in of_rank]
        batches = None if own is None else microbatches(every) or own.at_most
        layers = None if batches is None else _layers(run.ranks[rank], list(step_ns.get(rank, ())), batches)
        if layers:
            return step.work_ns[lightest] / layers
    return None


def _layers(timeline: RankTimeline, steps: Sequence[int], batches: int) -> int | None:
    """Return how many layers with attention a stage has; None where it does not run one of its kernels equally often
    for each micro-batch.

    Of the kernels of attention that one counts which takes longest: the backward's, which no recomputation runs twice.
    """
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & np.isin(spans.step, steps))
    rows = rows[rows_named(spans.name[rows], timeline.names, ATTENTION.search)]
    if not rows.size or not steps:
        return None
    names, place, counts = np.unique(spans.name[rows], return_inverse=True, return_counts=True)
    took = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], names.size)
    layers, rest = divmod(int(counts[took.argmax()]), len(steps) * batches)
    return None if rest else layers


def _rounded(of_stage: Mapping[int, float]) -> dict[str, int]:
    return {str(stage): round(of_stage[stage]) for stage in sorted(of_stage)}


def what_to_move(work_ns: Mapping[_Stage, float], stage: _Stage, layer_ns: float | None) -> str:
    """Return what evens stages out: layers, where whole ones gain most of what can be gained; else finer parts.

    `work_ns` is the work of the stages in a step, empty where it is not known.
    """
    if not work_ns or layer_ns is None:
        return "move layers to them, where one takes less than that (how long one takes is not known)"
    count, gain_ns = whole_layers(work_ns, stage, layer_ns)
    if count and gain_ns >= MOST_OF_IT * divided_ns(work_ns, stage):
        return f"move layers to them ({count}, of about {layer_ns / 1e6:.1f} ms each)"
    moved = f"a layer takes more (about {layer_ns / 1e6:.1f} ms), so moving one would make another stage the slowest"
    if count:
        moved = f"moving whole layers (about {layer_ns / 1e6:.1f} ms each) would gain {gain_ns / 1e6:.1f} ms of it"
    return (
        f"{moved}; what it has more is no layer, but for example the output layer and loss: split the vocabulary, or "
        "use finer chunks"
    )


def whole_layers(work_ns: Mapping[_Stage, float], stage: _Stage, layer_ns: float) -> tuple[int, float]:
    """Return how many layers of a stage to move, each to the stage with the least work then, for the largest gain, and
    how much less the stage with most work has then."""
    others = [each for at, each in work_ns.items() if at != stage]
    own = work_ns[stage]
    best, slowest, count = 0, own, 0
    while own > max(others) and own > layer_ns > 0:
        own, count = own - layer_ns, count + 1
        others[others.index(min(others))] += layer_ns
        if max(own, *others) < slowest - EVEN * layer_ns:
            best, slowest = count, max(own, *others)
    return best, work_ns[stage] - slowest


def divided_ns(work_ns: Mapping[_Stage, float], stage: _Stage) -> float:
    """Return how much less work the stage has where it can be divided as finely: as much as the mean of all."""
    return work_ns[stage] - fmean(work_ns.values())
