"""Find pipeline bubbles that exceed those of the schedule, and say what a schedule takes (docs/definitions.md).

With p stages, m microbatches and v chunks a stage, a stage that is busy for t has a bubble of at least t (p - 1) /
(v m): 1F1B with v = 1, and interleaved (Narayanan et al. 2021, "Efficient large-scale language model training on GPU
clusters using Megatron-LM", section 2.2). Zero-bubble schedules split the backward pass in two and have a third of it
(ZB-H1) or none (ZB-H2), if the forward pass and both halves take equally long (Qi et al. 2024, "Zero bubble pipeline
parallelism", table 2). The schedule is not recorded: what exceeds 1F1B exceeds them all.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from overlapscope.analysis.checks.pipelines.stages import PipelineStage, alike_stages, microbatches
from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding
from overlapscope.display import percent_text
from overlapscope.timeline.run import Run

MIN_SHARE: Final = 0.05
"""The excess is a finding from this share of the step ..."""
MIN_NS: Final = MILLISECOND_NS
"""... and this long."""
RECORDED: Final = 0.5
"""A stage waited for at least this share of what its schedule needs, or the schedule is another one: a zero-bubble one
needs a third, or nothing."""


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
    differ between steps or stages. `stages` holds the result of `counted_stages`.
    """
    alike = alike_stages(run, stages)
    work_ns: dict[int, dict[int, float]] = {}
    for group, own in alike:  # of pipelines side by side, each may have other stages recorded
        of_places = work_ns.setdefault(len(group.ranks or ()), {})
        for each in own:
            of_places[each.place] = max(_work_ns(each), of_places.get(each.place, 0.0))
    return [
        finding
        for group, own in alike
        for finding in _excess(group.name, group.ranks or (), own, work_ns[len(group.ranks or ())])
    ]


def _busy_ns(stage: PipelineStage) -> float:
    return stage.window_ns - stage.bubble_ns


def _work_ns(stage: PipelineStage) -> float:
    """Return how long a stage is busy without the calls that come once a step: a stage that has drained waits there for
    the others, which makes none of them wait."""
    return _busy_ns(stage) - stage.once_ns


def _excess(
    group: str, ranks: Sequence[int], stages: Sequence[PipelineStage], work_ns: Mapping[int, float]
) -> list[Finding]:
    """Return the finding on a pipeline; `work_ns` is how long stages work at most, by place, in it and those beside it,
    which says what stages do that were not recorded in it."""

    def more(stage: PipelineStage) -> float:
        return stage.bubble_ns - ideal_bubble_ns(_busy_ns(stage), len(ranks), stage.activations)

    worst = max(stages, key=more)
    if more(worst) < max(MIN_NS, MIN_SHARE * worst.window_ns):
        return []
    ideal = worst.bubble_ns - more(worst)
    needs = needed_bubbles_ns(worst, len(ranks))
    excess = between_ms([worst.bubble_ns - each for each in needs])
    its_ns = {**work_ns, **{each.place: _work_ns(each) for each in stages}}
    busiest = max(its_ns, key=its_ns.__getitem__)
    longer = min(its_ns[busiest] - _work_ns(worst), more(worst))
    uneven = longer >= max(MIN_NS, MIN_SHARE * worst.window_ns)
    of_it = f"; {longer / 1e6:.3f} ms of it as stage {busiest} is busy for longer" if uneven else ""
    return [
        Finding(
            id=f"pipeline_bubble:{group}",
            severity="warning",
            title=f"pipeline {group}: the bubble of stage {worst.place} of {len(ranks)} (rank {worst.rank}) takes "
            f"{worst.bubble_ns / 1e6:.3f} ms of a {worst.window_ns / 1e6:.3f} ms step, {excess} more than the "
            f"{between_ms(needs)} that 1F1B of equal stages needs with {counted_activations(worst)} a stage{of_it}",
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
                **({"uneven_ns": round(longer), "busiest_stage": busiest} if uneven else {}),
            },
            known_from="trace",
        )
    ]


def pipeline_fill(run: Run, stages: Mapping[int, Mapping[str, PipelineStage]]) -> list[Finding]:
    """Return at most one finding: what filling and draining a pipeline takes of a step by its schedule, where that is
    much and a stage was recorded to wait for about as long.

    It is the ideal bubble of the stage that waits longest, as a share of the step as measured: of equal stages that do
    nothing else (p - 1) / (v m + p - 1). `stages` holds the result of `counted_stages`.
    """
    found = []
    for group, own in alike_stages(run, stages):
        longest = max(own, key=lambda each: each.bubble_ns / each.window_ns)
        count = len(group.ranks or ())
        share = fill_share(longest, count, longest.at_most)
        if share >= MIN_SHARE and longest.bubble_ns >= RECORDED * share * longest.window_ns:
            found.append((share, count, longest, own))
    if not found:
        return []
    share, count, stage, own = max(found, key=lambda each: each[0])
    batches = microbatches(own)
    return [
        Finding(
            id="pipeline_fill",
            severity="info",
            title=f"{_counted(stage.at_most, batches)} on {count} stages: by the schedule a pipeline fills and drains "
            f"for {percent_text(share)} of a step; with {2 * (batches or stage.at_most)} it would be "
            f"{percent_text(share / (2 - share))}",
            evidence={
                "stages": count, "activations": stage.activations, "activations_at_most": stage.at_most,
                "fill_share": share, "fill_share_at_most": fill_share(stage, count, stage.activations),
                "microbatches": batches, "bubble_ns": round(stage.bubble_ns), "rank": stage.rank,
                "step_ns": round(stage.window_ns), "saved_by_twice_ns": round(_saved_by_twice_ns(own, count)),
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _saved_by_twice_ns(stages: Sequence[PipelineStage], count: int) -> float:
    """Return what twice the micro-batches save of a step, where each takes half as long.

    A step takes as long as its busiest stage, and one micro-batch on each other stage. A stage that was not recorded
    is busy for no longer than the busiest, for what is known.
    """
    worked = [_work_ns(each) for each in stages]
    others_ns = sum(worked) - max(worked) + (count - len(stages)) * max(worked)
    return others_ns / (2 * stages[0].at_most)


def _counted(activations: int, batches: int | None) -> str:
    """Return in words how many micro-batches a step has, of so many activations that a stage sends."""
    if batches is None:
        return f"{activations} micro-batches (or fewer, in chunks)"
    chunks, rest = divmod(activations, batches)
    if activations == batches:
        return f"{batches} micro-batches"
    return f"{batches} micro-batches in {chunks} chunks" if not rest else f"{batches} micro-batches in chunks"


def fill_share(stage: PipelineStage, stages: int, activations: int) -> float:
    """Return the share of a step in which 1F1B fills and drains, for v m activations that a stage sends in it."""
    return ideal_bubble_ns(_busy_ns(stage), stages, activations) / stage.window_ns
