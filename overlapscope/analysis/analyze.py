"""Compute the analysis of a run (`overlapscope.analysis/1`): every figure that other tools rely on, as one value."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from overlapscope.analysis.all_findings import Asked, findings_of
from overlapscope.analysis.checks.links.slow_link import slow_links, with_cores
from overlapscope.analysis.checks.steps.outlier_steps import long_steps
from overlapscope.analysis.common.cause_table import EVENTS_MISSING, NO_CAUSES
from overlapscope.analysis.common.findings import Listed
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.cost.repeated_part import repeated_part
from overlapscope.analysis.cost.throughput import throughput
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers, match_and_align
from overlapscope.analysis.cross_rank.call_index import CallIndex
from overlapscope.analysis.dry_step import dry_step
from overlapscope.analysis.exposure.collectives import collective_rows
from overlapscope.analysis.exposure.exposed import exposed_by
from overlapscope.analysis.exposure.late_before import with_late_rank
from overlapscope.analysis.graph.answers import CriticalPath, HostPauses
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.own_causes import critical_paths
from overlapscope.analysis.job_step.headline import headline, quiet_steps, unusual_in_calls
from overlapscope.analysis.late_ranks import late_ranks_of, turns_on_cores, waiting_for_turns, without_taking_turns
from overlapscope.analysis.mean_step import with_mean_step
from overlapscope.analysis.per_rank.kernels import compared
from overlapscope.analysis.rank_figures import each_rank, rank_windows
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import RankSummary, steps_and_compute
from overlapscope.analysis.result import (
    Analysis,
    RankInfo,
    Skew,
    SourceInfo,
    complete_figures,
    waits_for_late_ranks,
)
from overlapscope.analysis.run_info import run_info
from overlapscope.analysis.skew import skew_of
from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.analysis.stragglers.core_turns import Turns
from overlapscope.analysis.stragglers.lateness import attribute_blame, late_arrivals
from overlapscope.analysis.stragglers.stragglers import Straggler, beside_slow_links
from overlapscope.timeline.columns import FUSED, UNCLASSIFIED
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.intervals import BusyTime, union
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
    cross_rank = cross_rank or match_and_align(run, steps_and_compute(alone))
    turns = turns_on_cores(run, alone, cross_rank)
    return _analysis(run, cross_rank, bandwidth, waiting_for_turns(alone, turns), graphs, turns)


def _analysis(
    run: Run, cross_rank: CrossRank, bandwidth: Facts | None, alone: Mapping[int, RankSummary], graphs: BuiltGraphs,
    turns: Sequence[Turns],
) -> Analysis:  # fmt: skip
    """Return the same; `turns` are those that hosts take on cores, and `alone` knows when ranks wait for theirs."""
    cross_rank = _of_sampled(cross_rank, alone)
    windows = {rank: own.windows for rank, own in alone.items()}
    transfers = cross_rank.transfers(run)
    ranks, exposed_ns, longer = each_rank(run, cross_rank, alone, transfers)
    window_ns = {info.rank: info.whole.window_ns for info in ranks}
    work = compared({rank: own.kernels for rank, own in alone.items()})
    held, shared = late_ranks_of(run, cross_rank, alone, work, window_ns, graphs, turns)
    late, held = held, without_taking_turns(held, waits_for_late_ranks(ranks), run)
    in_turn = sorted({each.rank for each in late} - {each.rank for each in held})
    links = with_cores(run, slow_links(run, cross_rank.splits, cross_rank.pairs.pairs), shared)
    unclassified, fused = _listed(alone, UNCLASSIFIED), _listed(alone, FUSED)
    collectives = collective_rows(run.ranks, windows, transfers, exposed_ns, CallIndex.of(run, cross_rank.splits).call)
    of_windows = rank_windows(ranks, alone)
    repeated = repeated_part(run, cross_rank.clocks, alone)
    figures = {info.rank: (info.whole, *info.steps) for info in ranks}
    costs = throughput(run, alone, figures, repeated, cross_rank)
    head = headline(of_windows, cross_rank, costs.cut_short)
    findings = findings_of(
        Asked(
            run=run, alone=alone, cross_rank=cross_rank, ranks=ranks, work=work, windows=of_windows, head=head,
            collectives=collectives, longer=longer, links=links, shared=shared, held=held, unclassified=unclassified,
            fused=fused, bandwidth=bandwidth,
        )
    )  # fmt: skip
    odd = frozenset(each.step for each in long_steps(complete_figures(ranks)))
    # Of steps of two kinds those are typical that communicate: the others show nothing of what is lost.
    odd = odd.union(quiet_steps(head), unusual_in_calls(head), costs.cut_short)
    path = critical_paths(run, windows, cross_rank, graphs, odd, _pauses(run, alone))
    return with_mean_step(Analysis(
        sources=list(map(_source_info, (*run.sources, *run.unreadable_hosts))),
        run=run_info(run),
        ranks=ranks,
        unclassified=unclassified,
        fused=fused,
        collectives=collectives,
        exposed_by=exposed_by(run.ranks, windows, exposed_ns),
        skew=_skew(run, cross_rank, alone, ranks, beside_slow_links(held, links), in_turn),
        findings=findings,
        recommendations=[],
        told=rows_of_sources(run.facts),
        critical_path=_with_late_rank(path, run, cross_rank, alone, transfers),
        throughput=costs,
        headline=head,
        dry_step=dry_step(run),
    ))  # fmt: skip


def _of_sampled(cross_rank: CrossRank, alone: Mapping[int, RankSummary]) -> CrossRank:
    """Return the result with the reason why calls are not matched, where events of all ranks are missing."""
    reasons = {own.no_causes_reason for own in alone.values()}
    if not cross_rank.matching.reasons or not reasons or not reasons.issubset(EVENTS_MISSING):
        return cross_rank
    why = tuple(NO_CAUSES[each] for each in EVENTS_MISSING if each in reasons)
    return replace(cross_rank, matching=replace(cross_rank.matching, reasons=why))


def _skew(
    run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary], ranks: Sequence[RankInfo],
    held: list[Straggler], in_turn: list[int],
) -> Skew:  # fmt: skip
    """Return what is known of lateness: `held` are the late ranks, `in_turn` those that only take turns on cores."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    idle_ns = {info.rank: info.whole.idle_ns for info in ranks}
    blame = attribute_blame(late_arrivals(run, cross_rank.splits, coverage))
    return skew_of(run, cross_rank, ranks_of_hosts(run), idle_ns, held, in_turn, blame)


def _with_late_rank(
    path: CriticalPath, run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary],
    transfers: Mapping[int, Transfers],
) -> CriticalPath:  # fmt: skip
    """Return the path with what made the rank late for which its longest loss waited."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    waiting = {rank: own.parts.waiting for rank, own in alone.items() if own.parts.waiting is not None}
    loss = with_late_rank(path.longest_loss, run, cross_rank.clocks, transfers, coverage, waiting)
    return replace(path, longest_loss=loss)


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
