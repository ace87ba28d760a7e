"""When the last member came to each call, and who that was: of all matched calls, also those that tell no transfer.

Until the last has come, a member waits: that much is certain even where what came after cannot be split into waiting
and transfer (sends with their receives, uneven exchanges, groups of which some members were not recorded).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from overlapscope.analysis.across import Across
from overlapscope.analysis.clocks import Clocks, Reals
from overlapscope.analysis.pairs import Pairs
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One row for each row of a rank's `Collectives`; NONE where nothing is known."""

    arrived_ns: Ints
    """When the last member came, on the rank's own clock, within the call; not before it is certain."""
    last: Ints
    """The rank that came last, of those recorded."""
    call: Ints
    """Number of the call, the same on all its members; NONE where some member was not recorded."""


def arrivals(run: Run, together: Across) -> dict[int, Arrivals]:
    """Give the arrivals of each rank's collectives.

    Even calls end together, so the least duration tells when the last one came, whatever the clocks show; of the others
    aligned clocks tell it, less their residual.
    """
    found = {
        rank: Arrivals(**{each.name: np.full(size(timeline.collectives), NONE, np.int64) for each in fields(Arrivals)})
        for rank, timeline in run.ranks.items()
    }
    calls = 0
    for each in together.splits:
        block = each.block
        number = calls + np.arange(block.calls) if block.whole else NONE
        last = np.array(block.ranks)[each.last]
        for rank, rows, ends in zip(block.ranks, block.rows, block.end_ns, strict=True):
            found[rank].arrived_ns[rows] = ends - each.transfer_ns
            found[rank].last[rows] = last
            found[rank].call[rows] = number
        calls += block.calls
    clocks = together.clocks
    for each in together.uneven:
        block = each.block
        if clocks.comparable(block.ranks):
            number = calls + np.arange(block.calls) if block.whole else np.full(block.calls, NONE)
            _by_clocks(found, run, clocks, block.ranks, block.rows, clocks.starts(block), number)
            calls += block.calls
    for pairs in together.pairs.pairs:
        if clocks.comparable((pairs.sender, pairs.receiver)):
            number = calls + np.arange(pairs.send_rows.size)
            rows = np.array([pairs.send_rows, pairs.recv_rows])
            _by_clocks(found, run, clocks, (pairs.sender, pairs.receiver), rows, _came(run, clocks, pairs), number)
            calls += pairs.send_rows.size
    return found


def _by_clocks(
    found: Mapping[int, Arrivals], run: Run, clocks: Clocks, ranks: Sequence[int], rows: Ints, came: Reals, number: Ints
) -> None:
    """Note who came last (`came` is on the common clock), but for those that had left by then: they did not wait."""
    latest, last = came.max(axis=0), np.array(ranks)[came.argmax(axis=0)]
    for rank, own in zip(ranks, rows, strict=True):
        calls = run.ranks[rank].collectives
        ends = clocks.aligned(rank, calls.end_ns[own])
        stayed = (ends >= latest) | (last == rank)
        chosen = own[stayed]
        before = np.rint(ends - latest + (clocks.residual_ns or 0.0)).astype(np.int64)[stayed]
        start, end = calls.start_ns[chosen], calls.end_ns[chosen]
        found[rank].arrived_ns[chosen] = np.clip(end - before, start, end)
        found[rank].last[chosen] = last[stayed]
        found[rank].call[chosen] = number[stayed]


def _came(run: Run, clocks: Clocks, pairs: Pairs) -> Reals:
    """Give when sender and receiver came to their calls: a host may hand over a message before its span begins."""
    found = []
    for rank, rows in ((pairs.sender, pairs.send_rows), (pairs.receiver, pairs.recv_rows)):
        timeline = run.ranks[rank]
        start, launch = timeline.collectives.start_ns[rows], timeline.collectives.launch_ns[rows]
        handed_over = start if timeline.has_device else np.where(launch == NONE, start, launch)
        found.append(clocks.aligned(rank, handed_over))
    return np.array(found)
