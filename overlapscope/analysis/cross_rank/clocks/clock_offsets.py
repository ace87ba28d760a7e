"""Estimate clock offsets between ranks from the ends of matched collectives, which agree within tens of microseconds.

An offset is how far a rank's clock is ahead of the middle clock of its connected ranks. The middle clock is the one
nearest to all others (of two, the lower rank's), so that one rank's wrong clock shows as its own. Offsets and drifts
are estimated jointly over the graph of groups: a first guess follows the groups with the most calls; then each rank is
moved by the median distance of its ends to the median ends of their calls, until the moves are below 1 ns.

Clocks that no chain of calls and shared hosts connects cannot be compared. Members of an uneven exchange end at
different times, since they move different amounts of data: their ends are less exact than those of even calls. So they
only connect sets of ranks that nothing else connects, and do not change the offsets inside a set.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks, connected
from overlapscope.analysis.cross_rank.clocks.call_ends import CallEnds, RankSet
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.timeline.columns import Floats

ROUNDS = 50
RESTS_WITHIN_NS = 1.0
DRIFT_FEWEST = 9
"""Drift is estimated only from this many calls ..."""
DRIFT_NOISES = 4.0
"""... and only when over the recording it exceeds this many times the scatter of the ends ..."""
DRIFT_CALLS = 30
"""... with fewer calls than this, by proportionally more."""
DRIFT_ROUNDS = 5


def tied(calls: Iterable[Sequence[int]], hosts: Mapping[int, str]) -> dict[int, int]:
    """Return for each rank the lowest rank that it is connected with, by calls (sets of ranks) or a shared host."""
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(host, []).append(rank)
    return {rank: members[0] for members in connected([*calls, *of_host.values()]) for rank in members}


def clock_offsets(blocks: Sequence[MatchedCalls], hosts: Mapping[int, str] | None = None) -> Clocks:
    """Return the clocks of all ranks that share a matched call with another rank.

    `hosts` holds the host of each rank where it is known: ranks of one host share its clock.
    """
    hosts = hosts or {}
    members = tied((block.ranks for block in blocks), hosts)
    if not blocks:
        return Clocks(tied=members)
    reference = int(min(block.end_ns.min() for block in blocks))
    sets = _sets(blocks, reference)
    calls = CallEnds.of(sets, hosts)
    offset, drift = _first_guess(sets, calls)
    del sets  # `calls` has the same times
    offset = _converge_offsets(calls, offset, drift)
    for _ in range(DRIFT_ROUNDS):
        more = calls.middle_of_clock(_drifts(calls, offset, drift))
        if not more.any():
            break
        drift = drift + more
        offset = _converge_offsets(calls, offset, drift)
    if drift.any():
        shown = relative_to_middle(dict(zip(calls.ranks, drift.tolist(), strict=True)), members)
        drift = np.array([shown[rank] for rank in calls.ranks])
        offset = _converge_offsets(calls, offset, drift)
    offsets, drifts = (dict(zip(calls.ranks, each.tolist(), strict=True)) for each in (offset, drift))
    return Clocks(
        offset_ns=_with_unmatched_ranks(relative_to_middle(offsets, members), hosts),
        drift=_with_unmatched_ranks(drifts, hosts) if drift.any() else {},
        reference_ns=reference,
        residual_ns=float(np.median(np.abs(calls.behind(offset, drift)))),
        tied=members,
    )


def relative_to_middle(values: Mapping[int, float], lowest: Mapping[int, int]) -> dict[int, float]:
    """Return the values less the middle value of their connected ranks (of two middle values, the lower rank's).

    `lowest` holds the lowest rank of each rank's connected set.
    """
    sets: dict[int, list[int]] = {}
    for rank in sorted(values):
        sets.setdefault(lowest[rank], []).append(rank)
    shown = {}
    for ranks in sets.values():
        theirs = np.array([values[rank] for rank in ranks])
        order = np.argsort(theirs, kind="stable")
        middle = theirs[min(order[(theirs.size - 1) // 2], order[theirs.size // 2])]
        shown.update({rank: float(value - middle) for rank, value in zip(ranks, theirs, strict=True)})
    return dict(sorted(shown.items()))


def _sets(blocks: Sequence[MatchedCalls], reference: int) -> list[RankSet]:
    """Join the calls of the same ranks; the sets with the most calls come first."""
    ends: dict[tuple[int, ...], list[Floats]] = {}
    for block in blocks:
        ends.setdefault(block.ranks, []).append((block.end_ns - reference).astype(np.float64))
    found = []
    for ranks, tables in ends.items():
        table = np.concatenate(tables, axis=1)
        found.append(RankSet(ranks=ranks, ends=table[:, np.argsort(table[0], kind="stable")]))
    return sorted(found, key=lambda each: -each.ends.shape[1])


def _with_unmatched_ranks(values: Mapping[int, float], hosts: Mapping[int, str]) -> dict[int, float]:
    """Add the ranks without a matched call whose host has a value, with that value."""
    of_host = {hosts[rank]: value for rank, value in values.items() if rank in hosts}
    return {**{rank: of_host[host] for rank, host in hosts.items() if host in of_host}, **values}


def _first_guess(sets: Sequence[RankSet], calls: CallEnds) -> tuple[Floats, Floats]:
    """Return first offsets and drifts: walk the graph of groups from the lowest rank of each connected component.

    Groups with the most calls come first; ranks that share a clock are reached together. A walk finds which clock of a
    pair drifts, where medians would attribute half of the drift to each.
    """
    of_clock: dict[int, list[int]] = {}
    for rank, clock in zip(calls.ranks, calls.clock.tolist(), strict=True):
        of_clock.setdefault(clock, []).append(rank)
    sharing = {rank: of_clock[clock] for rank, clock in zip(calls.ranks, calls.clock.tolist(), strict=True)}
    beside: dict[int, list[int]] = {}
    for at, each in enumerate(sets):
        for rank in each.ranks:
            beside.setdefault(rank, []).append(at)
    offsets: dict[int, float] = {}
    drift: dict[int, float] = {}
    queue: list[tuple[int, int]] = []

    def reach(rank: int, offset: float, slope: float) -> None:
        for each in sharing[rank]:
            offsets[each], drift[each] = offset, slope
            for at in beside[each]:
                heappush(queue, (at, each))

    used: set[int] = set()
    for start in sorted(beside):
        if start not in offsets:
            reach(start, 0.0, 0.0)
        while queue:
            at, rank = heappop(queue)
            if at in used:
                continue
            used.add(at)
            own = sets[at].ends[sets[at].ranks.index(rank)]
            for other, ends in zip(sets[at].ranks, sets[at].ends, strict=True):
                if other not in offsets:
                    slope = _slope(own, ends - own)
                    apart = float(np.median(ends - own - slope * own))
                    reach(other, offsets[rank] + apart, drift[rank] + slope)
    return np.array([offsets[rank] for rank in calls.ranks]), np.array([drift[rank] for rank in calls.ranks])


def _converge_offsets(calls: CallEnds, offset: Floats, drift: Floats) -> Floats:
    """Move the offsets until the ends of each rank are at the median ends of their calls."""
    for _ in range(ROUNDS):
        moves = calls.middles(calls.behind(offset, drift))
        offset = offset + moves
        if np.abs(moves).max() < RESTS_WITHIN_NS:
            break
    return offset


def _drifts(calls: CallEnds, offset: Floats, drift: Floats) -> Floats:
    """Return the remaining drift of each rank whose ends move away steadily; 0 for the others."""
    times, distances = calls.times, calls.behind(offset, drift)
    found = []
    for own in calls.of_rank:
        order = own[np.argsort(times[own], kind="stable")]
        found.append(_slope(times[order], distances[order]))
    return np.array(found)


def _slope(times: Floats, distances: Floats) -> float:
    """Return the slope of distances over times (ascending); 0 where it is not significant against the scatter.

    It is the median over pairs of calls of the first and last third (a Theil-Sen estimate with fewer pairs), so that
    single late ends do not change it.
    """
    calls = times.size
    if calls < DRIFT_FEWEST:
        return 0.0
    third = calls // 3
    apart = times[-third:] - times[:third]
    slope = float(np.median((distances[-third:] - distances[:third]) / np.maximum(apart, 1.0)))
    rest = distances - slope * times
    scatter = float(np.median(np.abs(rest - np.median(rest))))
    noises = DRIFT_NOISES * max(1.0, DRIFT_CALLS / calls)
    return slope if abs(slope) * float(times[-1] - times[0]) > noises * max(scatter, 1.0) else 0.0


def join_by_uneven(clocks: Clocks, uneven: Sequence[MatchedCalls], hosts: Mapping[int, str]) -> Clocks:
    """Return the clocks with those sets of ranks joined that only `uneven` exchanges connect; others stay unchanged."""
    if uneven and not clocks.offset_ns:
        return clock_offsets(uneven, hosts)
    loose = [block for block in uneven if not clocks.comparable(block.ranks)]
    if not loose:
        return clocks
    begin = clocks.reference_ns
    aligned = [replace(block, end_ns=begin + np.rint(clocks.ends(block)).astype(np.int64)) for block in loose]
    ranks = sorted({*clocks.tied, *(rank for block in loose for rank in block.ranks)})
    of_set = {rank: str(clocks.tied.get(rank, rank)) for rank in ranks}
    between = clock_offsets(aligned, of_set)
    # Combine two steps: a time is first aligned by `clocks`, the result then by `between`.
    earlier = begin - between.reference_ns
    offsets, drift = {}, {}
    for rank in ranks:
        own, gains = clocks.offset_ns.get(rank, 0.0), between.drift.get(rank, 0.0)
        offsets[rank] = own * (1 - gains) + earlier * gains + between.offset_ns.get(rank, 0.0)
        drift[rank] = 1 - (1 - clocks.drift.get(rank, 0.0)) * (1 - gains)
    members = tied((block.ranks for block in loose), of_set)
    return replace(
        clocks,
        offset_ns=relative_to_middle(offsets, members),
        drift=drift if any(drift.values()) else {},
        tied=members,
    )
