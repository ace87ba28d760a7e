"""Compute the analysis of a run (`overlapscope.analysis/1`): every figure that other tools rely on, as one value."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from overlapscope.analysis.checks.desync import desync
from overlapscope.analysis.checks.expert_imbalance import expert_imbalance
from overlapscope.analysis.checks.horovod_findings import horovod_findings
from overlapscope.analysis.checks.intent import intent_findings
from overlapscope.analysis.checks.nccl_findings import nccl_findings
from overlapscope.analysis.checks.odd_step_ranges import with_ranges
from overlapscope.analysis.checks.outlier_steps import long_steps, outlier_steps
from overlapscope.analysis.checks.pipeline import pipeline_bubbles, uneven_stages
from overlapscope.analysis.checks.possible_bandwidth import possible_bandwidth
from overlapscope.analysis.checks.power import power_falls
from overlapscope.analysis.checks.recorder_stops import idle_at_stops
from overlapscope.analysis.checks.recording_checks import partly_recorded_groups, reported_overlap, unread_ranks
from overlapscope.analysis.checks.slow_link import slow_links
from overlapscope.analysis.checks.slow_operations import slow_operations
from overlapscope.analysis.checks.timer_findings import timer_findings
from overlapscope.analysis.checks.topology_findings import topology_findings
from overlapscope.analysis.common.cause_table import NoRemoval
from overlapscope.analysis.common.findings import Finding, Listed, recording_gaps, unplaced
from overlapscope.analysis.common.job_identity import host_of_ranks, ranks_of_hosts
from overlapscope.analysis.cost.throughput import throughput
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers, match_and_align
from overlapscope.analysis.dry_step import dry_step
from overlapscope.analysis.exposure.collectives import collective_rows
from overlapscope.analysis.exposure.core_waiting import in_turn
from overlapscope.analysis.exposure.exposed import exposed_by
from overlapscope.analysis.exposure.exposed_causes import Causes, each_causes
from overlapscope.analysis.graph.answers import HostPauses
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.own_causes import critical_paths
from overlapscope.analysis.graph.scenarios import PAUSE_CAP_NS, capped_pauses, outcome
from overlapscope.analysis.job_step.headline import headline
from overlapscope.analysis.job_step.slowing_steps import slowing_steps
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.host_operations import same_inputs
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
)
from overlapscope.analysis.run_info import run_info
from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.analysis.stragglers.core_turns import Turns
from overlapscope.analysis.stragglers.core_waits import waited_for_cores
from overlapscope.analysis.stragglers.shared_cores import (
    decide_who_is_late,
    hosts_in_turns,
    lack_cores,
    pinned_hosts,
    shared_cores,
)
from overlapscope.analysis.stragglers.standing_still import standing_still
from overlapscope.analysis.stragglers.stragglers import (
    Compared,
    Straggler,
    beside_slow_links,
    late_ranks,
    may_be_late,
    stragglers,
)
from overlapscope.timeline.columns import FUSED, UNCLASSIFIED, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.intervals import Activity, length
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import Run, Source

if TYPE_CHECKING:
    from overlapscope.analysis.graph.removal import Removal, RunGraph

MAX_NAMES = 100
OF_HOST = ("host", "data_loading", "unknown")
"""Causes of lateness that hosts which share cores have, too."""


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
    ranks, exposed_ns = _each_rank(run, cross_rank, alone, transfers)
    window_ns = {info.rank: info.whole.window_ns for info in ranks}
    odd = frozenset(each.step for each in long_steps(complete_figures(ranks)))
    work = compared({rank: own.kernels for rank, own in alone.items()})
    links = slow_links(run, cross_rank.splits, cross_rank.pairs.pairs)
    held, shared = late_ranks_of(run, cross_rank, alone, work, window_ns, graphs, turns)
    links = _of_links(run, links, shared)
    unclassified, fused = _listed(alone, UNCLASSIFIED), _listed(alone, FUSED)
    collectives = collective_rows(run.ranks, windows, transfers, exposed_ns)
    head = headline(rank_windows(ranks, alone), cross_rank)
    still = standing_still(run, _stood_still(alone), windows, shared)
    findings = [
        *slowing_steps(head, ", ".join(sorted({each.basis for each in run.ranks.values()}))),
        *_slow_operations(run, alone, head.step_ns, [*shared, *still]),
        *with_ranges(_of_times(run, ranks, shared, idle_at_stops(run, coverage, windows)), run),
        *unplaced(unclassified, fused, sum(info.whole.compute_ns or 0 for info in ranks)),
        *_of_what_was_told(run, ranks),
        *links,
        *shared,
        *still,
        *recording_gaps(run.sources, _linkage(alone)),
        *unread_ranks(run),
        *uneven_stages(
            run, work, window_ns, {info.rank: _computed_ns(info) for info in ranks}, _held_ns(run), _still_ns(alone)
        ),
        *partly_recorded_groups(run, cross_rank),
        *pipeline_bubbles(run, {rank: own.stages for rank, own in alone.items()}),
        *expert_imbalance(run, cross_rank, coverage, window_ns),
        *possible_bandwidth(run, collectives, bandwidth),
        *intent_findings(run),
    ]
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
        ),
        findings=findings,
        recommendations=[],
        told=rows_of_sources(run.facts),
        critical_path=critical_paths(run, windows, cross_rank, graphs, odd, _pauses(alone)),
        throughput=throughput(run, alone),
        headline=head,
        dry_step=dry_step(run),
    )


def late_ranks_of(
    run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary], work: Mapping[int, RankCompute],
    window_ns: Mapping[int, int | None], graphs: BuiltGraphs, turns: Sequence[Turns],
) -> tuple[list[Straggler], list[Finding]]:  # fmt: skip
    """Return the stragglers, and the findings on cores that hosts share; `work` is compared between the ranks, `turns`
    is the result of `turns_on_cores`.

    Where hosts share cores it is random which of them is late: that is no straggler. Where the record of a host is
    damaged it is not known whether they do, nor what the removal of a rank is worth that is late because of its host.
    """
    spans = sum(own.linkage[0] for own in alone.values() if own.linkage)
    graph = cache(lambda: _graph_of(run, cross_rank, graphs, spans))
    pinned = pinned_hosts(run, {rank: own.host for rank, own in alone.items() if own.host}, cross_rank.clocks)
    ranks = Compared(
        run=run, splits=(*cross_rank.splits, *cross_rank.uneven), clocks=cross_rank.clocks,
        coverage={rank: own.coverage for rank, own in alone.items()}, work=work, window_ns=window_ns,
        not_launched={rank: own.not_launched for rank, own in alone.items()},
        core_waits={rank: waits for each in turns for rank, waits in each.waits.items()},
        paused={rank: own.host_runs.stood_still for rank, own in alone.items() if own.host_runs},
    )  # fmt: skip
    unsure = {rank for ranks in (*(each.ranks for each in pinned), *(each.ranks for each in turns)) for rank in ranks}
    damaged = any(timeline.has_device and timeline.host_is_lost for timeline in run.ranks.values())
    if damaged:
        unsure = set(run.ranks)
    held = [
        each
        for each in stragglers(ranks, _late(run, cross_rank, window_ns, graph))
        if each.held_by not in OF_HOST
        or each.rank not in unsure
        or (each.evidence["alike"] and each.held_by != "unknown" and not damaged)
    ]
    return held, shared_cores(run, pinned, turns, lambda: _with_pauses_capped(graph()))


def turns_on_cores(run: Run, alone: Mapping[int, RankSummary], cross_rank: CrossRank) -> list[Turns]:
    """Return the hosts of CPU runs that take turns on too few cores, as their traces show."""
    on_cpu = {rank: own.host_runs for rank, own in alone.items() if own.host_runs}
    return hosts_in_turns(run, on_cpu, cross_rank.clocks)


def waiting_for_turns(alone: Mapping[int, RankSummary], turns: Sequence[Turns]) -> dict[int, RankSummary]:
    """Return the summaries in which hosts that take turns wait for a core where they paused while others had all."""
    waits = {rank: times for each in turns for rank, times in each.waits.items()}
    return {
        rank: own
        if rank not in waits or own.host_runs is None
        else msgspec.structs.replace(
            own, parts=msgspec.structs.replace(own.parts, waiting=in_turn(own.host_runs, waits[rank]))
        )
        for rank, own in alone.items()
    }


def _of_links(run: Run, found: Sequence[Finding], shared: Sequence[Finding]) -> list[Finding]:
    """Return the findings on links; not those from transfers of a CPU run whose hosts lack cores, which these need."""
    on_cpu = not any(timeline.has_device for timeline in run.ranks.values())
    return [each for each in found if each.known_from != "transfers" or not (on_cpu and lack_cores(shared))]


def _slow_operations(
    run: Run, alone: Mapping[int, RankSummary], step_ns: int | None, known: Sequence[Finding]
) -> list[Finding]:
    """Return the finding on operations that take longer in most steps; none where it is `known` that hosts lack cores
    or stand still, which says more of the same time."""
    if lack_cores(known) or any(each.id == "standing_still" for each in known):
        return []
    of_ranks = {rank: own.operations for rank, own in alone.items() if own.operations}
    return slow_operations(of_ranks, step_ns, same_inputs=all(map(same_inputs, run.ranks.values())))


def _stood_still(alone: Mapping[int, RankSummary]) -> dict[int, Activity]:
    """Return when hosts of a CPU run stood still while they seemed to compute, by rank, where that is known."""
    return {rank: own.stood_still for rank, own in alone.items() if own.stood_still is not None}


def _pauses(alone: Mapping[int, RankSummary]) -> dict[int, HostPauses]:
    """Return the pauses of hosts of a CPU run while they seemed to compute, by rank, where some are known."""
    return {
        rank: HostPauses(stood_still=own.stood_still, waited_for_core=own.parts.waiting.computing)
        for rank, own in alone.items()
        if own.parts.waiting is not None
    }


def _no_graph(run: Run) -> NoRemoval | None:
    """Return why no graph of all ranks says what the removal of one is worth; None where it may."""
    if not all(timeline.has_device for timeline in run.ranks.values()):
        return "no_device"
    return None if all(timeline.has_host_events for timeline in run.ranks.values()) else "no_host_events"


def _graph_of(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs, spans: int) -> "RunGraph | NoRemoval":
    reason = _no_graph(run)
    if reason is not None:
        return reason
    from overlapscope.analysis.graph.removal import MOST_SPANS, answering_graph  # noqa: PLC0415 - a recording without host events needs no graph

    if spans > MOST_SPANS:
        return "too_large"
    return answering_graph(run, cross_rank, graphs)


def _late(
    run: Run,
    cross_rank: CrossRank,
    window_ns: Mapping[int, int | None],
    graph: Callable[[], "RunGraph | NoRemoval"],
) -> "Removal | NoRemoval | None":
    """Return which ranks are late by the dependency graph, which is asked only where somebody may be."""
    reason = _no_graph(run)
    if reason is not None:
        return reason
    if len(run.ranks) < 2:
        return None
    split = not cross_rank.uneven and not cross_rank.pairs.pairs
    if split and not may_be_late(cross_rank.waits, window_ns):
        return None
    whole = graph()
    return whole if isinstance(whole, str) else late_ranks(run, whole)


def _with_pauses_capped(whole: "RunGraph | NoRemoval") -> tuple[int, int] | None:
    """Return the length of the recording, and what it would be with short pauses; None where the graph may not say."""
    if isinstance(whole, str):
        return None
    found = outcome(whole.graph, whole.window, capped_pauses(whole.graph, PAUSE_CAP_NS))
    return found.recorded_ns, found.kept_ns


def _each_rank(
    run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary], transfers: Mapping[int, Transfers]
) -> tuple[list[RankInfo], Mapping[int, Ints]]:
    """Return each rank's figures, and the exposed time of each of its collectives."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    parts = {rank: own.parts for rank, own in alone.items()}
    hosts = host_of_ranks(run)
    ranks: list[RankInfo] = []
    exposed: dict[int, Ints] = {}
    for rank, causes in each_causes(run, cross_rank, coverage, parts, transfers):
        ranks.append(_rank_info(rank, hosts.get(rank), run.ranks[rank].basis, alone[rank], causes))
        exposed[rank] = causes.exposed_ns
    return ranks, exposed


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
    held: Sequence[Straggler],
) -> Skew:  # fmt: skip
    residual = cross_rank.clocks.residual_ns
    aligned = cross_rank.clocks.offset_ns.keys()
    partly = {rank for each in cross_rank.splits if not each.block.whole for rank in each.block.ranks}
    return Skew(
        matched=cross_rank.matched,
        unmatched=cross_rank.matching.unmatched + cross_rank.pairs.unmatched,
        pairs=cross_rank.pairs.matched,
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
                times_last=each.times_last,
                idle_ns=idle_ns[rank],
            )
            for rank, each in cross_rank.waits.items()
        ],
        stragglers=list(held),
    )


def _linkage(alone: Mapping[int, RankSummary]) -> dict[int, tuple[int, int]]:
    """Return (device spans, device spans without a launch) by rank; CPU runs have neither."""
    return {rank: own.linkage for rank, own in alone.items() if own.linkage is not None}


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
