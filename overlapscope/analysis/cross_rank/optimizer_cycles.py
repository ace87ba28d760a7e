"""Cut recordings without marks of steps after the kernels of the optimizer, where these repeat alike on all ranks."""

from collections import Counter
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import NOT_AN_UPDATE, family_of
from overlapscope.timeline.columns import COMPUTE, NONE, size
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import largest_by, sort_order
from overlapscope.timeline.run import RankTimeline, Run

TOGETHER: Final = 0.05
"""Ranks end their optimizers together if these ends differ, on one clock, by at most this share of the shortest cycle.
A choice: gradients are exchanged before, so that ranks of a step differ by little more than the optimizer does."""


class _Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did from the end of an optimizer to the end of the next one, or after the last one."""

    window: tuple[int, int]
    kernels: int
    """All kernels of compute."""
    products: int
    """Those of matrix products: forward and backward have some."""
    updates: tuple[str, ...]
    """Names of the optimizer's kernels, in their order."""
    calls: Counter[str]
    """How many collectives of each operation began."""

    def is_like(self, other: "_Cycle") -> bool:
        """Return whether both have the same kernels of the optimizer, and as many collectives."""
        return (self.updates, self.calls) == (other.updates, other.calls)


def optimizer_cycles(run: Run, clocks: Clocks) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return, for each rank, its time from one end of the optimizer to the next, in ns on its own clock.

    Empty unless all ranks have as many of these cycles, in each the same kernels of the optimizer, in one order, and as
    many collectives, and end them together: several optimizers, and those that run within backward, differ. A first
    cycle that is cut is left out; what follows the last optimizer is none.
    """
    found: dict[int, list[_Cycle]] = {}
    like: _Cycle | None = None
    for rank, timeline in run.ranks.items():
        found[rank] = own = _cycles(timeline.at_hand())
        like = like or (own[-2] if own else None)
        if like is None or not own or not all(each.is_like(like) for each in own[1:-1]):
            return {}
    first = 0 if all(map(_begins_whole, found.values())) else 1
    windows = {rank: tuple(each.window for each in own[first:-1]) for rank, own in found.items()}
    if len(set(map(len, windows.values()))) != 1 or not all(windows.values()) or not clocks.comparable(list(windows)):
        return {}
    ends = [clocks.aligned(rank, np.array(own, np.int64)[:, 1]) for rank, own in windows.items()]
    shortest_ns = min(end - start for own in windows.values() for start, end in own)
    return windows if np.ptp(np.array(ends), axis=0).max() <= TOGETHER * shortest_ns else {}


def _begins_whole(own: list[_Cycle]) -> bool:
    """Return whether the first cycle has all that the others have, with what followed the last optimizer in its step:
    else the recording may have begun within a step."""
    first, *others, rest = own
    if not others or first.updates != others[0].updates:
        return False
    calls, kernels = (Counter[str](), 0) if rest.products else (rest.calls, rest.kernels)
    return first.calls + calls == others[0].calls and first.kernels + kernels >= min(each.kernels for each in others)


def _cycles(timeline: RankTimeline) -> list[_Cycle]:
    """Return a rank's cycles, and what follows the last one; empty without kernels of an optimizer, and of several
    recordings.

    Two of these kernels are of one optimizer unless there are products between them.
    """
    spans, calls = timeline.spans, timeline.collectives
    computes = np.flatnonzero(spans.kind == COMPUTE)
    computes = computes[sort_order(spans.start_ns[computes])]
    updates = in_optimizer(timeline, computes) | rows_named(spans.name[computes], timeline.names, _is_update)
    if not timeline.has_device or size(timeline.recordings) != 1 or not updates.any():
        return []
    products = ~updates & rows_named(spans.name[computes], timeline.names, _is_product)
    before, own = np.cumsum(products)[updates], computes[updates]
    which = np.cumsum(np.append(0, before[1:] != before[:-1]))
    ends = largest_by(which, spans.end_ns[own], int(which[-1]) + 1)
    cuts = [int(spans.start_ns.min()), *ends.tolist(), int(spans.end_ns.max())]
    of_computes, of_calls = (np.searchsorted(ends, each, side="right") for each in (
        spans.start_ns[computes], calls.start_ns))  # fmt: skip
    names = np.array([*timeline.names, ""], np.object_)  # -1 is no name
    return [
        _Cycle(
            window=window,
            kernels=int(np.count_nonzero(of_computes == at)),
            products=int(np.count_nonzero(products & (of_computes == at))),
            updates=tuple(names[spans.name[own[which == at]]].tolist()),
            calls=Counter(names[calls.op[(of_calls == at) & (calls.start_ns != NONE)]].tolist()),
        )
        for at, window in enumerate(pairwise(cuts))
    ]


def _is_update(name: str) -> bool:
    return family_of(name) == "optimizer" and NOT_AN_UPDATE.search(name) is None


def _is_product(name: str) -> bool:
    return family_of(name) == "matrix products"
