"""Compute what the rank that came last to a call had done longer than one that waited for it, since they last met.

A longest loss shows what was waited for in its own time; what had made the late rank late may lie before that.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.exposure.core_waiting import NOT_KNOWN, CoreWaiting
from overlapscope.analysis.exposure.last_met import last_met
from overlapscope.analysis.exposure.peer_waits import OF_LATE_RANK, activities_of, divided
from overlapscope.analysis.graph.answers import LateBefore, LongestLoss
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import RankTimeline, Run


def with_late_rank(
    loss: LongestLoss | None,
    run: Run,
    clocks: Clocks,
    transfers: Mapping[int, Transfers],
    coverage: Mapping[int, Coverage],
    waiting: Mapping[int, CoreWaiting],
) -> LongestLoss | None:
    """Return a longest loss with what the rank for which it waited in a call had done longer, where that is known.

    Of the calls in its chain it is that to which another rank came latest; only of runs without a device.
    """
    if loss is None or run.ranks[loss.rank].has_device:
        return loss
    found = None
    for number in _calls_of(loss, run, transfers):
        at = np.flatnonzero(transfers[loss.rank].call == number)
        other = int(transfers[loss.rank].last[at[0]]) if at.size else NONE
        if other in (NONE, loss.rank) or other not in coverage:
            continue
        own, theirs = _came(run.ranks[loss.rank], at), _came(run.ranks[other], np.flatnonzero(
            transfers[other].call == number))  # fmt: skip
        later_ns = int((clocks.aligned_ns(other, theirs) - clocks.aligned_ns(loss.rank, own))[0])
        if later_ns > (found[0] if found else 0):
            found = later_ns, other, int(at[0]), {loss.rank: own, other: theirs}
    if found is None:
        return loss
    later_ns, other, row, came = found
    members = {group.name: np.array(group.ranks, np.int64) for group in run.groups if group.ranks}
    ranks, rows, others = run.ranks, np.array([row]), np.array([other])
    met = last_met(ranks[loss.rank], coverage[loss.rank], rows, came[loss.rank], others, members)
    since = {loss.rank: np.minimum(met, came[loss.rank])}
    since[other] = np.minimum(clocks.own_ns(other, clocks.aligned_ns(loss.rank, since[loss.rank])), came[other])
    accounted = np.array([{loss.rank, other} <= waiting.keys()])
    did = {
        rank: divided(
            came[rank] - since[rank],
            [
                each.within(since[rank], came[rank])
                for each in activities_of(ranks[rank], coverage[rank], waiting.get(rank, NOT_KNOWN))
            ],
            accounted,
        )
        for rank in (loss.rank, other)
    }
    longer = np.maximum(did[other] - did[loss.rank], 0)[:, 0]
    # What it did longer than the other, which waited meanwhile, may be more than it was late.
    longer = longer * min(later_ns / max(int(longer.sum()), 1), 1.0)
    by_cause = {cause: round(ns) for cause, ns in zip(OF_LATE_RANK, longer.tolist(), strict=True) if round(ns)}
    return replace(loss, late=LateBefore(rank=other, later_ns=later_ns, longer_ns=by_cause))


def _calls_of(loss: LongestLoss, run: Run, transfers: Mapping[int, Transfers]) -> list[int]:
    """Return the numbers of the matched calls in the chain of a loss."""
    found = []
    for each in loss.chain.chain:
        row = NONE if each.span is None else int(run.ranks[each.rank].spans.collective[each.span])
        if each.kind == "transfer" and row != NONE and transfers[each.rank].call[row] != NONE:
            found.append(int(transfers[each.rank].call[row]))
    return list(dict.fromkeys(found))


def _came(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return when a rank came to calls: when it made them, where that is known."""
    launch, start = timeline.collectives.launch_ns[rows], timeline.collectives.start_ns[rows]
    return np.where(launch == NONE, start, np.minimum(launch, start))
