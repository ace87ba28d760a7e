"""Find ranks that come last together, such as those of a host with slower devices: each has a small lead over the next.

Durations tell it without clocks: who comes last waits for little, all others wait for about as long as each other.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import positions_by_ranks
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.timeline.columns import Floats

FEWEST_CALLS: Final = 3
APART: Final = 0.5
"""Ranks come last together to a call if each of the others waits longer than each of them, by this share of the longest
wait of the call ..."""
MOSTLY: Final = 0.75
"""... and in this share of the calls that any rank waited in. Both are choices."""
MOST_OF_WAITING: Final = 0.5
"""The waits for them are at least this share of all that ranks waited."""


class LateTogether(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, at most half of those that make the calls, that came last to most of these together."""

    ranks: list[int]
    """Who came last."""
    others: list[int]
    """Who waited for them."""
    waited_ns: int
    """How long each of the others waited in these calls, in the mean."""
    calls: int
    """Calls that they came last to together, ..."""
    of_calls: int
    """... of so many in which any rank waited for longer than clocks and jitter explain."""


def came_last_together(splits: Sequence[Split], counts_from_ns: float) -> LateTogether | None:
    """Return the ranks that came last together to most calls of a set of ranks, where the others waited for them for
    most of all that was waited; else None. Waits count from `counts_from_ns`."""
    found = []
    total_ns = 0.0
    for ranks, places in positions_by_ranks([each.block for each in splits]).items():
        waits = np.concatenate([_waits(splits[at]) for at in places], axis=1)
        total_ns += float(waits.sum())
        own = _of_one_set(ranks, waits, counts_from_ns)
        found += [own] if own is not None else []
    most = max(found, key=lambda each: each.waited_ns * len(each.others), default=None)
    return most if most is not None and most.waited_ns * len(most.others) >= MOST_OF_WAITING * total_ns else None


def _waits(split: Split) -> Floats:
    """Return how long each rank (row) waited for others in each call (column), without what the starts explain."""
    begun = 0 if split.start_wait_ns is None else split.start_wait_ns
    waited: Floats = np.maximum(split.wait_ns - split.late_end_ns - begun, 0).astype(np.float64)
    return waited


def _of_one_set(ranks: Sequence[int], waits: Floats, counts_from_ns: float) -> LateTogether | None:
    counted = waits[:, waits.max(axis=0) > counts_from_ns]
    if counted.shape[1] < FEWEST_CALLS:
        return None
    order = np.argsort(counted.sum(axis=1), kind="stable")
    late = int(np.diff(counted.sum(axis=1)[order]).argmax()) + 1  # where the totals differ most from one to the next
    if not 1 < late <= len(ranks) // 2:
        return None
    last, others = counted[order[:late]], counted[order[late:]]
    together = others.min(axis=0) - last.max(axis=0) >= APART * counted.max(axis=0)
    if together.mean() < MOSTLY:
        return None
    return LateTogether(
        ranks=sorted(ranks[row] for row in order[:late]),
        others=sorted(ranks[row] for row in order[late:]),
        waited_ns=round(float(others[:, together].sum(axis=1).mean())),
        calls=int(together.sum()),
        of_calls=counted.shape[1],
    )
