"""Find when the host of a rank with a device certainly worked: no change of communication makes its steps shorter than
that."""

import re
from typing import Final

import numpy as np

from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans, Ints, take
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

CALL_NS: Final = 20_000
"""A longer call may wait for a place in the queue of launches. A choice: twice a launch."""
WAITS_OR_POLLS: Final = re.compile(r"Synchronize|Query")
"""In names of calls that wait for the device, or ask whether it has ended ..."""
POLLS: Final = "Query"
"""... of which the second may be made in a loop: the time beside them is no work."""


def host_work(timeline: RankTimeline) -> Intervals | None:
    """Return when threads that launch work of the device certainly worked, on the rank's clock; None without a device,
    or without host events.

    That is in their calls (runtime interface), for `CALL_NS` at most and not where they wait, and between two calls
    less than `SILENCE_NS` apart. Raises HostEventsError.
    """
    if not timeline.has_device or not timeline.has_host_events:
        return None
    host, launched = timeline.host, unique(timeline.spans.correlation)
    calls = np.flatnonzero(host.kind == RUNTIME)
    launches = np.isin(host.correlation[calls], launched[launched != NONE])
    lanes = unique(host.lane[calls[launches]]).tolist()
    return union(*(_of_thread(timeline, take(host, calls[host.lane[calls] == lane])) for lane in lanes))


def _of_thread(timeline: RankTimeline, calls: HostSpans) -> tuple[Ints, Ints]:
    """Return starts and ends of the work of one thread; its calls are sorted by start."""
    names = timeline.names
    waits = rows_named(calls.name, names, lambda name: WAITS_OR_POLLS.search(name) or WAITS_FOR_DEVICE.fullmatch(name))
    polls = rows_named(calls.name, names, lambda name: POLLS in name)
    works = ~waits
    until = np.minimum(calls.end_ns, calls.start_ns + CALL_NS)
    last_end = np.maximum.accumulate(calls.end_ns)[:-1] if calls.end_ns.size else calls.end_ns
    between = calls.start_ns[1:] - last_end
    close = (between > 0) & (between < SILENCE_NS) & ~polls[1:] & ~polls[:-1]
    starts = np.concatenate([calls.start_ns[works], last_end[close]])
    return starts, np.concatenate([until[works], calls.start_ns[1:][close]])
