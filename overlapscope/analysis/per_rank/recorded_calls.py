"""How many of the calls of its runtime that a process numbered were recorded."""

import numpy as np

from overlapscope.timeline.columns import NONE, RUNTIME
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import RankTimeline


def calls_and_numbers(timeline: RankTimeline) -> tuple[int, int]:
    """Return how many calls of the runtime have a number of their own, and how many numbers there are from the first to
    the last: sums over recordings.

    CUPTI numbers all calls of a process, and profilers record some kinds of them (torch's and Nsight's 9 to 23 %, in
    seven recordings of jobs); roctracer and CANN number what they record.
    """
    host = select_host_spans(timeline.host, (RUNTIME,))
    calls = numbers = 0
    for recording in np.unique(host.recording).tolist():
        found = np.unique(host.correlation[(host.recording == recording) & (host.correlation != NONE)])
        calls += found.size
        numbers += int(found[-1] - found[0]) + 1 if found.size else 0
    return calls, numbers
