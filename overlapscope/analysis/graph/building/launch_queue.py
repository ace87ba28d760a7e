"""Launches that waited for room in the queue of launches, because the host was as far ahead of its device as it may be.

A driver holds a limited number of launches that have not ended (some 1,000 on NVIDIA's): the next launch returns when
one of them ends. Nothing records that: it is inferred where long launches return with always as many before them.
"""

from typing import Final

import numpy as np

from overlapscope.analysis.graph.building.host_calls import HostCalls
from overlapscope.timeline.columns import Ints, Spans

LONG_NS: Final = 50_000
"""A launch takes a few microseconds: one that takes so long waits for something."""
FEWEST: Final = 5
"""Long launches: of fewer it is not known whether their queue was full."""
LEAST_DEPTH: Final = 128
"""A host that is fewer launches ahead is not held back. A choice: less than known queues hold."""
VARIES: Final = 0.01
"""Share of the depth by which it may differ between launches: streams end out of order."""
MOSTLY: Final = 0.9
"""Least share of the long launches that find so many before them, and of all launches that find no more."""
RETURNS_NS: Final = 100_000
"""The launch returns at most so long after the end that makes room."""


def made_room(spans: Spans, calls: HostCalls, launch_ns: Ints) -> Ints:
    """Return for each call the span whose end made room for its launch; -1 where it did not wait for room.

    `launch_ns` holds when each span was launched, NONE for those before the recording.
    """
    found = np.full(calls.row.size, -1, np.int64)
    launches = np.zeros(calls.row.size, np.bool_)
    launches[calls.launched_by[calls.launched_by >= 0]] = True
    at = np.flatnonzero(launches & ~calls.blocks)
    by_end = np.argsort(spans.end_ns, kind="stable")
    ended = np.searchsorted(spans.end_ns[by_end], calls.end_ns[at], side="right")
    depth = np.searchsorted(np.sort(launch_ns), calls.begin_ns[at], side="right") - ended
    long = calls.end_ns[at] - calls.begin_ns[at] >= LONG_NS
    if np.count_nonzero(long) < FEWEST:
        return found
    usual = float(np.median(depth[long]))
    varies = max(VARIES * usual, 2)
    full = long & (abs(depth - usual) <= varies)
    if usual < LEAST_DEPTH or np.count_nonzero(full) < MOSTLY * np.count_nonzero(long):
        return found
    if np.count_nonzero(depth <= usual + varies) < MOSTLY * at.size:
        return found
    last = by_end[np.maximum(ended - 1, 0)]
    soon = calls.end_ns[at] - spans.end_ns[last] <= RETURNS_NS
    inside = (spans.end_ns[last] > calls.begin_ns[at]) & (launch_ns[last] < calls.begin_ns[at])
    waits = full & (ended > 0) & soon & inside
    found[at[waits]] = last[waits]
    return found
