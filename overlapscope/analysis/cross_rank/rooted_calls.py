"""Calls with a root, such as broadcasts, in which members are seen to wait for the one that comes last.

In general such a call cannot be split into wait and transfer: a root that has sent all may leave before the others
arrive. But where one rank does something before it sends, as an evaluation whose result it broadcasts, or a step of the
optimizer, the others begin early, and leave when it has begun, all at once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import counts_from, leads

SHOWN: Final = 2
"""In at least so many calls of a kind a member came so late that it counts, and none left before."""
TOGETHER: Final = 0.1
"""Members leave a call together where their ends are apart by at most this share of what they came apart: else the time
after the last one came is not the same for all, as where a root has sent into buffers, and is no wait."""


def waited_in(blocks: Sequence[MatchedCalls], clocks: Clocks) -> tuple[MatchedCalls, ...]:
    """Return of the matched calls with a root, kind by kind, those that all members left together, none of them before
    the last one came; of no kind of which too few are seen to be such."""
    found = (_waits(block, clocks) for block in blocks if clocks.comparable(block.ranks))
    return tuple(block for block in found if block is not None)


def _waits(block: MatchedCalls, clocks: Clocks) -> MatchedCalls | None:
    starts, ends = clocks.starts(block), clocks.ends(block)
    least = counts_from(clocks)
    at_once = np.ptp(ends, axis=0) <= np.maximum(TOGETHER * np.ptp(starts, axis=0), least)
    together = np.flatnonzero(at_once & (ends.min(axis=0) >= starts.max(axis=0)))
    if np.count_nonzero(leads(starts)["lead_ns"][together] > least) < SHOWN:
        return None
    if together.size == block.calls:
        return block
    return replace(
        block, rows=block.rows[:, together], start_ns=block.start_ns[:, together], end_ns=block.end_ns[:, together]
    )
