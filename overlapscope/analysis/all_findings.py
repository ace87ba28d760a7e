"""Ask every check of a run what it finds."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.analysis.checks.computing_calls import computing_calls
from overlapscope.analysis.checks.desync import desync
from overlapscope.analysis.checks.expert_imbalance import expert_imbalance
from overlapscope.analysis.checks.hosts.host_pauses import host_pauses, without_pauses
from overlapscope.analysis.checks.hosts.recurring_pauses import recurring_pauses
from overlapscope.analysis.checks.hosts.slow_enqueue import slow_enqueue
from overlapscope.analysis.checks.hosts.slow_host import slow_host
from overlapscope.analysis.checks.intent import intent_findings
from overlapscope.analysis.checks.launch_gaps import launch_gaps, launched_before
from overlapscope.analysis.checks.links.possible_bandwidth import possible_bandwidth
from overlapscope.analysis.checks.links.slower_messages import slower_messages
from overlapscope.analysis.checks.logs.horovod_findings import horovod_findings
from overlapscope.analysis.checks.logs.nccl_findings import nccl_findings
from overlapscope.analysis.checks.logs.timer_findings import timer_findings
from overlapscope.analysis.checks.longer_kernels import longer_kernels
from overlapscope.analysis.checks.pipelines.bubbles import pipeline_bubbles, pipeline_fill
from overlapscope.analysis.checks.pipelines.devices_in_turn import devices_in_turn
from overlapscope.analysis.checks.pipelines.last_stage_waits import last_stage_waits
from overlapscope.analysis.checks.pipelines.stages import PipelineStage, counted_stages
from overlapscope.analysis.checks.pipelines.uneven_stages import uneven_stages
from overlapscope.analysis.checks.power import power_falls
from overlapscope.analysis.checks.recording_checks import (
    partly_recorded_groups,
    reported_overlap,
    sampled_recording,
    unread_ranks,
)
from overlapscope.analysis.checks.steps.odd_ranges import odd_ranges
from overlapscope.analysis.checks.steps.odd_step_findings import outlier_steps, waits_in_calls
from overlapscope.analysis.checks.steps.odd_step_ranges import with_ranges, with_waited_steps
from overlapscope.analysis.checks.steps.recorder_stops import idle_at_stops, leads_at_stops
from overlapscope.analysis.checks.steps.rising_kernels import rising_kernels
from overlapscope.analysis.checks.steps.slow_operations import slow_operations
from overlapscope.analysis.checks.steps.unmarked_steps import unmarked_steps
from overlapscope.analysis.checks.topology_findings import topology_findings
from overlapscope.analysis.common.cause_table import EVENTS_MISSING, SAMPLED
from overlapscope.analysis.common.findings import Finding, Listed, recording_gaps, unplaced
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.longer_than_like import LongerThanLike
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.job_step.longer_calls import longer_calls
from overlapscope.analysis.job_step.slower_steps import slower_steps
from overlapscope.analysis.job_step.slowing_steps import slowing_steps
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.pauses.host_collectives import collectives_on_hosts
from overlapscope.analysis.pauses.long_pauses import LongPauses
from overlapscope.analysis.per_rank.breakdown import Breakdown, Coverage
from overlapscope.analysis.per_rank.host_operations import OperationPieces, other_inputs, same_inputs
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import (
    RankInfo,
    complete_figures,
    waits_by_step,
)
from overlapscope.analysis.stragglers.core_waits import waited_for_cores
from overlapscope.analysis.stragglers.shared_cores import decide_who_is_late
from overlapscope.analysis.stragglers.standing_still import standing_still
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.intervals import Activity, length
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import Run


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run when its checks are asked."""

    run: Run
    alone: Mapping[int, RankSummary]
    cross_rank: CrossRank
    ranks: Sequence[RankInfo]
    work: Mapping[int, RankCompute]
    """The compute of each rank, compared between ranks."""
    windows: Mapping[int, RankWindows]
    head: Headline
    collectives: Sequence[CollectiveRow]
    longer: Mapping[int, LongerThanLike]
    links: Sequence[Finding]
    shared: Sequence[Finding]
    """The findings on cores that hosts share."""
    held: Sequence[Straggler]
    unclassified: Listed
    fused: Listed
    bandwidth: Facts | None


def findings_of(asked: Asked) -> list[Finding]:
    """Return the findings of all checks."""
    run, alone, shared = asked.run, asked.alone, asked.shared
    coverage = {rank: own.coverage for rank, own in alone.items()}
    step_windows = {rank: own.windows for rank, own in alone.items()}
    stages = counted_stages(run, {rank: own.stages for rank, own in alone.items()})
    window_ns = {info.rank: info.whole.window_ns for info in asked.ranks}
    of_steps_ns = asked.head.step_ns if asked.head.window == "step" else None
    whole = [info for info in asked.ranks if info.no_causes_reason not in EVENTS_MISSING]
    times = _of_times(run, whole, shared, asked.cross_rank.splits, coverage, step_windows)
    computed_ns = {info.rank: _computed_ns(info) for info in asked.ranks}
    paused = host_pauses(
        run,
        _long_pauses(alone),
        asked.cross_rank.splits,
        asked.head.step_ns,
        shared,
        of_steps=asked.head.window == "step",
        cut_short=asked.head.causes_cut,
    )
    in_ranges = odd_ranges(run, times)
    still = standing_still(run, _stood_still(alone), step_windows, shared)
    slowing = slowing_steps(asked.head, ", ".join(sorted({each.basis for each in run.ranks.values()})))
    return [
        *sampled_recording(run, [rank for rank, own in alone.items() if own.no_causes_reason == SAMPLED]),
        *(slowing or slower_steps(run, asked.head, times)),
        *_of_hosts(run, alone, asked.head.step_ns, [*shared, *still]),
        *paused,
        *collectives_on_hosts(run, coverage, step_windows, asked.head.step_ns),
        *without_pauses(times, paused, step_windows),
        *(each for each in in_ranges if each.severity == "warning"),
        *unplaced(asked.unclassified, asked.fused, sum(info.whole.compute_ns or 0 for info in asked.ranks)),
        *_of_what_was_told(run, asked.ranks),
        *asked.links,
        *slower_messages(run, asked.cross_rank.pairs.pairs),
        *shared,
        *still,
        *unmarked_steps(run),
        *recording_gaps(
            run.sources, _linkage(alone), _launch_graphs(run), lambda rank: launched_before(run.ranks[rank])
        ),
        *launch_gaps(run),
        *slow_host(run),
        *unread_ranks(run),
        *_uneven_stages(run, asked.work, window_ns, computed_ns, alone, stages),
        *longer_kernels(
            run, computed_ns, of_steps_ns, [rank for each in asked.held for rank in (each.rank, *each.late_with)]
        ),
        *rising_kernels(run, computed_ns),
        *longer_calls(run, asked.head, asked.windows, asked.longer, asked.cross_rank.clocks),
        *partly_recorded_groups(run, asked.cross_rank),
        *_of_pipelines(run, alone, [info.rank for info in whole], stages),
        *expert_imbalance(run, asked.cross_rank, coverage, window_ns),
        *possible_bandwidth(run, asked.collectives, asked.bandwidth),
        *intent_findings(run),
        *(each for each in in_ranges if each.severity != "warning"),
    ]


def _of_pipelines(
    run: Run,
    alone: Mapping[int, RankSummary],
    recorded: Sequence[int],
    stages: Mapping[int, Mapping[str, PipelineStage]],
) -> list[Finding]:
    """Return the findings on stages that wait for each other, and on devices of one process that do."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    windows = {rank: own.windows for rank, own in alone.items()}
    whole = {rank: own.whole for rank, own in alone.items()}
    return [
        *pipeline_bubbles(run, stages),
        *pipeline_fill(run, stages),
        *devices_in_turn({rank: run.ranks[rank] for rank in recorded}, coverage, windows, whole),
        *last_stage_waits(run, coverage, windows),
    ]


def _of_hosts(
    run: Run, alone: Mapping[int, RankSummary], step_ns: float | None, said: Sequence[Finding]
) -> list[Finding]:
    """Return the findings from what hosts of CPU runs did in operations and between them; `said` are those that explain
    why operations took longer."""
    windows = {rank: own.windows for rank, own in alone.items()}
    coverage = {rank: own.coverage for rank, own in alone.items()}
    return [
        *slow_operations(
            {rank: own.operations for rank, own in alone.items() if own.operations},
            step_ns,
            said,
            same_inputs=all(map(same_inputs, run.ranks.values())),
            other_inputs=any(map(other_inputs, run.ranks.values())),
        ),
        *slow_enqueue(
            run, {rank: own.enqueuing for rank, own in alone.items() if own.enqueuing is not None}, windows, step_ns
        ),
        *computing_calls(run, _in_calls(alone), coverage, windows, step_ns),
        *recurring_pauses(
            run,
            {rank: own.operation_gaps for rank, own in alone.items() if own.operation_gaps is not None},
            step_ns,
        ),
    ]


def _long_pauses(alone: Mapping[int, RankSummary]) -> dict[int, LongPauses]:
    """Return the long pauses of hosts of devices, by rank, where they are known."""
    return {rank: own.long_pauses for rank, own in alone.items() if own.long_pauses is not None}


def _stood_still(alone: Mapping[int, RankSummary]) -> dict[int, Activity]:
    """Return when hosts of a CPU run stood still while they seemed to compute, by rank, where that is known."""
    return {rank: own.stood_still for rank, own in alone.items() if own.stood_still is not None}


def _in_calls(alone: Mapping[int, RankSummary]) -> dict[int, OperationPieces]:
    """Return in which operations threads of communication were during their calls, by rank, where that is known."""
    return {rank: own.in_calls for rank, own in alone.items() if own.in_calls is not None}


def _uneven_stages(
    run: Run,
    work: Mapping[int, RankCompute],
    window_ns: Mapping[int, int | None],
    computed_ns: Mapping[int, Mapping[int, int]],
    alone: Mapping[int, RankSummary],
    stages: Mapping[int, Mapping[str, PipelineStage]],
) -> list[Finding]:
    """Return the finding on stages of a pipeline that have more work than the others."""
    return uneven_stages(
        run,
        work,
        window_ns,
        computed_ns,
        _held_ns(run),
        _still_ns(alone),
        {rank: own.host_runs.usual_ns for rank, own in alone.items() if own.host_runs},
        stages,
    )


def _held_ns(run: Run) -> dict[int, int]:
    """Return how long each rank waited for a core or collected garbage, as far as capture noted it."""
    waited = waited_for_cores(run.ranks)
    return {
        rank: waited.get(rank, 0) + length(recorded_pauses(timeline, COLLECTOR)) for rank, timeline in run.ranks.items()
    }


def _still_ns(alone: Mapping[int, RankSummary]) -> dict[int, int]:
    """Return for how long each host stood still while it seemed to compute, or waited for its turn on a core, where
    that is known."""
    found = {}
    for rank, own in alone.items():
        whole, waiting = np.array(own.whole, np.int64).reshape(-1, 2).T, own.parts.waiting
        turns = waiting.computing if waiting is not None and own.host_runs is not None else None
        known = [each for each in (own.stood_still, turns) if each is not None]
        if known:
            found[rank] = sum(int(each.within(*whole).sum()) for each in known)
    return found


def _computed_ns(info: RankInfo) -> dict[int, int]:
    """Return how long a rank computed in each complete step."""
    return {each.step: each.compute_ns for each in info.steps if each.complete and each.compute_ns is not None}


def _of_times(
    run: Run,
    ranks: Sequence[RankInfo],
    shared: Sequence[Finding],
    splits: Sequence[Split],
    coverage: Mapping[int, Coverage],
    windows: Mapping[int, Sequence[StepWindow]],
) -> list[Finding]:
    """Return the findings from the times of single ranks; `shared` are those on cores that hosts share."""
    basis = {rank: timeline.basis for rank, timeline in run.ranks.items()}
    found = outlier_steps(
        complete_figures(ranks),
        basis,
        waited_ns=waits_by_step(ranks),
        in_calls_ns=waits_in_calls(run, splits),
        stopped_ns=idle_at_stops(run, coverage, windows),
        led_ns=leads_at_stops(windows),
        by_chance=decide_who_is_late(shared),
        run=run,
    )
    in_range = with_ranges([*found, *power_falls(run.ranks)], run, coverage, windows)
    return with_waited_steps(in_range, run, splits, windows)


def _of_what_was_told(run: Run, ranks: Sequence[RankInfo]) -> list[Finding]:
    """Return the findings from logs and other sources without times, and where they contradict the times."""
    figures: dict[tuple[int, int | None], Breakdown] = {(info.rank, None): info.whole for info in ranks}
    figures |= {(info.rank, step.step): step for info in ranks for step in info.steps}
    return [
        *horovod_findings(run.facts, run.sources),
        *timer_findings(run.facts, run.sources),
        *reported_overlap(run.facts, figures),
        *desync(run),
        *topology_findings(run.facts),
        *nccl_findings(run),
    ]


def _linkage(alone: Mapping[int, RankSummary]) -> dict[int, tuple[int, int]]:
    """Return (device spans, device spans without a launch) by rank; CPU runs have neither, and where nothing of a host
    was recorded, that is said for its idle time."""
    return {
        rank: own.linkage
        for rank, own in alone.items()
        if own.linkage is not None and not (own.no_causes_reason == "no_host_events" and len({*own.linkage}) == 1)
    }


def _launch_graphs(run: Run) -> frozenset[int]:
    """Return the ranks that launch CUDA graphs."""
    return frozenset(rank for rank, each in run.ranks.items() if any(map(LAUNCHES_GRAPH.search, each.names)))
