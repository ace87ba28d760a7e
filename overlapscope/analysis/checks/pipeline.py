"""Find pipeline bubbles that exceed those of the schedule, and uneven stages (docs/definitions.md).

A stage's bubble is the time of a step in which it neither computes, nor copies, nor communicates, except with other
stages; without a device, while it communicates with other stages and does nothing else. With p stages, m microbatches
and v chunks a stage, a stage that is busy for t has a bubble of at least t (p - 1) / (v m): 1F1B with v = 1, and
interleaved (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM",
section 2.2). Zero-bubble schedules split the backward pass in two and have a third of it (ZB-H1) or none (ZB-H2), if
the forward pass and both halves take equally long (Qi et al. 2024, "Zero bubble pipeline parallelism", table 2). The
schedule is not recorded: what exceeds 1F1B exceeds them all.

v m is counted: the activations that a stage sends to the next in a step. Some jobs also send other messages (shapes,
several tensors): the least frequent size counts, which makes the ideal bubble larger rather than smaller.

`uneven_stages` finds stages with more work than the others, for which every stage waits. Work is compared at the usual
speed of each kernel, so that a slow device does not count as more work.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags
from overlapscope.timeline.dimensions import PIPELINE, dimension_of
from overlapscope.timeline.intervals import BusyTime, difference, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Group, RankTimeline, Run

MIN_SHARE: Final = 0.05
"""The excess is a finding from this share of the step ..."""
MIN_NS: Final = MILLISECOND_NS
"""... and this long."""
RECORDED: Final = 0.5
"""A stage waited for at least this share of what its schedule needs, or the schedule is another one: a zero-bubble one
needs a third, or nothing."""
MORE: Final = 1.08
"""A stage has more work than the others from this factor of their median ..."""
WEIGHS: Final = 0.05
"""... if the difference is at least this share of the recording."""
ATTENTION: Final = re.compile(r"(?i)flash|fmha|attention|sdpa")
"""Kernels of attention, by name."""
LARGER: Final = 0.25
"""More layers make more kernels, not larger ones; with this share of its time in larger kernels, the work of a stage
differs for another reason."""
IN_STEPS: Final = 0.75
"""Without kernels, pauses of a host look like compute, and are rare: a stage computes longer in this share of steps."""


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded stage of a pipeline, median over its complete steps.

    A median because the last step ends early, with its last span.
    """

    rank: int
    place: int
    window_ns: float
    bubble_ns: float
    activations: int
    """Activations sent to the next stage in a step, v m; of two stages at least these, ..."""
    at_most: int
    """... and at most these: the others may be gradients of interleaved stages."""


def ideal_bubble_ns(busy_ns: float, stages: int, activations: int) -> float:
    """Return the bubble of 1F1B (activations = m) or interleaved 1F1B (v m) for a stage that is busy for `busy_ns`."""
    return busy_ns * (stages - 1) / activations


def needed_bubbles_ns(stage: PipelineStage, stages: int) -> list[float]:
    """Return the ideal bubble of a stage, for as many activations as it may have sent: one value, or two."""
    counts = sorted({stage.activations, stage.at_most}, reverse=True)
    return [ideal_bubble_ns(stage.window_ns - stage.bubble_ns, stages, each) for each in counts]


def counted_activations(stage: PipelineStage) -> str:
    """Return in words how many activations a stage sends in a step."""
    if stage.at_most > stage.activations:
        return f"{stage.at_most} activations, or {stage.activations} of interleaved chunks,"
    return f"{stage.activations} activations"


def between_ms(values_ns: Sequence[float]) -> str:
    """Return a time, or the range of several, in ms."""
    return f"{' to '.join(f'{each / 1e6:.3f}' for each in sorted(values_ns))} ms"


def pipeline_bubbles(run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]) -> list[Finding]:
    """Return a finding for each pipeline with a stage whose bubble is longer than its schedule needs.

    There is none where stages or microbatches are not known: unnamed groups, messages without a receiver, counts that
    differ between steps or stages. `stages` holds the result of `own_stages` for every rank.
    """
    return [finding for group, own in _alike(run, stages) for finding in _excess(group.name, group.ranks or (), own)]


def pipeline_stages(run: Run, windows: Mapping[int, Sequence[StepWindow]]) -> list[tuple[Group, list[PipelineStage]]]:
    """Return the recorded stages of each pipeline with a known number of microbatches."""
    of_rank = groups_by_rank(run.groups)
    return _alike(run, {rank: own_stages(own, of_rank.get(rank, ()), windows[rank]) for rank, own in run.ranks.items()})


def groups_by_rank(groups: Sequence[Group]) -> dict[int, list[Group]]:
    """Return the groups of each rank that have other members."""
    found: dict[int, list[Group]] = {}
    for group in groups:
        if group.ranks is not None and len(group.ranks) > 1:
            for rank in group.ranks:
                found.setdefault(rank, []).append(group)
    return found


def own_stages(
    timeline: RankTimeline, groups: Sequence[Group], windows: Sequence[StepWindow]
) -> dict[str, PipelineStage]:
    """Return the rank's stage in each of its pipeline groups, by the group's name."""
    calls, names = timeline.collectives, timeline.names
    if PIPELINE not in names:
        return {}
    used = np.unique(calls.group[calls.dimension == names.index(PIPELINE)])
    pipelines = {names[code] for code in used[used >= 0].tolist()}
    return {
        group.name: stage
        for group in groups
        if group.name in pipelines and group.ranks is not None
        if (stage := _stage(timeline, group.name, group.ranks, group.ranks.index(timeline.rank), windows)) is not None
    }


def _alike(run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]) -> list[tuple[Group, list[PipelineStage]]]:
    found = []
    for group in run.groups:
        own = [stages[rank][group.name] for rank in group.ranks or () if group.name in stages.get(rank, ())]
        if own and len({stage.activations for stage in own}) == 1:
            found.append((group, own))
    return found


def _stage(
    timeline: RankTimeline, group: str, ranks: Sequence[int], place: int, windows: Sequence[StepWindow]
) -> PipelineStage | None:
    calls, spans, names = timeline.collectives, timeline.spans, timeline.names
    if PIPELINE not in names or group not in names:
        return None
    messages = np.isin(calls.op, [code for code, name in enumerate(names) if name in POINT_TO_POINT])
    messages &= (calls.group == names.index(group)) & (calls.dimension == names.index(PIPELINE))
    chosen = [each for each in windows if each.complete and each.window and each.window[1] > each.window[0]]
    if not messages.any() or not chosen:
        return None
    sent = messages & np.isin(calls.op, [code for code, name in enumerate(names) if name in ("send", "send_recv")])
    if len(ranks) > 2 and (calls.peer[sent] == NONE).any():
        return None
    # The last stage sends no activations, but a gradient back for each activation that it received.
    to = ranks[place + 1] if place + 1 < len(ranks) else ranks[place - 1]
    sent &= (calls.peer == to) | ((calls.peer == NONE) & (len(ranks) == 2))
    counts = set()
    for each in chosen:
        rows = sent & (calls.step == each.step) & (calls.recording == each.recording)
        counts.add(int(np.unique(calls.bytes[rows], return_counts=True)[1].min()) if rows.any() else 0)
    activations = at_most = counts.pop() if len(counts) == 1 else 0
    if len(ranks) == 2:
        # Two interleaved stages send activations and gradients in the same direction: at least half are activations.
        activations //= 2
    if activations == 0:
        return None
    between_stages = (spans.kind == COMM) & np.append(messages, False)[
        np.where(spans.collective == NONE, -1, spans.collective)
    ]
    busy = union((spans.start_ns[~between_stages], spans.end_ns[~between_stages]))
    starts, ends = (np.array([each.window[at] for each in chosen if each.window], np.int64) for at in (0, 1))
    may_wait = union((starts, ends))
    if not timeline.has_device:
        # A host without a device is in its messages while it waits, and idles for reasons of its own.
        may_wait = intersection(may_wait, union((spans.start_ns[between_stages], spans.end_ns[between_stages])))
    bubble_ns = BusyTime(difference(may_wait, busy)).within(starts, ends)
    return PipelineStage(
        rank=timeline.rank,
        place=place,
        window_ns=median((ends - starts).tolist()),
        bubble_ns=median(bubble_ns.tolist()),
        activations=activations,
        at_most=at_most,
    )


def pipeline_fill(run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]) -> list[Finding]:
    """Return at most one finding: what filling and draining a pipeline takes of a step by its schedule, where that is
    much and a stage was recorded to wait for about as long.

    Of a step it is (p - 1) / (v m + p - 1): the ideal bubble, over that and the time that the stage is busy (Narayanan
    et al. 2021, section 2.2). `stages` holds the result of `own_stages` for every rank.
    """
    found = []
    for group, own in _alike(run, stages):
        longest = max(own, key=lambda each: each.bubble_ns / each.window_ns)
        count = len(group.ranks or ())
        share = fill_share(count, longest.at_most)
        if share >= MIN_SHARE and longest.bubble_ns >= RECORDED * share * longest.window_ns:
            found.append((share, count, longest))
    if not found:
        return []
    share, count, stage = max(found, key=lambda each: each[0])
    return [
        Finding(
            id="pipeline_fill",
            severity="info",
            title=f"{stage.at_most} micro-batches on {count} stages: by the schedule a pipeline fills and drains for "
            f"{percent_text(share)} of a step; with {2 * stage.at_most} it would be "
            f"{percent_text(fill_share(count, 2 * stage.at_most))}",
            evidence={
                "stages": count, "activations": stage.activations, "activations_at_most": stage.at_most,
                "fill_share": share, "fill_share_at_most": fill_share(count, stage.activations),
                "bubble_ns": round(stage.bubble_ns), "rank": stage.rank,
            },
            known_from="trace",
        )
    ]  # fmt: skip


def fill_share(stages: int, activations: int) -> float:
    """Return the share of a step in which 1F1B fills and drains, for v m activations that a stage sends in it."""
    return (stages - 1) / (activations + stages - 1)


def _excess(group: str, ranks: Sequence[int], stages: Sequence[PipelineStage]) -> list[Finding]:
    def more(stage: PipelineStage) -> float:
        return stage.bubble_ns - ideal_bubble_ns(stage.window_ns - stage.bubble_ns, len(ranks), stage.activations)

    worst = max(stages, key=more)
    if more(worst) < max(MIN_NS, MIN_SHARE * worst.window_ns):
        return []
    ideal = worst.bubble_ns - more(worst)
    needs = needed_bubbles_ns(worst, len(ranks))
    excess = between_ms([worst.bubble_ns - each for each in needs])
    return [
        Finding(
            id=f"pipeline_bubble:{group}",
            severity="warning",
            title=f"pipeline {group}: the bubble of stage {worst.place} of {len(ranks)} (rank {worst.rank}) takes "
            f"{worst.bubble_ns / 1e6:.3f} ms of a {worst.window_ns / 1e6:.3f} ms step, {excess} more than the "
            f"{between_ms(needs)} that 1F1B of equal stages needs with {counted_activations(worst)} a stage",
            evidence={
                "group": group,
                "stages": len(ranks),
                "activations": worst.activations,
                "activations_at_most": worst.at_most,
                "bubble_ns": {str(stage.rank): round(stage.bubble_ns) for stage in stages},
                "excess_ns": {str(stage.rank): round(more(stage)) for stage in stages},
                "ideal_ns": round(ideal),
                "ideal_zb_h1_ns": round(ideal / 3),
                "stages_recorded": len(stages),
            },
            known_from="trace",
        )
    ]


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
    stages = _stages(run)
    by_stage: dict[int, list[int]] = {}
    for rank in work:
        if rank in stages:
            by_stage.setdefault(stages[rank], []).append(rank)
    if len(by_stage) < 2:
        return []
    usual = {stage: float(np.median([work[rank].usual_ns for rank in ranks])) for stage, ranks in by_stage.items()}
    heaviest = max(usual, key=usual.__getitem__)
    others = float(np.median([each for stage, each in usual.items() if stage != heaviest]))
    more = usual[heaviest] - others
    windows = [window for rank in by_stage[heaviest] if (window := window_ns.get(rank))]
    larger = {stage: float(np.median([work[rank].larger for rank in ranks])) for stage, ranks in by_stage.items()}
    if larger[heaviest] - min(larger.values()) > LARGER:
        return []  # its batch is probably larger
    if others <= 0 or usual[heaviest] < MORE * others or not windows or more < WEIGHS * float(np.median(windows)):
        return []
    ranks = sorted(by_stage[heaviest])
    kernels, times = any(work[rank].compared for rank in ranks), usual[heaviest] / others
    if not kernels:
        # While it waits for a core, stands still, or garbage is collected, an operation lasts, too.
        shorter, less = _without_pauses(heaviest, by_stage, work, held_ns, still_ns, usual_ns)
        times, more = min(times, shorter), min(more, less)
        small = times < MORE or more < WEIGHS * float(np.median(windows))
        if small or _share_of_steps(heaviest, by_stage, step_ns) < IN_STEPS:
            return []
    shown = list_some(ranks)
    # Without kernels a slow host looks like more work.
    has = f"has {times:.2f} times the work of" if kernels else f"computes {times:.2f} times as long as"
    step = _of_a_step(heaviest, by_stage, work, step_ns) if kernels else None
    layer = None if step is None else _layer_ns(heaviest, by_stage, run, step, step_ns, parts or {})
    longer = f"{more / 1e6:.3f} ms more in total" if step is None else f"{step.more_ns / 1e6:.3f} ms more a step"
    return [
        Finding(
            id=f"uneven_stages:stage{heaviest}",
            severity="warning",
            title=f"pipeline stage {heaviest} (rank {shown}) {has} the other stages, "
            f"{longer}: the other stages wait for it; {_what_to_move(step, layer)}",
            evidence={
                "stage": heaviest,
                "ranks": ranks,
                "work_ns": {str(stage): round(usual[stage]) for stage in sorted(usual)},
                "more_ns": round(more),
                **({} if step is None else {"more_step_ns": round(step.more_ns)}),
                **({} if layer is None else {"layer_step_ns": round(layer)}),
            },
            known_from="trace",
        )
    ]


class _StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the stages in a median step, at the usual speed of their kernels."""

    work_ns: Mapping[int, float]
    more_ns: float
    """Of the heaviest stage, than the median of the others."""


def _of_a_step(
    heaviest: int, by_stage: Mapping[int, Sequence[int]], work: Mapping[int, RankCompute],
    step_ns: Mapping[int, Mapping[int, int]],
) -> _StepWork | None:  # fmt: skip
    """Return the work of a step; None where no complete step of a stage is known, or it is not heavier in its steps."""
    found = {}
    for stage, ranks in by_stage.items():
        known = [
            median(step_ns[rank].values()) * work[rank].usual_ns / work[rank].compute_ns
            for rank in ranks
            if step_ns.get(rank) and work[rank].compute_ns
        ]
        if not known:
            return None
        found[stage] = median(known)
    more = found[heaviest] - median([ns for stage, ns in found.items() if stage != heaviest])
    return _StepWork(work_ns=found, more_ns=more) if more > 0 else None


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
        own = next(iter(parts.get(rank, {}).values()), None)
        layers = None if own is None else _layers(run.ranks[rank], list(step_ns.get(rank, ())), own.at_most)
        if layers:
            return step.work_ns[lightest] / layers
    return None


def _layers(timeline: RankTimeline, steps: Sequence[int], microbatches: int) -> int | None:
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
    layers, rest = divmod(int(counts[took.argmax()]), len(steps) * microbatches)
    return None if rest else layers


def _what_to_move(step: _StepWork | None, layer_ns: float | None) -> str:
    """Return what evens stages out: layers, where one is shorter than the excess; else finer parts."""
    if step is None or layer_ns is None:
        return "move layers to them, where one takes less than that (how long one takes is not known)"
    if layer_ns < step.more_ns:
        return "move layers to them"
    return (
        f"a layer takes more (about {layer_ns / 1e6:.1f} ms), so moving one would make another stage the slowest; what "
        "it has more is no layer, but for example the output layer and loss: split the vocabulary, or use finer chunks"
    )


def _without_pauses(
    heaviest: int, by_stage: Mapping[int, Sequence[int]], work: Mapping[int, RankCompute],
    held_ns: Mapping[int, int], still_ns: Mapping[int, int], usual_ns: Mapping[int, float],
) -> tuple[float, float]:  # fmt: skip
    """Return how many times as long as the others a stage computes at most, without the pauses of its ranks, and by how
    many ns longer that makes it.

    Who computes more stands still more: a stage is as much longer as it is without that, and as in its usual steps.
    """

    def compared(*paused_ns: Mapping[int, int]) -> tuple[float, float]:
        left = {
            stage: float(np.median([work[rank].usual_ns - sum(of.get(rank, 0) for of in paused_ns) for rank in ranks]))
            for stage, ranks in by_stage.items()
        }
        return left[heaviest], float(np.median([ns for stage, ns in left.items() if stage != heaviest]))

    own, others = compared(held_ns)
    known = still_ns.keys() >= {rank for ranks in by_stage.values() for rank in ranks}
    ran, ran_others = compared(held_ns, still_ns) if known else (own, others)
    times = min(own / max(others, 1.0), ran / max(ran_others, 1.0), _usually(heaviest, by_stage, usual_ns))
    return times, (times - 1) * others


def _usually(heaviest: int, by_stage: Mapping[int, Sequence[int]], usual_ns: Mapping[int, float]) -> float:
    """Return how many times as long as the others a stage usually computes in a step, without pauses; infinite where
    that is not known of all."""
    if not all(usual_ns.get(rank) for ranks in by_stage.values() for rank in ranks):
        return np.inf
    own = {stage: float(np.median([usual_ns[rank] for rank in ranks])) for stage, ranks in by_stage.items()}
    return own[heaviest] / float(np.median([ns for stage, ns in own.items() if stage != heaviest]))


def _share_of_steps(
    heaviest: int, by_stage: Mapping[int, Sequence[int]], step_ns: Mapping[int, Mapping[int, int]]
) -> float:
    """Return the share of the steps in which a stage computed longer than the others; 1 where no step is known."""
    ranks_of = {stage: [step_ns[rank] for rank in ranks if rank in step_ns] for stage, ranks in by_stage.items()}
    longer = []
    for step in set().union(*(own for ranks in ranks_of.values() for own in ranks)):
        known = {stage: [own[step] for own in ranks if step in own] for stage, ranks in ranks_of.items()}
        if all(known.values()):  # of a rank not all steps may be recorded
            took = {stage: float(np.median(each)) for stage, each in known.items()}
            others = float(np.median([each for stage, each in took.items() if stage != heaviest]))
            longer.append(took[heaviest] >= MORE * others)
    return float(np.mean(longer)) if longer else 1.0


def _stages(run: Run) -> dict[int, int]:
    """Return the stage of every rank of a pipeline group: its position in the group."""
    found: dict[int, int] = {}
    for group in run.groups:
        if group.ranks is not None and _is_pipeline(group, run):
            found |= {rank: stage for stage, rank in enumerate(group.ranks)}
    return found


def _is_pipeline(group: Group, run: Run) -> bool:
    """Return whether the group is described as a pipeline group, or its members only send to their neighbours in it and
    receive from them, as far as peers are recorded; of two, which have no others, if their messages come in the order
    of a pipeline's."""
    dimension = dimension_of(group.description)
    if dimension is not None:
        return dimension == PIPELINE
    members, found = list(group.ranks or ()), False
    for place, rank in enumerate(members):
        timeline = run.ranks.get(rank)
        if timeline is None or group.name not in timeline.names:
            continue
        calls, names = timeline.collectives, timeline.names
        own = calls.group == names.index(group.name)
        next_to = [*members[max(place - 1, 0) : place], *members[place + 1 : place + 2], NONE]
        if not all(names[code] in POINT_TO_POINT for code in unique(calls.op[own]).tolist() if code >= 0):
            return False
        if not np.isin(calls.peer[own], next_to).all():
            return False
        found |= bool(own.any()) and (len(members) > 2 or _is_of_pipeline(timeline, own))
    return found


def _is_of_pipeline(timeline: RankTimeline, calls: Flags) -> bool:
    """Return whether some of these calls were found to be a pipeline's."""
    names = timeline.names
    return PIPELINE in names and bool((timeline.collectives.dimension[calls] == names.index(PIPELINE)).any())
