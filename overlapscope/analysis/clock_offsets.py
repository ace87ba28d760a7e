"""Clock offsets between ranks, from the ends of matched collectives, which members share within tens of microseconds.

Offsets are what a rank's clock shows more than the middle one of those it is connected with: the one nearest to all
others (of two, the lower rank's), so that one rank's wrong clock shows as its own. They are joint over the graph of
groups, and so are drifts: guessed along the groups with the most calls, then each is what the rank's ends lie behind
the centre of their calls, by medians, repeated until it rests.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.analysis.call_ends import CallEnds, RankSet
from overlapscope.analysis.matched_calls import Matched
from overlapscope.timeline.columns import Ints

ROUNDS = 50
RESTS_WITHIN_NS = 1.0
DRIFT_FEWEST = 9
"""Drift is told only from this many calls ..."""
DRIFT_NOISES = 4.0
"""... and when it moves the clock by this many times the scatter of the ends over the recording ..."""
DRIFT_CALLS = 30
"""... and by more, the fewer calls than this there are."""
DRIFT_ROUNDS = 5
Reals = npt.NDArray[np.float64]


def tied(calls: Iterable[Sequence[int]], hosts: Mapping[int, str]) -> dict[int, int]:
    """Return, for each rank of the calls (sets of ranks) or of a known host, the lowest of those that it is tied to."""
    of_host: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        of_host.setdefault(host, []).append(rank)
    return {rank: members[0] for members in connected([*calls, *of_host.values()]) for rank in members}


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Offset and drift of each rank that shares calls with another; `reference_ns` is where drift is nought."""

    offset_ns: Mapping[int, float] = {}
    drift: Mapping[int, float] = {}
    """Nanoseconds gained a nanosecond, against the middle one; empty where no clock drifts."""
    reference_ns: int = 0
    residual_ns: float | None = None
    """Median distance of an end to the centre of its call, on aligned clocks."""
    tied: Mapping[int, int] = {}
    """The lowest rank of those whose clocks are tied to a rank's, by calls or by a host."""

    def comparable(self, ranks: Sequence[int]) -> bool:
        """Return whether the ranks' times can be compared: whether something ties their clocks."""
        return len({self.tied.get(rank, rank) for rank in ranks}) == 1

    def aligned(self, rank: int, time_ns: Ints) -> Reals:
        """Return times of a rank on the common clock, as distances from `reference_ns`."""
        moved = (time_ns - self.reference_ns).astype(np.float64)
        drifted: Reals = moved - self.offset_ns.get(rank, 0.0) - self.drift.get(rank, 0.0) * moved
        return drifted

    def rows(self, ranks: Sequence[int], times_ns: Ints) -> Reals:
        """Return times of several ranks, a row each, likewise."""
        offset, drift = (
            np.array([values.get(rank, 0.0) for rank in ranks])[:, None] for values in (self.offset_ns, self.drift)
        )
        moved = (times_ns - self.reference_ns).astype(np.float64)
        drifted: Reals = moved - offset - drift * moved
        return drifted

    def ends(self, block: Matched) -> Reals:
        """Return the ends of a block's calls on the common clock."""
        return self.rows(block.ranks, block.end_ns)

    def starts(self, block: Matched) -> Reals:
        """Return the starts likewise."""
        return self.rows(block.ranks, block.start_ns)

    def spread_ns(self, block: Matched) -> Ints:
        """Return how far apart the ends of each call lie."""
        ends = self.ends(block)
        apart: Ints = np.rint(ends.max(axis=0) - ends.min(axis=0)).astype(np.int64)
        return apart


def clock_offsets(blocks: Sequence[Matched], hosts: Mapping[int, str] | None = None) -> Clocks:
    """Return the clocks of all ranks that share a matched call with another.

    `hosts` names the host of ranks where it is known: ranks of one host share its clock.
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
    offset = _resting(calls, offset, drift)
    for _ in range(DRIFT_ROUNDS):
        more = calls.middle_of_clock(_drifts(calls, offset, drift))
        if not more.any():
            break
        drift = drift + more
        offset = _resting(calls, offset, drift)
    if drift.any():
        shown = from_the_middle(dict(zip(calls.ranks, drift.tolist(), strict=True)), members)
        drift = np.array([shown[rank] for rank in calls.ranks])
        offset = _resting(calls, offset, drift)
    offsets, drifts = (dict(zip(calls.ranks, each.tolist(), strict=True)) for each in (offset, drift))
    return Clocks(
        offset_ns=_with_silent(from_the_middle(offsets, members), hosts),
        drift=_with_silent(drifts, hosts) if drift.any() else {},
        reference_ns=reference,
        residual_ns=float(np.median(np.abs(calls.behind(offset, drift)))),
        tied=members,
    )


def from_the_middle(values: Mapping[int, float], lowest: Mapping[int, int]) -> dict[int, float]:
    """Count the values of tied ranks from the middle one, the nearest to all others (of two, the lower rank's).

    `lowest` holds the lowest rank of each rank's set.
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


def _sets(blocks: Sequence[Matched], reference: int) -> list[RankSet]:
    """Put the calls of the same ranks together, those with the most calls first."""
    ends: dict[tuple[int, ...], list[Reals]] = {}
    for block in blocks:
        ends.setdefault(block.ranks, []).append((block.end_ns - reference).astype(np.float64))
    found = []
    for ranks, tables in ends.items():
        table = np.concatenate(tables, axis=1)
        found.append(RankSet(ranks=ranks, ends=table[:, np.argsort(table[0], kind="stable")]))
    return sorted(found, key=lambda each: -each.ends.shape[1])


def _with_silent(values: Mapping[int, float], hosts: Mapping[int, str]) -> dict[int, float]:
    """Return ranks of which no call was matched what their host has."""
    of_host = {hosts[rank]: value for rank, value in values.items() if rank in hosts}
    return {**{rank: of_host[host] for rank, host in hosts.items() if host in of_host}, **values}


def _first_guess(sets: Sequence[RankSet], calls: CallEnds) -> tuple[Reals, Reals]:
    """Walk the graph of groups from each component's lowest rank, by those of the most calls; from rank to rank.

    Ranks that share a clock are reached at once. Gives offsets and drifts. A walk tells apart which of a pair's two
    clocks drifts, where medians of both would meet in the middle.
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


def _resting(calls: CallEnds, offset: Reals, drift: Reals) -> Reals:
    """Move the offsets until the ends of each rank lie about the centres of their calls."""
    for _ in range(ROUNDS):
        moves = calls.middles(calls.behind(offset, drift))
        offset = offset + moves
        if np.abs(moves).max() < RESTS_WITHIN_NS:
            break
    return offset


def _drifts(calls: CallEnds, offset: Reals, drift: Reals) -> Reals:
    """Return the drift that is left of each rank whose ends wander off steadily; 0 for the others."""
    times, distances = calls.times, calls.behind(offset, drift)
    found = []
    for own in calls.of_rank:
        order = own[np.argsort(times[own], kind="stable")]
        found.append(_slope(times[order], distances[order]))
    return np.array(found)


def _slope(times: Reals, distances: Reals) -> float:
    """Return the slope of distances over times, which are in order; 0 where it does not stand out from the scatter.

    It is the median over pairs of calls of the first and last third (a Theil-Sen estimate of fewer pairs), so that
    single late ends do not turn it.
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


def joined(clocks: Clocks, uneven: Sequence[Matched], hosts: Mapping[int, str]) -> Clocks:
    """Return the clocks with the sets of ranks joined that `uneven` exchanges tie; the others stay as they are."""
    if uneven and not clocks.offset_ns:
        return clock_offsets(uneven, hosts)
    loose = [block for block in uneven if not clocks.comparable(block.ranks)]
    if not loose:
        return clocks
    begin = clocks.reference_ns
    aligned = [block.with_values(end_ns=begin + np.rint(clocks.ends(block)).astype(np.int64)) for block in loose]
    ranks = sorted({*clocks.tied, *(rank for block in loose for rank in block.ranks)})
    of_set = {rank: str(clocks.tied.get(rank, rank)) for rank in ranks}
    between = clock_offsets(aligned, of_set)
    # One after the other: what `clocks` makes of a time, then what `between` makes of that.
    earlier = begin - between.reference_ns
    offsets, drift = {}, {}
    for rank in ranks:
        own, gains = clocks.offset_ns.get(rank, 0.0), between.drift.get(rank, 0.0)
        offsets[rank] = own * (1 - gains) + earlier * gains + between.offset_ns.get(rank, 0.0)
        drift[rank] = 1 - (1 - clocks.drift.get(rank, 0.0)) * (1 - gains)
    members = tied((block.ranks for block in loose), of_set)
    return replace(
        clocks,
        offset_ns=from_the_middle(offsets, members),
        drift=drift if any(drift.values()) else {},
        tied=members,
    )


def connected(sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the ranks that sets of them tie together, directly or over others."""
    ties: dict[int, set[int]] = {}
    for ranks in dict.fromkeys(tuple(each) for each in sets):
        joined: set[int] = set(ranks).union(*(ties[rank] for rank in ranks if rank in ties))
        ties |= dict.fromkeys(joined, joined)
    return [sorted(members) for members in {id(each): each for each in ties.values()}.values()]
