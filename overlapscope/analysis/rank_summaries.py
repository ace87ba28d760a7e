"""Summarize the ranks of a run: one after the other, or those of a large run directory in several processes."""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from multiprocessing import parent_process
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.checks.pipelines.stages import groups_by_rank
from overlapscope.analysis.common.one_process import ranks_of_one_process
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.pauses.whole_processes import of_whole_processes
from overlapscope.analysis.rank_summary import RankSummary, summarize_rank
from overlapscope.errors import HostEventsError
from overlapscope.ingest.parallel.worker_count import usable_cores
from overlapscope.timeline.lazy_host_spans import LazyHostSpans
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.lazy_rank import RankByFiles, StoredRank
from overlapscope.timeline.store.read_ahead import read_ahead

SPANS_WORTH_WORKERS: Final = 4_000_000
"""Fewer spans are summarized sooner than other processes have started."""
MAX_WORKERS: Final = 8
"""Each takes about 110 MB; with more, what only this process can do takes most of the time."""
RANKS_OF_A_TASK: Final = 8
"""So many travel together: they share their names."""


def summarize_ranks(
    run: Run, graphs: BuiltGraphs | None = None, *, workers: int | None = None
) -> dict[int, RankSummary]:
    """Summarize every rank; each process has only the spans of one rank in memory at a time. Pauses of hosts are those
    of whole processes, where these are several ranks.

    `graphs` keeps the graphs that are built of them for later questions. `workers` is the most processes to use; None:
    one per core where there are enough spans.
    """
    groups, graphs = groups_by_rank(run.groups), graphs or BuiltGraphs(run)
    together = ranks_of_one_process(run.ranks)
    shared = {rank for ranks in together for rank in ranks}
    count = min(workers or usable_cores(), MAX_WORKERS)
    done = _by_workers(run.ranks, groups, shared, count) if count > 1 and _are_worth_workers(run, graphs) else {}
    left = {rank: timeline for rank, timeline in run.ranks.items() if rank not in done}
    done |= {
        rank: summarize_rank(
            timeline, groups.get(rank, ()), graphs, alone=len(run.ranks) == 1, shares_process=rank in shared
        )
        for rank, timeline in read_ahead(left)
    }
    return _with_whole_processes({rank: done[rank] for rank in run.ranks}, together)


def _with_whole_processes(
    found: dict[int, RankSummary], together: Sequence[Sequence[int]]
) -> dict[int, RankSummary]:  # fmt: skip
    """Return the summaries with the pauses of whole processes; `together` are the ranks of each that is several."""
    pauses = {rank: found[rank].long_pauses for ranks in together for rank in ranks}
    known = {rank: each for rank, each in pauses.items() if each is not None}
    silences = {rank: own for rank in pauses if (own := found[rank].silences)}
    cut = of_whole_processes(known, together, silences)
    return found | {rank: replace(found[rank], long_pauses=each) for rank, each in cut.items()}


def _are_worth_workers(run: Run, graphs: BuiltGraphs) -> bool:
    """Return whether there are enough spans, in files, and no graph is kept that a worker would build in vain."""
    ranks = run.ranks.values()
    return (
        sum(each.num_spans for each in ranks) >= SPANS_WORTH_WORKERS
        and len(ranks) > RANKS_OF_A_TASK
        and all(isinstance(each, StoredRank) for each in ranks)
        and not (any(each.has_host_events for each in ranks) and graphs.keeps_ranks)
    )


def _by_workers(
    ranks: Mapping[int, RankTimeline], groups: Mapping[int, Sequence[Group]], shared: Set[int], count: int
) -> dict[int, RankSummary]:
    """Return the summaries that workers made: none where none can start or this is one, only some where one dies.

    `shared` are the ranks whose process is other ranks, too.
    """
    from overlapscope.ingest.parallel.process_pool import CANNOT_START, WorkerPool, can_start  # noqa: PLC0415 - few runs need it

    done: dict[int, RankSummary] = {}
    if not can_start() or parent_process() is not None:
        return done
    by_files = [RankByFiles.of(each) for each in ranks.values() if isinstance(each, StoredRank)]
    own_groups = [groups.get(rank, ()) for rank in ranks]
    with suppress(*CANNOT_START), WorkerPool(count) as pool:
        found = pool.map(_summary, by_files, own_groups, [rank in shared for rank in ranks], chunksize=RANKS_OF_A_TASK)
        for timeline, (summary, error) in zip(ranks.values(), found, strict=True):
            done[timeline.rank] = summary
            if error is not None and isinstance(timeline.host, LazyHostSpans):
                timeline.host.fail(error)
    return done


def _summary(
    rank: RankByFiles, groups: Sequence[Group], shares_process: bool
) -> tuple[RankSummary, HostEventsError | None]:
    """Return the summary of one of several ranks, and why its host events could not be read."""
    timeline = rank.at_hand()
    graphs = BuiltGraphs(Run(world_size=None, ranks={timeline.rank: timeline}))
    return summarize_rank(timeline, groups, graphs, alone=False, shares_process=shares_process), timeline.host_error
