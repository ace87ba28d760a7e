"""Compute the analysis of a run (`overlapscope.analysis/1`): every figure that other tools rely on, as one value."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from overlapscope.analysis.checks.computing_calls import computing_calls
from overlapscope.analysis.checks.desync import desync
from overlapscope.analysis.checks.expert_imbalance import expert_imbalance
from overlapscope.analysis.checks.horovod_findings import horovod_findings
from overlapscope.analysis.checks.host_pauses import host_pauses
from overlapscope.analysis.checks.intent import intent_findings
from overlapscope.analysis.checks.links.possible_bandwidth import possible_bandwidth
from overlapscope.analysis.checks.links.slow_link import slow_links, with_cores
from overlapscope.analysis.checks.links.slower_messages import slower_messages
from overlapscope.analysis.checks.longer_kernels import longer_kernels
from overlapscope.analysis.checks.nccl_findings import nccl_findings
from overlapscope.analysis.checks.odd_ranges import odd_ranges
from overlapscope.analysis.checks.odd_step_ranges import with_ranges
from overlapscope.analysis.checks.outlier_steps import long_steps, outlier_steps
from overlapscope.analysis.checks.pipelines.bubbles import pipeline_bubbles, pipeline_fill
from overlapscope.analysis.checks.pipelines.uneven_stages import uneven_stages
from overlapscope.analysis.checks.power import power_falls
from overlapscope.analysis.checks.recorder_stops import idle_at_stops
from overlapscope.analysis.checks.recording_checks import partly_recorded_groups, reported_overlap, unread_ranks
from overlapscope.analysis.checks.recurring_pauses import recurring_pauses
from overlapscope.analysis.checks.slow_enqueue import slow_enqueue
from overlapscope.analysis.checks.slow_operations import slow_operations
from overlapscope.analysis.checks.timer_findings import timer_findings
from overlapscope.analysis.checks.topology_findings import topology_findings
from overlapscope.analysis.checks.unmarked_steps import unmarked_steps
from overlapscope.analysis.common.findings import Finding, Listed, recording_gaps, unplaced
from overlapscope.analysis.common.job_identity import host_of_ranks, ranks_of_hosts
from overlapscope.analysis.cost.throughput import throughput
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers, match_and_align
from overlapscope.analysis.dry_step import dry_step
from overlapscope.analysis.exposure.arrivals import arrivals
from overlapscope.analysis.exposure.collectives import collective_rows
from overlapscope.analysis.exposure.exposed import exposed_by
from overlapscope.analysis.exposure.exposed_causes import Causes, each_causes
from overlapscope.analysis.exposure.late_before import with_late_rank
from overlapscope.analysis.exposure.longer_than_like import LongerThanLike, longer_than_like
from overlapscope.analysis.graph.answers import HostPauses
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.own_causes import critical_paths
from overlapscope.analysis.job_step.headline import headline, quiet_steps
from overlapscope.analysis.job_step.longer_calls import longer_calls
from overlapscope.analysis.job_step.slowing_steps import slowing_steps
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.late_ranks import late_ranks_of, turns_on_cores, waiting_for_turns, without_taking_turns
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.host_operations import OperationPieces, empty_ranges_ns, other_inputs, same_inputs
from overlapscope.analysis.per_rank.kernels import RankCompute, compared
from overlapscope.analysis.rank_summary import RankSummary, summarize_ranks
from overlapscope.analysis.result import (
    Analysis,
    RankInfo,
    Skew,
    SkewRank,
    SourceInfo,
    StepBreakdown,
    complete_figures,
    waits_by_step,
    waits_for_late_ranks,
)
from overlapscope.analysis.run_info import run_info
from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.analysis.stragglers.core_waits import waited_for_cores
from overlapscope.analysis.stragglers.lateness import attribute_blame, late_arrivals
from overlapscope.analysis.stragglers.long_pauses import LongPauses
from overlapscope.analysis.stragglers.shared_cores import decide_who_is_late
from overlapscope.analysis.stragglers.standing_still import standing_still
from overlapscope.analysis.stragglers.stragglers import Straggler, beside_slow_links
from overlapscope.timeline.columns import FUSED, NONE, UNCLASSIFIED, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.intervals import Activity, BusyTime, length, union
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import Run, Source

MAX_NAMES = 100


def analyze(
    run: Run,
    cross_rank: CrossRank | None = None,
    bandwidth: Facts | None = None,
    alone: Mapping[int, RankSummary] | None = None,
    graphs: BuiltGraphs | None = None,
) -> Analysis:
    """Return all figures of a run.

    `cross_rank` is the result of `match_and_align`, `alone` that of `summarize_ranks`, and `graphs` those of the run,
    where the caller has them already; `bandwidth` holds measurements of the bandwidth that its collectives could reach.
    """
    graphs = graphs or BuiltGraphs(run)
    alone = alone or summarize_ranks(run, graphs)
    cross_rank = cross_rank or match_and_align(run)
    turns = turns_on_cores(run, alone, cross_rank)
    alone = waiting_for_turns(alone, turns)
    windows = {rank: own.windows for rank, own in alone.items()}
    coverage = {rank: own.coverage for rank, own in alone.items()}
    transfers = cross_rank.transfers(run)
    ranks, exposed_ns, longer = _each_rank(run, cross_rank, alone, transfers)
    window_ns = {info.rank: info.whole.window_ns for info in ranks}
    odd = frozenset(each.step for each in long_steps(complete_figures(ranks)))
    work = compared({rank: own.kernels for rank, own in alone.items()})
    links = slow_links(run, cross_rank.splits, cross_rank.pairs.pairs)
    held, shared = late_ranks_of(run, cross_rank, alone, work, window_ns, graphs, turns)
    late, held = held, without_taking_turns(held, waits_for_late_ranks(ranks), run)
    links = with_cores(run, links, shared)
    unclassified, fused = _listed(alone, UNCLASSIFIED), _listed(alone, FUSED)
    collectives = collective_rows(run.ranks, windows, transfers, exposed_ns)
    of_windows = rank_windows(ranks, alone)
    head = headline(of_windows, cross_rank)
    times = with_ranges(_of_times(run, ranks, shared, idle_at_stops(run, coverage, windows)), run)
    still = standing_still(run, _stood_still(alone), windows, shared)
    findings = [
        *slowing_steps(head, ", ".join(sorted({each.basis for each in run.ranks.values()}))),
        *_of_hosts(run, alone, head.step_ns, [*shared, *still]),
        *host_pauses(
            run, _long_pauses(alone), cross_rank.splits, head.step_ns if head.window == "step" else None, shared
        ),
        *times,
        *odd_ranges(run, times),
        *unplaced(unclassified, fused, sum(info.whole.compute_ns or 0 for info in ranks)),
        *_of_what_was_told(run, ranks),
        *links,
        *slower_messages(run, cross_rank.pairs.pairs),
        *shared,
        *still,
        *unmarked_steps(run),
        *recording_gaps(run.sources, _linkage(alone), _launch_graphs(run)),
        *unread_ranks(run),
        *_uneven_stages(run, work, ranks, alone),
        *longer_kernels(
            run,
            {info.rank: _computed_ns(info) for info in ranks},
            head.step_ns if head.window == "step" else None,
            [rank for each in held for rank in (each.rank, *each.late_with)],
        ),
        *longer_calls(run, head, of_windows, longer),
        *partly_recorded_groups(run, cross_rank),
        *pipeline_bubbles(run, {rank: own.stages for rank, own in alone.items()}),
        *pipeline_fill(run, {rank: own.stages for rank, own in alone.items()}),
        *expert_imbalance(run, cross_rank, coverage, window_ns),
        *possible_bandwidth(run, collectives, bandwidth),
        *intent_findings(run),
    ]
    # Of steps of two kinds those are typical that communicate: the others show nothing of what is lost.
    path = critical_paths(run, windows, cross_rank, graphs, odd | quiet_steps(head), _pauses(run, alone))
    waiting = {rank: own.parts.waiting for rank, own in alone.items() if own.parts.waiting is not None}
    loss = with_late_rank(path.longest_loss, run, cross_rank.clocks, transfers, coverage, waiting)
    return Analysis(
        sources=list(map(_source_info, (*run.sources, *run.unreadable_hosts))),
        run=run_info(run),
        ranks=ranks,
        unclassified=unclassified,
        fused=fused,
        collectives=collectives,
        exposed_by=exposed_by(run.ranks, windows, exposed_ns),
        skew=_skew(
            cross_rank,
            ranks_of_hosts(run),
            {info.rank: info.whole.idle_ns for info in ranks},
            beside_slow_links(held, links),
            sorted({each.rank for each in late} - {each.rank for each in held}),
            attribute_blame(late_arrivals(run, cross_rank.splits, coverage)),
        ),
        findings=findings,
        recommendations=[],
        told=rows_of_sources(run.facts),
        critical_path=msgspec.structs.replace(path, longest_loss=loss),
        throughput=throughput(run, alone),
        headline=head,
        dry_step=dry_step(run),
    )


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


def _pauses(run: Run, alone: Mapping[int, RankSummary]) -> dict[int, HostPauses]:
    """Return the pauses of hosts of a CPU run while they seemed to compute, by rank."""
    return {
        rank: HostPauses(
            stood_still=own.stood_still,
            waited_for_core=None if own.parts.waiting is None else own.parts.waiting.computing,
            collected=BusyTime(recorded_pauses(run.ranks[rank], COLLECTOR)),
            in_calls=BusyTime(union((own.in_calls.start_ns, own.in_calls.end_ns))) if own.in_calls else None,
        )
        for rank, own in alone.items()
        if not run.ranks[rank].has_device
    }


def _each_rank(
    run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary], transfers: Mapping[int, Transfers]
) -> tuple[list[RankInfo], Mapping[int, Ints], Mapping[int, LongerThanLike]]:
    """Return each rank's figures, the exposed time of each of its collectives, and what those that could not be split
    take longer than their like."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    parts = {rank: own.parts for rank, own in alone.items()}
    hosts = host_of_ranks(run)
    ranks: list[RankInfo] = []
    exposed: dict[int, Ints] = {}
    longer: dict[int, LongerThanLike] = {}
    unsplit = {rank for rank, timeline in run.ranks.items() if timeline.has_device and _not_split(transfers[rank])}
    arrived = arrivals(run, cross_rank) if unsplit else {}
    for rank, causes in each_causes(run, cross_rank, coverage, parts, transfers):
        ranks.append(_rank_info(rank, hosts.get(rank), run.ranks[rank].basis, alone[rank], causes))
        exposed[rank] = causes.exposed_ns
        if rank in unsplit:
            own_comm, computed_ns = parts[rank].own_comm, _step_compute_ns(alone[rank])
            longer[rank] = longer_than_like(
                run.ranks[rank], own_comm, causes, transfers[rank], arrived[rank], computed_ns
            )
    return ranks, exposed, longer


def _not_split(transfers: Transfers) -> bool:
    return bool((transfers.transfer_ns == NONE).any())


def _step_compute_ns(own: RankSummary) -> dict[tuple[int, int], int]:
    """Return how long a rank computed in each complete step, by recording and step."""
    _, *steps = own.figures
    return {
        (at.recording, at.step): figures.compute_ns
        for at, figures in zip(own.windows, steps, strict=True)
        if at.complete and figures.compute_ns is not None
    }


def rank_windows(infos: Iterable[RankInfo], alone: Mapping[int, RankSummary]) -> dict[int, RankWindows]:
    """Return the windows of the ranks that have times, with their breakdowns."""
    return {
        info.rank: RankWindows(
            steps=list(zip(alone[info.rank].windows, info.steps, strict=True)),
            whole=info.whole,
            recordings=alone[info.rank].whole,
        )
        for info in infos
        if info.whole.window_ns
    }


def _rank_info(rank: int, host: str | None, basis: str, own: RankSummary, causes: Causes) -> RankInfo:
    sets = own.sets
    found = zip(own.figures, causes.within_each(sets), causes.exposed_wait_ns(sets), causes.hidden_wait_ns(sets),
                strict=True)  # fmt: skip
    whole, *steps = [_known(basis, *each) for each in found]
    return RankInfo(
        rank=rank,
        host=host,
        whole=whole,
        steps=[
            StepBreakdown(step=each.step, complete=each.complete, **msgspec.structs.asdict(its))
            for each, its in zip(own.windows, steps, strict=True)
        ],
        no_causes_reason=own.no_causes_reason if whole.window_ns is not None else None,
        interference=None if isinstance(own.interference, str) else own.interference,
        no_interference_reason=own.interference if isinstance(own.interference, str) else None,
        empty_ranges_ns=empty_ranges_ns(own.operations),
    )


def _known(
    basis: str, figures: Breakdown, causes: dict[str, int], exposed_wait_ns: int | None, hidden_wait_ns: int | None
) -> Breakdown:
    """Add the causes, and remove what a recording of this basis cannot know; without a window there are no figures."""
    if figures.window_ns is None:
        return figures
    known: dict[str, Any] = {"causes": causes, "exposed_wait_ns": exposed_wait_ns}
    if hidden_wait_ns is not None and figures.overlapped_ns is not None:
        known |= {"hidden_wait_ns": hidden_wait_ns, "hidden_transfer_ns": figures.overlapped_ns - hidden_wait_ns}
    if basis == "events":  # events see no copies
        known |= {"copy_ns": None, "copy_only_ns": None}
    return msgspec.structs.replace(figures, **known)


def _uneven_stages(
    run: Run, work: Mapping[int, RankCompute], ranks: Sequence[RankInfo], alone: Mapping[int, RankSummary]
) -> list[Finding]:
    """Return the finding on stages of a pipeline that have more work than the others."""
    return uneven_stages(
        run,
        work,
        {info.rank: info.whole.window_ns for info in ranks},
        {info.rank: _computed_ns(info) for info in ranks},
        _held_ns(run),
        _still_ns(alone),
        {rank: own.host_runs.usual_ns for rank, own in alone.items() if own.host_runs},
        {rank: own.stages for rank, own in alone.items()},
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
    run: Run, ranks: Sequence[RankInfo], shared: Sequence[Finding], stopped_ns: Mapping[tuple[int, int], float]
) -> list[Finding]:
    """Return the findings from the times of single ranks; `shared` are those on cores that hosts share, `stopped_ns`
    holds idle time that may be the recorder's stop."""
    basis = {rank: timeline.basis for rank, timeline in run.ranks.items()}
    found = outlier_steps(
        complete_figures(ranks),
        basis,
        waited_ns=waits_by_step(ranks),
        stopped_ns=stopped_ns,
        by_chance=decide_who_is_late(shared),
    )
    return [*found, *power_falls(run.ranks)]


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


def _source_info(source: Source) -> SourceInfo:
    return SourceInfo(
        path=source.path,
        format=source.format,
        ranks=list(source.ranks),
        events=source.events,
        repaired=source.repaired,
        dropped=source.dropped,
        truncated=source.truncated,
        warnings=list(source.warnings),
    )


def _skew(
    cross_rank: CrossRank, hosts: Mapping[str, Sequence[int]], idle_ns: Mapping[int, int | None],
    held: Sequence[Straggler], in_turn: list[int], delayed_ns: Mapping[int, int],
) -> Skew:  # fmt: skip
    residual = cross_rank.clocks.residual_ns
    aligned = cross_rank.clocks.offset_ns.keys()
    partly = {rank for each in cross_rank.splits if not each.block.whole for rank in each.block.ranks}
    return Skew(
        matched=cross_rank.matched,
        unmatched=cross_rank.matching.unmatched + cross_rank.pairs.unmatched,
        pairs=cross_rank.pairs.matched,
        uneven=sum(each.calls for each in cross_rank.matching.uneven),
        not_split=cross_rank.not_split,
        reasons=[*cross_rank.matching.reasons, *cross_rank.pairs.reasons],
        clock_offset_ns={str(rank): round(offset) for rank, offset in cross_rank.clocks.offset_ns.items()},
        one_host=bool(aligned) and any(aligned <= set(ranks) for ranks in hosts.values()),
        residual_ns=None if residual is None else round(residual),
        ranks=[
            SkewRank(
                rank=rank,
                collective_ns=each.collective_ns,
                wait_ns=each.wait_ns,
                wait_fraction=each.wait_ns / each.collective_ns if each.collective_ns else None,
                blame_ns=each.blame_ns,
                blame_estimate="upper_bound" if rank in partly else "matched",
                start_of_recording_ns=each.start_wait_ns,
                late_end_ns=each.late_end_ns,
                delayed_ns=delayed_ns.get(rank, 0),
                waited_for_ns=each.waited_for_ns,
                times_last=each.times_last,
                idle_ns=idle_ns[rank],
            )
            for rank, each in cross_rank.waits.items()
        ],
        stragglers=list(held),
        in_turn=in_turn,
    )


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


def _listed(alone: Mapping[int, RankSummary], note: int) -> Listed:
    """Sum the spans with a note over all ranks; names by total time, the longest first, at most MAX_NAMES."""
    spans = duration = 0
    by_name: dict[str, int] = {}
    for own in alone.values():
        for name, count, total in own.noted[note]:
            spans += count
            duration += total
            by_name[name] = by_name.get(name, 0) + total
    names = sorted(by_name, key=lambda name: (-by_name[name], name))
    return Listed(spans=spans, duration_ns=duration, names=names[:MAX_NAMES])
