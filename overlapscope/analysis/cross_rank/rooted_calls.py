"""Calls with a root, such as broadcasts, in which members are seen to wait for the one that comes last.

In general such a call cannot be split into wait and transfer: a root that has sent all may leave before the others
arrive. But where one rank does something before it sends, as an evaluation whose result it broadcasts, or a step of the
optimizer, the others begin early, and leave when it has begun, all at once.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import counts_from, leads
from overlapscope.timeline.columns import Ints

SHOWN: Final = 2
"""In at least so many calls of a kind a member came so late that it counts, and none left before."""
TOGETHER: Final = 0.1
"""Members leave a call together where their ends are apart by at most this share of what they came apart: else the time
after the last one came is not the same for all, as where a root has sent into buffers, and is no wait."""


class RootedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Matched calls with a root that all members left together, none of them before the last one came."""

    waited: tuple[MatchedCalls, ...] = ()
    """Those of a kind in which members were often seen to wait."""
    others: tuple[MatchedCalls, ...] = ()
    """Those in which all came at about one time: the same call everywhere, but wait and transfer are not known."""


def left_together(blocks: Sequence[MatchedCalls], clocks: Clocks) -> RootedCalls:
    """Return of the matched calls with a root those that all members left together, kind by kind."""
    waited: list[MatchedCalls] = []
    others: list[MatchedCalls] = []
    for block in blocks:
        if not clocks.comparable(block.ranks):
            continue
        starts, ends = clocks.starts(block), clocks.ends(block)
        least = counts_from(clocks)
        at_once = np.ptp(ends, axis=0) <= np.maximum(TOGETHER * np.ptp(starts, axis=0), least)
        together = np.flatnonzero(at_once & (ends.min(axis=0) >= starts.max(axis=0)))
        shown = np.count_nonzero(leads(starts)["lead_ns"][together] > least) >= SHOWN
        if together.size:
            (waited if shown else others).append(_columns(block, together))
    return RootedCalls(waited=tuple(waited), others=tuple(others))


def _columns(block: MatchedCalls, chosen: Ints) -> MatchedCalls:
    if chosen.size == block.calls:
        return block
    return replace(
        block, rows=block.rows[:, chosen], start_ns=block.start_ns[:, chosen], end_ns=block.end_ns[:, chosen]
    )
