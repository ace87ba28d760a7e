"""Find when two ranks last met before a call: the latest earlier call for whose end both had waited."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import (
    BusyTime,
)
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline, Run

AT_END_NS: Final = 1_000_000
"""Before the end of a call without a device: its host waited for it if it mostly computed nothing there. A choice: ends
are marked some 0.1 ms late, and small buckets take as long as this."""
AT_END_OF_DEVICE_NS: Final = 10_000
"""As much of the end of a call on a device, whose marks are exact. A choice: longer than the pauses between kernels."""


def last_met(
    timeline: RankTimeline, cover: Coverage, rows: Ints, came: Ints, others: Ints, members: Mapping[str, Ints],
    meets: Flags | None = None,
) -> Ints:  # fmt: skip
    """Return when the latest earlier call with each other rank ended; without one, when the rank's first span began.

    Two ranks meet in calls of the group in question, and of each group that is known to hold both; not in messages,
    which others of the group exchange; only where the rank waited for the call, which it did not beside backward; and
    only in calls that `meets` allows.
    """
    calls = timeline.collectives
    met = np.full(rows.size, cover.first_ns, np.int64)
    timed = calls.end_ns != NONE if meets is None else (calls.end_ns != NONE) & meets
    timed[timed] = ~computed_on(timeline, BusyTime(cover.compute), calls.start_ns[timed], calls.end_ns[timed])
    messages = rows_named(calls.op, timeline.names, POINT_TO_POINT.__contains__)
    for code in values_in(calls.group[timed]).tolist():
        name = timeline.names[code] if code != NONE else None
        both = (calls.group[rows] == code) | np.isin(others, members.get(name or "", ()))
        for kind in (False, True):  # a message is between two ranks of its group alone
            ends = np.sort(calls.end_ns[timed & (calls.group == code) & (messages == kind)])
            before = np.searchsorted(ends, came, side="right") - 1
            found = both & (before >= 0) & (messages[rows] | (not kind))
            met[found] = np.maximum(met[found], ends[before[found]])
    return met


def meetings(run: Run, cross_rank: CrossRank, coverage: Mapping[int, Coverage]) -> dict[int, Flags]:
    """Return for each row of a rank's `Collectives` whether its members may have met in it.

    Not where the device that came last mostly computed beside its end: it still had to do what the others had done
    before, beside their wait.
    """
    found = {rank: np.ones(timeline.collectives.op.size, np.bool_) for rank, timeline in run.ranks.items()}
    busy_at_end: dict[int, Flags] = {}
    for split in (*cross_rank.splits, *cross_rank.uneven):
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
            found[rank][rows] = meets
    return found


def computed_on(timeline: RankTimeline, computing: BusyTime, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return beside which calls a rank mostly computed at their end: it did not wait for them there."""
    since = np.maximum(start_ns, end_ns - at_end_ns(timeline))
    return np.asarray(2 * computing.within(since, end_ns) > end_ns - since, np.bool_)


def at_end_ns(timeline: RankTimeline) -> int:
    """Return how long before the end of a call, or after it, counts as its end."""
    return AT_END_OF_DEVICE_NS if timeline.has_device else AT_END_NS
