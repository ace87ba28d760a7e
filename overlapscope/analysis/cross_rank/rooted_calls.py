"""Calls with a root, such as broadcasts, in which members are seen to wait for the one that comes last.

In general such a call cannot be split into wait and transfer: a root that has sent all may leave before the others
arrive. But where one rank does something before it sends, as an evaluation whose result it broadcasts, the others begin
early, and never leave before it begins.
"""

from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.matching import match
from overlapscope.analysis.cross_rank.wait_transfer import counts_from, leads
from overlapscope.timeline.operations import ROOTED
from overlapscope.timeline.run import Run

SHOWN: Final = 3
"""In at least so many calls of a kind a member came so late that it counts; and in none of all did one leave before."""


def waited_in(run: Run, clocks: Clocks) -> tuple[MatchedCalls, ...]:
    """Return the matched calls with a root, kind by kind, in which no member left before the last one came."""
    return tuple(block for block in match(run, ROOTED).blocks if _waits(block, clocks))


def _waits(block: MatchedCalls, clocks: Clocks) -> bool:
    threshold = counts_from(clocks)
    starts, ends = clocks.starts(block), clocks.ends(block)
    if (ends.min(axis=0) < starts.max(axis=0)).any():
        return False
    return int(np.count_nonzero(leads(starts)["lead_ns"] > threshold)) >= SHOWN
