"""Measure one run for a fleet: steps, exposed communication, stragglers, and the host of each rank."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Final

from overlapscope.analysis.across_ranks import match_and_align
from overlapscope.analysis.breakdown import Breakdown
from overlapscope.analysis.cost.throughput import Throughput, throughput
from overlapscope.analysis.fleet import FleetRun, FleetStraggler
from overlapscope.analysis.kernels import compared
from overlapscope.analysis.rank_summary import summarize_ranks
from overlapscope.analysis.result import Analysis, Straggler
from overlapscope.analysis.slow_link import slow_links
from overlapscope.analysis.steps import complete_steps
from overlapscope.analysis.stragglers import beside_slow_links, stragglers
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run

EARLIEST_NS: Final = 946_684_800 * 10**9
"""The year 2000: a clock that shows less counts from when its machine started."""
NO_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain"})
"""Host names that tell no hosts apart."""
StepFigures = Mapping[int, Sequence[tuple[int, bool, Breakdown]]]
"""By rank, its steps in order of time: number, whether it is complete, breakdown."""


def measure(run: Run, name: str, job: str) -> FleetRun:
    """Return the figures of a run of a fleet: those of `analyze`, without what a fleet does not show."""
    alone = summarize_ranks(run)
    cross_rank = match_and_align(run)
    coverage = {rank: own.coverage for rank, own in alone.items()}
    wholes = {rank: own.figures[0] for rank, own in alone.items()}
    held = stragglers(
        run, (*cross_rank.splits, *cross_rank.uneven), coverage,
        compared({rank: own.kernels for rank, own in alone.items()}),
        {rank: whole.window_ns for rank, whole in wholes.items()},
        {rank: own.not_launched for rank, own in alone.items()},
    )  # fmt: skip
    held = beside_slow_links(held, slow_links(run, cross_rank.splits, cross_rank.pairs.pairs))
    steps = {
        rank: [(at.step, at.complete, its) for at, its in zip(own.windows, own.figures[1:], strict=True)]
        for rank, own in alone.items()
    }
    return figures_of(run, name, job, wholes, steps, held, throughput(run, alone))


def measure_analyzed(run: Run, name: str, job: str, analysis: Analysis) -> FleetRun:
    """Return the same as `measure` from the run's stored analysis; the tables of `run` are not read."""
    assert analysis.throughput is not None  # stored by this version
    wholes = {each.rank: each.whole for each in analysis.ranks}
    steps = {each.rank: [(at.step, at.complete, at) for at in each.steps] for each in analysis.ranks}
    return figures_of(run, name, job, wholes, steps, analysis.skew.stragglers, analysis.throughput)


def figures_of(
    run: Run,
    name: str,
    job: str,
    wholes: Mapping[int, Breakdown],
    steps: StepFigures,
    held: Sequence[Straggler],
    rates: Throughput,
) -> FleetRun:
    """Return the figures of a run from the breakdowns of its ranks (whole recordings, steps) and its stragglers."""
    wholes = {rank: whole for rank, whole in wholes.items() if whole.window_ns}
    timed = {rank: [(number, complete and its.window_ns is not None, its) for number, complete, its in steps[rank]]
             for rank in wholes}  # fmt: skip
    columns = [list(each.values()) for each in complete_steps(timed)]
    communicates = any(each.comm_ns for column in columns for each in column)
    by_host = ranks_of_hosts(run)
    hosts = {rank: host for host, ranks in by_host.items() for rank in ranks}
    recorded = max((len(each) for each in steps.values()), default=0)
    return FleetRun(
        name=name,
        job=job,
        started_ns=_started_ns(run),
        world_size=run.world_size,
        ranks=len(run.ranks),
        steps=len(columns),
        step_ns=_middle(max(each.window_ns or 0 for each in column) for column in columns),
        exposed_ns=_middle(fmean(each.exposed_comm_ns or 0 for each in column) for column in columns)
        if communicates
        else None,
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
    )  # fmt: skip


def ranks_of_hosts(run: Run) -> dict[str, list[int]]:
    """Return the recorded ranks of each host, by name; ranks whose host no source states are left out.

    Capture records the host, torch profiler traces may name it, and NCCL's logs do.
    """
    found: dict[int, str] = {}
    members, names = run.facts.members, run.facts.names
    for rank, code in zip(members.rank.tolist(), members.host.tolist(), strict=True):
        if rank != NONE and code >= 0:
            found[rank] = names[code]
    for rank, timeline in run.ranks.items():
        settings = timeline.recorded.get("settings")
        host = settings.get("host") if isinstance(settings, dict) else timeline.recorded.get("host")
        if isinstance(host, str):
            found[rank] = host
    hosts: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(run.ranks.keys() & found.keys()):
        if found[rank] not in NO_NAMES:
            hosts[found[rank]].append(rank)
    return dict(sorted(hosts.items()))


def _started_ns(run: Run) -> int | None:
    starts = [int(each.recordings.start_ns.min()) for each in run.ranks.values() if each.recordings.start_ns.size]
    return min(starts) if starts and min(starts) >= EARLIEST_NS else None


def _middle(values: Iterable[float]) -> int | None:
    known = list(values)
    return round(median(known)) if known else None
