"""Compute what the rank that came last to a call had done longer than one that waited for it, since they last met.

A longest loss shows what was waited for in its own time; what had made the late rank late may lie before that.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.activities import OF_LATE_RANK, Did, activities_of, divided
from overlapscope.analysis.exposure.core_waiting import NOT_KNOWN, CoreWaiting
from overlapscope.analysis.exposure.last_met import last_met
from overlapscope.analysis.exposure.peer_waits import when_it_came
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
    latest = _latest(loss, run, clocks, transfers, coverage)
    if latest is None:
        return loss
    members = {group.name: np.array(group.ranks, np.int64) for group in run.groups if group.ranks}
    came, rows, others = latest.came, np.array([latest.row]), np.array([latest.rank])
    met = last_met(run.ranks[loss.rank], coverage[loss.rank], rows, came[loss.rank], others, members)
    since = {loss.rank: np.minimum(met, came[loss.rank])}
    on_its_clock = clocks.own_ns(latest.rank, clocks.aligned_ns(loss.rank, since[loss.rank]))
    since[latest.rank] = np.minimum(on_its_clock, came[latest.rank])
    accounted = np.array([came.keys() <= waiting.keys()])
    own, its = (
        divided(
            came[rank] - since[rank],
            Did.within(
                since[rank], came[rank], activities_of(run.ranks[rank], coverage[rank], waiting.get(rank, NOT_KNOWN))
            ),
            accounted,
        )
        for rank in (loss.rank, latest.rank)
    )
    longer = np.maximum(its - own, 0)[:, 0]
    # What it did longer than the other, which waited meanwhile, may be more than it was late.
    longer = longer * min(latest.later_ns / max(int(longer.sum()), 1), 1.0)
    by_cause = {cause: round(ns) for cause, ns in zip(OF_LATE_RANK, longer.tolist(), strict=True) if round(ns)}
    return replace(loss, late=LateBefore(rank=latest.rank, later_ns=latest.later_ns, longer_ns=by_cause))


class _Latest(msgspec.Struct, frozen=True, kw_only=True):
    """The call to which another rank came latest."""

    rank: int
    later_ns: int
    row: int
    """Of the call among those of the rank that waited."""
    came: Mapping[int, Ints]
    """When each of the two came to it, on its own clock: one value."""


def _latest(
    loss: LongestLoss, run: Run, clocks: Clocks, transfers: Mapping[int, Transfers], coverage: Mapping[int, Coverage]
) -> _Latest | None:
    """Return the call in the chain of a loss to which another rank came latest; None where none came later."""
    found = None
    for number in _calls_of(loss, run, transfers):
        at = np.flatnonzero(transfers[loss.rank].call == number)
        other = int(transfers[loss.rank].last[at[0]]) if at.size else NONE
        if other in (NONE, loss.rank) or other not in coverage:
            continue
        own = _came(run.ranks[loss.rank], at)
        theirs = _came(run.ranks[other], np.flatnonzero(transfers[other].call == number))
        later_ns = int((clocks.aligned_ns(other, theirs) - clocks.aligned_ns(loss.rank, own))[0])
        if later_ns > (found.later_ns if found else 0):
            found = _Latest(rank=other, later_ns=later_ns, row=int(at[0]), came={loss.rank: own, other: theirs})
    return found


def _calls_of(loss: LongestLoss, run: Run, transfers: Mapping[int, Transfers]) -> list[int]:
    """Return the numbers of the matched calls in the chain of a loss."""
    found = []
    for each in loss.chain.chain:
        row = NONE if each.span is None else int(run.ranks[each.rank].spans.collective[each.span])
        if each.kind == "transfer" and row != NONE and transfers[each.rank].call[row] != NONE:
            found.append(int(transfers[each.rank].call[row]))
    return list(dict.fromkeys(found))


def _came(timeline: RankTimeline, rows: Ints) -> Ints:
    calls = timeline.collectives
    return when_it_came(timeline, calls.launch_ns[rows], calls.start_ns[rows])
