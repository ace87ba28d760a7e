"""Find when two ranks last met before a call: the latest earlier call for whose end both had waited."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import (
    BusyTime,
)
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import are_among, values_in
from overlapscope.timeline.run import RankTimeline, Run

AT_END_NS: Final = 1_000_000
"""Before the end of a call without a device: its host waited for it if it mostly computed nothing there. A choice: ends
are marked some 0.1 ms late, and small buckets take as long as this."""
AT_END_OF_DEVICE_NS: Final = 10_000
"""As much of the end of a call on a device, whose marks are exact. A choice: longer than the pauses between kernels."""


NOBODY: Final = np.empty(0, np.int64)


class Meetings(msgspec.Struct, frozen=True, kw_only=True):
    """In which of a rank's calls their members may have met; one row for each row of its `Collectives`."""

    may: Flags
    ranks: Ints
    """Which of `sets` made the call, as it was matched; NONE where it was not."""
    sets: Sequence[tuple[int, ...]]


def last_met(
    timeline: RankTimeline, cover: Coverage, rows: Ints, came: Ints, others: Ints, members: Mapping[str, Ints],
    meets: Meetings | None = None,
) -> Ints:  # fmt: skip
    """Return when the latest call with each other rank before a rank `came` to these `rows` ended; without one, when
    its first span began. `came` has a moment for each row, or several (shape (moments, rows)).

    Two ranks meet in calls of the group in question, and of each group that is known to hold both; where `meets` is
    known, of groups without names in calls that were matched between them; not in messages, which others of the group
    exchange; only where the rank waited for the call, which it did not beside backward; and only in calls that `meets`
    allows.
    """
    calls = timeline.collectives
    met = np.full(came.shape, cover.first_ns, np.int64)
    timed = calls.end_ns != NONE if meets is None else (calls.end_ns != NONE) & meets.may
    timed[timed] = ~computed_on(timeline, BusyTime(cover.compute), calls.start_ns[timed], calls.end_ns[timed])
    messages = rows_named(calls.op, timeline.names, POINT_TO_POINT.__contains__)
    for own, both in _calls_of_both(timeline, rows, others, members, meets):
        for kind in (False, True):  # a message is between two ranks of its group alone
            ends = np.sort(calls.end_ns[timed & own & (messages == kind)])
            before = np.searchsorted(ends, came, side="right") - 1
            found = both & (before >= 0) & (messages[rows] | (not kind))
            met[found] = np.maximum(met[found], ends[before[found]])
    return met


def _calls_of_both(
    timeline: RankTimeline, rows: Ints, others: Ints, members: Mapping[str, Ints], meets: Meetings | None
) -> Iterator[tuple[Flags, Flags]]:
    """Yield calls of a rank, group by group, with those of `rows` whose other rank makes these, too."""
    calls = timeline.collectives
    for code in values_in(calls.group).tolist():
        own = calls.group == code
        if code >= 0 or meets is None:
            yield own, own[rows] | are_among(others, members.get(timeline.name(code) or "", NOBODY))
            continue
        for at in values_in(meets.ranks[own]).tolist():
            theirs = own & (meets.ranks == at)
            yield theirs, are_among(others, np.array(meets.sets[at])) if at != NONE else theirs[rows]


def meetings(run: Run, cross_rank: CrossRank, coverage: Mapping[int, Coverage]) -> dict[int, Meetings]:
    """Return in which calls the members may have met, of each rank.

    Not where the device that came last mostly computed beside its end: it still had to do what the others had done
    before, beside their wait.
    """
    found = {rank: np.ones(timeline.collectives.op.size, np.bool_) for rank, timeline in run.ranks.items()}
    made = {rank: np.full(each.size, NONE, np.int64) for rank, each in found.items()}
    every = (*cross_rank.splits, *cross_rank.uneven)
    pairs = cross_rank.pairs.pairs
    sets = [*dict.fromkeys((*(each.block.ranks for each in every), *((each.sender, each.receiver) for each in pairs)))]
    place = {ranks: at for at, ranks in enumerate(sets)}
    for each in pairs:
        for rank, rows in ((each.sender, each.send_rows), (each.receiver, each.recv_rows)):
            made[rank][rows] = place[each.sender, each.receiver]
    busy_at_end: dict[int, Flags] = {}
    for split in every:
        block = split.block
        meets = np.ones(block.calls, np.bool_)
        for row in values_in(split.last).tolist():
            timeline, mine = run.ranks[block.ranks[row]], split.last == row
            if timeline.has_device:
                if timeline.rank not in busy_at_end:
                    calls, computing = timeline.collectives, BusyTime(coverage[timeline.rank].compute)
                    busy_at_end[timeline.rank] = computed_on(timeline, computing, calls.start_ns, calls.end_ns)
                meets[mine] = ~busy_at_end[timeline.rank][block.rows[row, mine]]
        for rank, rows in zip(block.ranks, block.rows, strict=True):
            found[rank][rows], made[rank][rows] = meets, place[block.ranks]
    return {rank: Meetings(may=may, ranks=made[rank], sets=sets) for rank, may in found.items()}


def computed_on(timeline: RankTimeline, computing: BusyTime, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return beside which calls a rank mostly computed at their end: it did not wait for them there."""
    since = np.maximum(start_ns, end_ns - at_end_ns(timeline))
    return np.asarray(2 * computing.within(since, end_ns) > end_ns - since, np.bool_)


def at_end_ns(timeline: RankTimeline) -> int:
    """Return how long before the end of a call, or after it, counts as its end."""
    return AT_END_OF_DEVICE_NS if timeline.has_device else AT_END_NS
