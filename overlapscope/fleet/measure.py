"""Measure one run for a fleet: steps, exposed communication, stragglers, and the host of each rank."""

from collections.abc import Sequence

from overlapscope.analysis.checks.links.slow_link import slow_links, with_cores
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.compare.fleet import FleetRun, FleetStraggler
from overlapscope.analysis.cost.repeated_part import repeated_part
from overlapscope.analysis.cost.throughput import Throughput, throughput
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.job_step.headline import Headline, headline
from overlapscope.analysis.late_ranks import late_ranks_of, turns_on_cores
from overlapscope.analysis.per_rank.kernels import compared
from overlapscope.analysis.rank_figures import each_rank, rank_windows
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import steps_and_compute
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.stragglers import Straggler, beside_slow_links
from overlapscope.timeline.run import Run, began


def measure(run: Run, name: str, job: str) -> FleetRun:
    """Return the figures of a run of a fleet: those of `analyze`, without what a fleet does not show."""
    graphs = BuiltGraphs(run)
    alone = summarize_ranks(run, graphs)
    cross_rank = match_and_align(run, steps_and_compute(alone))
    wholes = {rank: own.figures[0] for rank, own in alone.items()}
    held, shared = late_ranks_of(
        run, cross_rank, alone, compared({rank: own.kernels for rank, own in alone.items()}),
        {rank: whole.window_ns for rank, whole in wholes.items()}, graphs, turns_on_cores(run, alone, cross_rank),
    )  # fmt: skip
    links = with_cores(run, slow_links(run, cross_rank.splits, cross_rank.pairs.pairs), shared)
    held = beside_slow_links(held, links)
    infos, _, _ = each_rank(run, cross_rank, alone, cross_rank.transfers(run))
    recorded = max((len(own.windows) for own in alone.values()), default=0)
    damaged = [rank for rank, own in alone.items() if own.no_causes_reason == "unreadable_host_events"]
    repeated = repeated_part(run, cross_rank.clocks, alone)
    figures = {info.rank: (info.whole, *info.steps) for info in infos}
    costs = throughput(run, alone, figures, repeated, cross_rank)
    head = headline(rank_windows(infos, alone), cross_rank, costs.cut_short)
    return figures_of(run, name, job, recorded, held, costs, head, damaged)


def measure_analyzed(run: Run, name: str, job: str, analysis: Analysis) -> FleetRun:
    """Return the same as `measure` from the run's stored analysis; the tables of `run` are not read."""
    assert analysis.throughput is not None  # stored by this version
    recorded = max((len(each.steps) for each in analysis.ranks), default=0)
    damaged = [each.rank for each in analysis.ranks if each.no_causes_reason == "unreadable_host_events"]
    return figures_of(
        run, name, job, recorded, analysis.skew.stragglers, analysis.throughput, analysis.headline, damaged
    )


def figures_of(
    run: Run,
    name: str,
    job: str,
    recorded: int,
    held: Sequence[Straggler],
    rates: Throughput,
    head: Headline,
    damaged: Sequence[int],
) -> FleetRun:
    """Return the figures of a run from its headline, rates and stragglers; `recorded` is its number of steps, and the
    host events of the ranks `damaged` cannot be read."""
    by_host = ranks_of_hosts(run)
    hosts = {rank: host for host, ranks in by_host.items() for rank in ranks}
    return FleetRun(
        name=name,
        job=job,
        started_ns=_started_ns(run),
        world_size=run.world_size,
        ranks=len(run.ranks),
        steps=head.steps,
        step_ns=head.step_ns if head.window == "step" else None,
        exposed_ns=head.exposed_comm_ns if head.window == "step" else None,
        exposed_fraction=rates.exposed_fraction,
        exposed_gpu_hours_a_day=rates.exposed_gpu_hours_a_day,
        idle_gpu_hours_a_day=rates.idle_gpu_hours_a_day,
        tokens_per_s=rates.tokens.per_second if rates.tokens else None,
        hosts=by_host,
        stragglers=[
            FleetStraggler(
                rank=each.rank, host=hosts.get(each.rank), held_by=each.held_by,
                step_ns=round(each.blame_ns / recorded) if recorded else None,
            )
            for each in held
        ],
        damaged_hosts=list(damaged),
    )  # fmt: skip


def _started_ns(run: Run) -> int | None:
    return began(int(each.recordings.start_ns.min()) for each in run.ranks.values() if each.recordings.start_ns.size)
