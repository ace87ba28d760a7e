"""When the last member arrived at each matched call, and which rank that was.

A member waits until the last one has arrived. This is certain even where the rest of the call cannot be separated into
wait and transfer: sends with their receives, uneven exchanges, groups with members that were not recorded.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.call_index import CallIndex
from overlapscope.analysis.cross_rank.matching.point_to_point import MessagePairs
from overlapscope.analysis.cross_rank.unseen_members import waited_for_unseen
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.run import Run


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each row of a rank's `Collectives`; NONE where it is not known."""

    arrived_ns: Ints
    """When the last member arrived: on the rank's own clock, within the call; with uncertain clocks the earliest."""
    last: Ints
    """The recorded rank that arrived last; NONE where another member may have come later (`Split.for_unseen`)."""
    call: Ints
    """Number of the call, the same on all its members; NONE where some member was not recorded."""
    began_ns: Ints
    """When the last member began, where the clock says that exactly: without a device, on ranks that share one. Not
    after `arrived_ns`: a member that ends later than another had not waited for longer."""
    start_wait_ns: Ints
    """What of the wait the spread of the recordings' starts explains; 0 for nothing."""
    unseen_ns: Ints
    """When the last member came, though it was not recorded, as the call's own tasks show: at the earliest; NONE where
    the last one was recorded, or nothing shows that it was not."""


def arrivals(run: Run, cross_rank: CrossRank) -> dict[int, Arrivals]:
    """Return the arrivals of each rank's collectives.

    Even calls end together, so their shortest duration gives the arrival of the last member without any clock. For the
    other calls it is taken from the aligned clocks, less their residual.
    """
    clocks, index = cross_rank.clocks, CallIndex.of(run, cross_rank.splits)
    by_clocks: dict[int, list[tuple[_ByClocks, Ints]]] = {}
    calls = index.transfer_ns.size
    for ranks, rows, came, whole in _on_clocks(run, cross_rank):
        number = calls + np.arange(came.shape[1]) if whole else np.full(came.shape[1], NONE)
        calls += came.shape[1]
        by_clock = _ByClocks(latest=came.max(axis=0), last=np.array(ranks)[came.argmax(axis=0)], number=number)
        for rank, own in zip(ranks, rows, strict=True):
            by_clocks.setdefault(rank, []).append((by_clock, own))
    began, unseen, doubtful = _began(cross_rank), waited_for_unseen(run, cross_rank.splits), _doubtful(cross_rank)
    start_waits: dict[int, list[tuple[Ints, Ints]]] = {}
    for split in (*cross_rank.splits, *cross_rank.uneven):
        if split.start_wait_ns is not None:
            for rank, rows, waits in zip(split.block.ranks, split.block.rows, split.start_wait_ns, strict=True):
                start_waits.setdefault(rank, []).append((rows, waits))
    return {
        rank: _of_rank(
            run,
            index,
            clocks,
            rank,
            by_clocks.get(rank, ()),
            began.get(rank, ()),
            start_waits.get(rank, ()),
            unseen.get(rank),
            doubtful.get(rank, ()),
        )
        for rank in run.ranks
    }


class _ByClocks(msgspec.Struct, frozen=True, kw_only=True):
    """Calls whose last member is taken from the aligned clocks."""

    latest: Floats
    """Arrival of the last member, on the common clock."""
    last: Ints
    number: Ints


def _began(cross_rank: CrossRank) -> dict[int, list[tuple[Ints, Ints]]]:
    """Return rows of each rank's calls with when their last member began, where that is known."""
    found: dict[int, list[tuple[Ints, Ints]]] = {}
    for split in cross_rank.splits:
        if split.began_ns is not None:
            for rank, own in zip(split.block.ranks, split.block.rows, strict=True):
                found.setdefault(rank, []).append((own, split.began_ns))
    return found


def _doubtful(cross_rank: CrossRank) -> dict[int, list[Ints]]:
    """Return rows of each rank's calls whose last member may be one that was not recorded."""
    found: dict[int, list[Ints]] = {}
    for split in cross_rank.splits:
        for rank, own in zip(split.block.ranks, split.block.rows, strict=True) if split.for_unseen is not None else ():
            found.setdefault(rank, []).append(own[split.for_unseen])
    return found


def _on_clocks(run: Run, cross_rank: CrossRank) -> Iterator[tuple[Sequence[int], Sequence[Ints], Floats, bool]]:
    """Yield ranks, rows, arrival times (ranks by calls), and whether all members were recorded."""
    clocks = cross_rank.clocks
    for each in cross_rank.uneven:
        block = each.block
        if clocks.comparable(block.ranks):
            yield block.ranks, list(block.rows), clocks.starts(block), block.whole
    for pairs in cross_rank.pairs.pairs:
        ends = (pairs.sender, pairs.receiver)
        if clocks.comparable(ends):
            yield ends, [pairs.send_rows, pairs.recv_rows], _came(run, clocks, pairs), True


def _of_rank(
    run: Run, index: CallIndex, clocks: Clocks, rank: int, by_clocks: Sequence[tuple[_ByClocks, Ints]],
    began: Sequence[tuple[Ints, Ints]], start_waits: Sequence[tuple[Ints, Ints]], unseen: tuple[Ints, Ints] | None,
    doubtful: Sequence[Ints],
) -> Arrivals:  # fmt: skip
    """Return the arrivals of one rank; of `doubtful` rows without who was last.

    Arrivals by clocks are left out for calls that the rank had left before the last member arrived: it did not wait.
    """
    calls, call = run.ranks[rank].collectives, index.call[rank]
    start_ns, end_ns = calls.start_ns, calls.end_ns
    arrived, last, number = (np.full(call.size, NONE, np.int64) for _ in range(3))
    rows = np.flatnonzero(call >= 0)
    matched = call[rows]
    arrived[rows] = end_ns[rows] - index.transfer_ns[matched]
    last[rows] = index.last[matched]
    whole = index.whole[matched]
    number[rows[whole]] = matched[whole]
    for own in doubtful:
        last[own] = NONE
    for by_clock, own in by_clocks:
        ends = clocks.aligned(rank, end_ns[own])
        stayed = (ends >= by_clock.latest) | (by_clock.last == rank)
        chosen = own[stayed]
        before = np.rint(ends - by_clock.latest + (clocks.residual_ns or 0.0)).astype(np.int64)[stayed]
        arrived[chosen] = np.clip(end_ns[chosen] - before, start_ns[chosen], end_ns[chosen])
        last[chosen] = by_clock.last[stayed]
        number[chosen] = by_clock.number[stayed]
    latest = np.full(call.size, NONE, np.int64)
    for own, latest_ns in began:
        latest[own] = np.clip(latest_ns, start_ns[own], np.maximum(arrived[own], start_ns[own]))
    start_wait = np.zeros(call.size, np.int64)
    for own, waits in start_waits:
        start_wait[own] = waits
    unseen_ns = np.full(call.size, NONE, np.int64)
    if unseen is not None:
        own, waited_ns = unseen
        unseen_ns[own] = start_ns[own] + waited_ns
    return Arrivals(
        arrived_ns=arrived, last=last, call=number, began_ns=latest, start_wait_ns=start_wait, unseen_ns=unseen_ns
    )


def _came(run: Run, clocks: Clocks, pairs: MessagePairs) -> Floats:
    """Return when sender and receiver arrived at their calls.

    In a CPU run that is the launch: a host may hand over a message before the span of the send begins.
    """
    found = []
    for rank, rows in ((pairs.sender, pairs.send_rows), (pairs.receiver, pairs.recv_rows)):
        timeline = run.ranks[rank]
        start, launch = timeline.collectives.start_ns[rows], timeline.collectives.launch_ns[rows]
        handed_over = start if timeline.has_device else np.where(launch == NONE, start, launch)
        found.append(clocks.aligned(rank, handed_over))
    return np.array(found)
