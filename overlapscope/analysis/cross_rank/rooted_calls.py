"""Calls with a root, such as broadcasts, in which members are seen to wait for the one that comes last.

In general such a call cannot be split into wait and transfer: a root that has sent all may leave before the others
arrive. But where one rank does something before it sends, as an evaluation whose result it broadcasts, the others begin
early, and never leave before it begins.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import counts_from, leads

SHOWN: Final = 2
"""In at least so many calls of a kind a member came so late that it counts; and in none of all did one leave before."""
TOGETHER: Final = 0.1
"""Members leave together where their ends are apart by at most this share of what they came apart: else the time after
the last one came is not the same for all, as where a root has sent into buffers, and is no wait."""


def waited_in(blocks: Sequence[MatchedCalls], clocks: Clocks) -> tuple[MatchedCalls, ...]:
    """Return the matched calls with a root, kind by kind, in which no member left before the last one came."""
    return tuple(block for block in blocks if clocks.comparable(block.ranks) and _waits(block, clocks))


def _waits(block: MatchedCalls, clocks: Clocks) -> bool:
    starts, ends = clocks.starts(block), clocks.ends(block)
    if (ends.min(axis=0) < starts.max(axis=0)).any():
        return False
    lead = leads(starts)["lead_ns"]
    together = float(np.ptp(ends, axis=0).sum()) <= TOGETHER * float(np.ptp(starts, axis=0).sum())
    return together and int(np.count_nonzero(lead > counts_from(clocks))) >= SHOWN
