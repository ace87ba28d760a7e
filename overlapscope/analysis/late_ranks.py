"""Which ranks are late for a reason of their own: not by the scheduler's choice, where hosts share cores."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NoRemoval
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.exposure.core_waiting import in_turn
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.scenarios import PAUSE_CAP_NS, capped_pauses, outcome
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.stragglers.core_turns import Turns
from overlapscope.analysis.stragglers.shared_cores import hosts_in_turns, pinned_hosts, shared_cores
from overlapscope.analysis.stragglers.stragglers import Compared, Straggler, late_ranks, may_be_late, stragglers
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.analysis.graph.removal import Removal, RunGraph

OF_HOST: Final = ("host", "data_loading", "copies", "unknown")
"""Causes of lateness that hosts which share cores have, too: they copy from pageable memory themselves."""


WAITS_TOO: Final = 0.25
"""A rank waits in turn with the others if it waits for this share of what one of them waits. A choice."""
OF_WORK: Final = ("more_work", "longer_compute")
"""Causes of lateness that a rank's role has, too."""


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
        operation_ns={rank: own.operation_ns for rank, own in alone.items()},
        hosts={rank: own.host for rank, own in alone.items() if own.host},
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


def without_taking_turns(held: Sequence[Straggler], waits_ns: Mapping[int, int], run: Run) -> list[Straggler]:
    """Return the stragglers but those of CPU runs that wait for others, too: for WAITS_TOO of what one of these waits.

    `waits_ns` is how long each rank waited for late ones. Ranks with different roles, such as one that trains and one
    that acts, wait for each other in turn: nobody is late. What is recorded of a rank itself, such as garbage that it
    collects, is its own.
    """

    def takes_turns(each: Straggler) -> bool:
        others = max((ns for rank, ns in waits_ns.items() if rank != each.rank), default=0)
        return each.held_by in OF_WORK and waits_ns.get(each.rank, 0) >= WAITS_TOO * others > 0

    return [each for each in held if run.ranks[each.rank].has_device or not takes_turns(each)]


def turns_on_cores(run: Run, alone: Mapping[int, RankSummary], cross_rank: CrossRank) -> list[Turns]:
    """Return the hosts of CPU runs that take turns on too few cores, as their traces show."""
    on_cpu = {rank: own.host_runs for rank, own in alone.items() if own.host_runs}
    return hosts_in_turns(run, on_cpu, cross_rank.clocks)


def waiting_for_turns(alone: Mapping[int, RankSummary], turns: Sequence[Turns]) -> dict[int, RankSummary]:
    """Return the summaries in which hosts that take turns wait for a core where they paused while others had all, and
    wherever else they stood still."""
    waits = {rank: times for each in turns for rank, times in each.waits.items()}
    return {
        rank: own
        if rank not in waits or own.host_runs is None
        else replace(own, parts=replace(own.parts, waiting=in_turn(own.host_runs, waits[rank])))
        for rank, own in alone.items()
    }


def _no_graph(run: Run) -> NoRemoval | None:
    """Return why no graph of all ranks says what the removal of one is worth; None where it may."""
    if not all(timeline.has_device for timeline in run.ranks.values()):
        return "no_device"
    if any(timeline.ends_early for timeline in run.ranks.values()):
        return "cut_file"
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
