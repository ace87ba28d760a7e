"""Compute which rank was late to each call, by how much, and how much of that is the fault of another rank.

A rank that arrives later than all other members makes them wait: its blame is the time by which it is later than the
second-latest (its lead). Since the previous call of these members it computed, waited in calls of other groups, or was
idle. Where it waited there longer than its peers, that blame is passed on to the rank that arrived last there.

Devices compute beside calls that wait: a lead lasts from call to call until those that it delays stop for one, and
counts once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.matched_calls import join_columns, positions_by_ranks
from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS, Split
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.stragglers.host_cause import SharedInterval
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, union
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

AT_ONCE_NS: Final = 10_000
"""A call that begins so soon after the one before it had queued behind that. A choice: longer than pauses between
kernels."""
ROUNDS: Final = 100
"""Maximum number of times that blame is passed on; in a circle it becomes smaller each time."""


class LateArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one set of ranks to which one of them was late."""

    rank: int
    met: SharedInterval
    """From the previous call of these ranks to the late call, for every member."""
    lead_ns: Ints
    """How much later than the second-latest it arrived, at most the time since the previous call; with a device less
    what of that was so before the calls of these ranks in which the others did not stop for it."""
    own_ns: Ints
    """Each lead less the time that the rank communicated elsewhere longer than its peers."""
    launched_ns: Ints
    """When the late rank launched each call, on its own clock."""
    passed_ns: Mapping[int, Ints]
    """By other rank: how much of each lead was wait for that rank in other groups."""


def late_arrivals(run: Run, splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> list[LateArrivals]:
    """Return the late arrivals of each rank, one entry for each set of ranks; leads within clock noise are left out."""
    sets = [_met(run, ranks, [splits[at] for at in places], coverage) for ranks, places in _sets(splits).items()]
    _add_communicated(sets, coverage)
    found = [each for one in sets for each in _late(run, one)]
    passed = _passed_on(found, splits, coverage)
    return [replace(each, passed_ns=its) for each, its in zip(found, passed, strict=True)]


class _SharedIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one set of ranks to which any of them was late; rows are the ranks, columns the calls."""

    ranks: tuple[int, ...]
    begin_ns: Ints
    """End of the previous call of these ranks."""
    until_ns: Ints
    lead_ns: Ints
    last: Ints
    """Row of the rank that arrived last."""
    call: Ints
    """Row of the call in that rank's `Collectives`."""
    comm_ns: Ints
    """Exposed communication of each rank in between."""


def _sets(splits: Sequence[Split]) -> dict[tuple[int, ...], list[int]]:
    return positions_by_ranks([each.block for each in splits])


def _met(
    run: Run, ranks: tuple[int, ...], theirs: Sequence[Split], coverage: Mapping[int, Coverage]
) -> _SharedIntervals:
    start, end, rows = (
        join_columns([getattr(each.block, name) for each in theirs]) for name in ("start_ns", "end_ns", "rows")
    )
    lead, last = (np.concatenate([getattr(each, name) for each in theirs]) for name in ("lead_ns", "last"))
    order = np.argsort(start[0], kind="stable")
    devices = all(run.ranks[rank].has_device for rank in ranks)
    counts = lead[order] > LEADS_COUNT_NS
    fresh = _fresh(ranks, theirs, order, coverage) if devices and counts.any() else lead[order]
    met = np.maximum.accumulate(end[:, order], axis=1)  # concurrent calls end in any order
    begun = np.array([[run.ranks[rank].recordings.start_ns[0]] for rank in ranks])  # nothing is known before that
    late = np.flatnonzero(counts & (fresh > 0))
    begin, until = np.concatenate([begun, met], axis=1)[:, late], start[:, order[late]]
    lead, last, rows = np.rint(fresh[late]).astype(np.int64), last[order[late]], rows[:, order[late]]
    # A lead longer than the time since the previous call existed before it: the calls are concurrent.
    since = np.maximum(until - begin, 0)[last, np.arange(late.size)]
    return _SharedIntervals(
        ranks=ranks,
        begin_ns=begin,
        until_ns=until,
        lead_ns=np.minimum(lead, since),
        last=last,
        call=rows[last, np.arange(late.size)],
        comm_ns=np.zeros(begin.shape, np.int64),
    )


def _fresh(ranks: tuple[int, ...], theirs: Sequence[Split], order: Ints, coverage: Mapping[int, Coverage]) -> Floats:
    """Return for each call of a set of ranks, in order of time, what of its lead had not been there at earlier calls.

    While one rank stays the last one, its lead lasts, but for what the second-latest one stopped for it: that long it
    waited in the call without computing, before the next one began. It ends where all came at once; but not to a call
    that had queued behind the one before it, which says nothing of when they came.
    """
    lead, last, transfer = (
        np.concatenate([getattr(each, name) for each in theirs])[order] for name in ("lead_ns", "last", "transfer_ns")
    )
    start, end = (
        join_columns([getattr(each.block, side) for each in theirs])[:, order] for side in ("start_ns", "end_ns")
    )
    calls = np.arange(order.size)
    taken = end - start
    taken[last, calls] = np.iinfo(np.int64).max
    second = taken.argmin(axis=0)
    even = np.concatenate([np.full(each.block.calls, each.block.even) for each in theirs])[order]
    # Leads that the spread of the recordings' starts explains are no blame, but last as well.
    total = np.where(even, np.maximum(lead, taken[second, calls] - transfer), lead)
    until = np.minimum(end - transfer, np.append(start[:, 1:], end[:, -1:], axis=1))
    counts = total > LEADS_COUNT_NS
    pauses = start[:, 1:] - np.maximum.accumulate(end, axis=1)[:, :-1]
    queued = np.append(False, (pauses <= AT_ONCE_NS).all(axis=0))[: calls.size]
    since = np.maximum.accumulate(np.where(counts | ~queued, calls, 0))
    stays = np.where(counts, last, NONE)[since]
    stopped = np.zeros(order.size, np.int64)
    for row, rank in enumerate(ranks):
        mine = (second == row) & (stays != row)
        if not mine.any():
            continue
        exposed = BusyTime(difference(coverage[rank].comm, coverage[rank].compute))
        stopped[mine] = _within(exposed, start[row, mine], until[row, mine])
    # Stretches of calls to which one rank comes last: each lies above all before it, for one running maximum.
    stretch = np.cumsum(np.append(True, stays[1:] != stays[:-1])) - 1
    before = np.cumsum(stopped) - stopped
    first = np.searchsorted(stretch, stretch)
    behind = np.where(counts, np.maximum(np.rint(total).astype(np.int64) + before - before[first], 0), 0)
    above = stretch * (int(behind.max(initial=0)) + 1)
    most = np.maximum.accumulate(behind + above) - above
    fresh: Floats = np.minimum(np.where(first == calls, most, np.diff(most, prepend=0)), lead)
    return fresh


def _add_communicated(sets: Sequence[_SharedIntervals], coverage: Mapping[int, Coverage]) -> None:
    """Fill in the exposed communication of each rank, rank by rank."""
    of_rank: dict[int, list[tuple[_SharedIntervals, int]]] = {}
    for one in sets:
        for row, rank in enumerate(one.ranks) if one.last.size else ():
            of_rank.setdefault(rank, []).append((one, row))
    for rank, theirs in of_rank.items():
        exposed = BusyTime(difference(coverage[rank].comm, coverage[rank].compute))
        for one, row in theirs:
            one.comm_ns[row] = _within(exposed, one.begin_ns[row], one.until_ns[row])


def _late(run: Run, one: _SharedIntervals) -> Iterator[LateArrivals]:
    """Yield the late arrivals of each rank of a set, without the blame that it passes on."""
    for row in unique(one.last).tolist():
        mine, rank = one.last == row, one.ranks[row]
        usual = np.median(np.delete(one.comm_ns, row, axis=0)[:, mine], axis=0)
        lead, calls = one.lead_ns[mine], run.ranks[rank].collectives
        elsewhere = np.rint(np.clip(one.comm_ns[row, mine] - usual, 0, lead)).astype(np.int64)
        made = one.call[mine]
        yield LateArrivals(
            rank=rank,
            met=SharedInterval(
                ranks=one.ranks,
                begin_ns=one.begin_ns[:, mine],
                end_ns=one.until_ns[:, mine],
                step=calls.step[made],
            ),
            lead_ns=lead,
            own_ns=lead - elsewhere,
            launched_ns=calls.launch_ns[made],
            passed_ns={},
        )


def attribute_blame(late: Sequence[LateArrivals]) -> dict[int, int]:
    """Return the blame of each rank in nanoseconds: its leads, plus blame passed on to it, less blame it passes on.

    Wait in calls that could not be split is blamed on no rank.
    """
    ranks = sorted({each.rank for each in late} | {other for each in late for other in each.passed_ns})
    place = {rank: at for at, rank in enumerate(ranks)}
    direct, own, passes = np.zeros(len(ranks)), np.zeros(len(ranks)), np.zeros((len(ranks), len(ranks)))
    for each in late:
        direct[place[each.rank]] += float(each.lead_ns.sum())
        own[place[each.rank]] += float(each.own_ns.sum())
        for other, passed in each.passed_ns.items():
            passes[place[each.rank], place[other]] += float(passed.sum())
    share = passes / np.maximum(direct, 1.0)[:, None]
    kept, moving = np.zeros(len(ranks)), direct
    for _ in range(ROUNDS):
        kept = kept + moving * np.where(direct > 0, own / np.maximum(direct, 1.0), 1.0)
        moving = moving @ share
        if moving.sum() < 1:
            break
    return {rank: round(float(value)) for rank, value in zip(ranks, kept, strict=True)}


def _passed_on(
    late: Sequence[LateArrivals], splits: Sequence[Split], coverage: Mapping[int, Coverage]
) -> list[dict[int, Ints]]:
    """Return for each entry how much of its leads was wait for which other rank; computed rank by rank."""
    of_rank: dict[int, list[int]] = {}
    for at, each in enumerate(late):
        of_rank.setdefault(each.rank, []).append(at)
    found: dict[int, dict[int, Ints]] = {}
    for rank, waited in _waits(splits, of_rank.keys()).items():
        compute = coverage[rank].compute
        known = {other: (BusyTime(times), BusyTime(intersection(times, compute))) for other, times in waited.items()}
        for at in of_rank[rank]:
            each = late[at]
            row = each.met.ranks.index(rank)
            found[at] = _passed(known, each.met.begin_ns[row], each.met.end_ns[row], each.lead_ns - each.own_ns)
    return [found.get(at, {}) for at in range(len(late))]


def _waits(splits: Sequence[Split], ranks: Collection[int]) -> dict[int, dict[int, Intervals]]:
    """Return for each of these ranks when it waited for which other rank, where the wait is known."""
    found: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
    even = [each for each in splits if each.block.even]
    for members, places in _sets(even).items():
        theirs = [even[at] for at in places]
        if not any(rank in ranks for rank in members):
            continue
        start, end = (join_columns([getattr(each.block, name) for each in theirs]) for name in ("start_ns", "end_ns"))
        transfer, row_of_last = (
            np.concatenate([getattr(each, name) for each in theirs]) for name in ("transfer_ns", "last")
        )
        last = np.array(members)[row_of_last]
        for row, rank in enumerate(members):
            if rank in ranks:
                until = end[row] - transfer
                mine = np.flatnonzero((row_of_last != row) & (until - start[row] > LEADS_COUNT_NS))
                found.setdefault(rank, []).append((last[mine], start[row, mine], until[mine]))
    return {
        rank: _by_other(*(np.concatenate(each) for each in zip(*parts, strict=True))) for rank, parts in found.items()
    }


def _by_other(others: Ints, begin: Ints, until: Ints) -> dict[int, Intervals]:
    if not others.size:
        return {}
    order = np.argsort(others, kind="stable")
    names, first = np.unique(others[order], return_index=True)
    parts = (np.split(each[order], first[1:]) for each in (begin, until))
    return {other: union((starts, ends)) for other, starts, ends in zip(names.tolist(), *parts, strict=True)}


def _within(busy: BusyTime, begin: Ints, until: Ints) -> Ints:
    return busy.within(begin, np.maximum(begin, until))


def _passed(
    waited: Mapping[int, tuple[BusyTime, BusyTime]], begin: Ints, until: Ints, elsewhere: Ints
) -> dict[int, Ints]:
    """Attribute the time that the late rank spent elsewhere beyond its peers to the ranks that it waited for there.

    `waited` holds (wait, wait overlapped with compute) by other rank; the overlapped part does not count.
    """
    mine = {
        other: _within(times, begin, until) - _within(computing, begin, until)
        for other, (times, computing) in waited.items()
    }
    mine = {other: times for other, times in mine.items() if times.any()}
    total = sum(mine.values(), np.zeros_like(elsewhere))
    part = np.minimum(elsewhere / np.maximum(total, 1), 1.0)
    return {other: np.floor(times * part).astype(np.int64) for other, times in mine.items()}
