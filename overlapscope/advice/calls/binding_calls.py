"""Which exposed time ends with calls: only there does it get shorter with them.

Where several calls are in flight the next compute begins as the one that it waits for ends, whatever the others do. And
where calls of one stream follow each other without a gap until the optimizer, that stream decides when the step ends:
what other calls meanwhile hold back, it waits for anyway.
"""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMM, NONE, Flags, Ints
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.rows import smallest_by, sort_order
from overlapscope.timeline.run import RankTimeline

DIRECTLY_NS: Final = 20_000
"""A call stands behind another one if it begins so soon after its end, and so does compute that waits for it. A choice:
twice a launch."""
AT_ONCE_NS: Final = 2_000
"""Events of one device that are no further apart are in either order: a stream is seen to begin some 100 ns before the
end that it waited for, and many profilers write whole microseconds."""


def ends_with(timeline: RankTimeline, own: Flags, exposed: Intervals) -> Intervals:
    """Return which of these exposed times of a rank end with one of its `own` calls, or with one that followed directly
    upon such a call, and so on; and those that end with no call at all, of which this is not known."""
    calls = timeline.collectives
    rows = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    rows = rows[sort_order(calls.end_ns[rows])]
    ends = calls.end_ns[rows]
    at = np.arange(rows.size)
    before = np.minimum(np.searchsorted(ends, calls.start_ns[rows] + AT_ONCE_NS, side="right"), at) - 1
    follows = (before >= 0) & (calls.start_ns[rows] - ends[np.maximum(before, 0)] <= DIRECTLY_NS)
    before = np.where(follows, before, at)
    leads = own[rows]
    # By doubling: whether any of the calls back to the first of a row is its own.
    while not np.array_equal(before, further := before[before]):
        leads, before = leads | leads[before], further
    counts = np.append(0, np.cumsum(leads | leads[before]))
    first, last = (np.searchsorted(ends, exposed.ends + shift, side="right") for shift in (-DIRECTLY_NS, AT_ONCE_NS))
    chosen = (first == last) | (counts[last] > counts[first])
    return Intervals(exposed.starts[chosen], exposed.ends[chosen])


def paced_by_others(timeline: RankTimeline, own: Flags, since_ns: Ints, last_ones: Flags) -> Intervals:
    """Return when other calls of a rank than its `own` transfer one after the other on a stream until the optimizer.

    `since_ns` is from when on each call transfers, NONE without times; nothing but the optimizer follows `last_ones`.
    """
    calls, lane = timeline.collectives, streams_of_calls(timeline)
    rows = np.flatnonzero((since_ns != NONE) & (lane != NONE))
    rows = rows[sort_order(lane[rows], calls.start_ns[rows])]
    if not rows.size:
        return union()
    end = calls.end_ns[rows]
    joins = (lane[rows[1:]] == lane[rows[:-1]]) & (since_ns[rows[1:]] - end[:-1] <= DIRECTLY_NS)
    run = np.append(0, np.cumsum(~joins))
    begins = smallest_by(run, since_ns[rows], int(run[-1]) + 1)
    until = -smallest_by(run, -end, begins.size)
    has_own = smallest_by(run, np.where(own[rows], 0, 1), begins.size) == 0
    last = np.flatnonzero(np.append(run[1:] != run[:-1], True))
    chosen = last_ones[rows[last]] & ~has_own
    return union((begins[chosen], until[chosen]))


def streams_of_calls(timeline: RankTimeline) -> Ints:
    """Return the stream of each call; NONE where that is not known."""
    spans, found = timeline.spans, np.full(timeline.collectives.op.size, NONE)
    sends = (spans.kind == COMM) & (spans.collective != NONE)
    found[spans.collective[sends]] = spans.lane[sends]
    return found


def saved_of(
    timeline: RankTimeline, own: Flags, since_ns: Ints, saved: Intervals, exposed: Intervals, last_ones: Flags
) -> Intervals:
    """Return the part of time that may be `saved` in which the calls of a rank bind the next compute, and no other
    stream the step; of all its calls, all of it."""
    if own[since_ns != NONE].all():
        return saved
    binding = intersection(saved, ends_with(timeline, own, exposed))
    return difference(binding, paced_by_others(timeline, own, since_ns, last_ones))
