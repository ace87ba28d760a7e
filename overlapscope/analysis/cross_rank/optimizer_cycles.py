"""Cut recordings without marks of steps after the kernels of the optimizer, where these repeat alike on all ranks."""

from collections import Counter
from functools import partial
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import NOT_AN_UPDATE, family_of
from overlapscope.timeline.columns import COMPUTE, NONE, Codes, Flags, Ints, size
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import largest_by, sort_order
from overlapscope.timeline.run import RankTimeline, Run

TOGETHER: Final = 0.05
"""Ranks end their optimizers together if these ends differ, on one clock, by at most this share of the shortest cycle.
A choice: gradients are exchanged before, so that ranks of a step differ by little more than the optimizer does."""
FEWEST_PRODUCTS: Final = 2
"""A step has at least so many matrix products, one of forward and one of backward."""
OF_A_PRODUCT: Final = "splitKreduce"
"""Name of a kernel that adds up the parts of a product; the library divides it now and then, by its size."""


class _Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did from the end of an optimizer to the end of the next one, or after the last one."""

    kernels: int
    """All kernels of compute."""
    products: int
    """Those of matrix products: forward and backward have some."""
    updates: tuple[str, ...]
    """Names of the optimizer's kernels, in their order."""
    calls: Counter[str]
    """How many collectives of each operation began."""

    def is_like(self, other: "_Cycle") -> bool:
        """Return whether both have the same kernels of the optimizer, and as many products and collectives."""
        own, others = ((each.products, each.updates, each.calls) for each in (self, other))
        return own == others


class _Cycles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The cycles of a rank, and what follows the last one: its kernels and calls, in order of their begins."""

    names: tuple[str, ...]
    ends_ns: Ints
    """Ends of the cycles, and of the recording."""
    start_ns: int
    update: Codes
    """Names of the optimizer's kernels."""
    op: Codes
    """Operations of the calls."""
    kernels: Ints
    """How many kernels, products, kernels of the optimizer and calls there are before each cycle, and in all."""
    products: Ints
    updates: Ints
    calls: Ints

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Begin and end of each cycle, and of what follows."""
        ends = self.ends_ns.tolist()
        return list(zip([self.start_ns, *ends], ends, strict=False))

    def cycle(self, at: int) -> _Cycle:
        """Return a cycle; counted from the end where negative."""
        at %= self.ends_ns.size
        return _Cycle(
            kernels=int(self.kernels[at + 1] - self.kernels[at]),
            products=int(self.products[at + 1] - self.products[at]),
            updates=tuple(self._named(self.update[self.updates[at] : self.updates[at + 1]])),
            calls=Counter(self._named(self.op[self.calls[at] : self.calls[at + 1]])),
        )

    def _named(self, codes: Codes) -> list[str]:
        return [self.names[code] if code != NONE else "" for code in codes.tolist()]

    def all_like(self, like: _Cycle) -> bool:
        """Return whether all cycles are alike; the first may be cut, and so is what follows the last one: neither has
        more matrix products."""
        most = max(self.cycle(0).products, self.cycle(-1).products)
        return most <= like.products and all(self.cycle(at).is_like(like) for at in range(1, self.ends_ns.size - 1))

    def begins_whole(self) -> bool:
        """Return whether the first cycle has all that the others have, with what followed the last optimizer in its
        step: else the recording may have begun within a step."""
        if self.ends_ns.size < 3:
            return False
        first, rest, others = self.cycle(0), self.cycle(-1), self.cycle(1)
        if first.updates != others.updates:
            return False
        calls, kernels = (Counter[str](), 0) if rest.products else (rest.calls, rest.kernels)
        fewest = int(np.diff(self.kernels)[1:-1].min())
        return first.calls + calls == others.calls and first.kernels + kernels >= fewest


def optimizer_cycles(run: Run, clocks: Clocks) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return, for each rank, its time from one end of the optimizer to the next, in ns on its own clock.

    Empty unless all ranks have as many of these cycles, in each the same kernels of the optimizer, in one order, and as
    many matrix products and collectives, and end them together. So several optimizers differ, as a generator's and
    a discriminator's, unless these do as much; and so do those that run within backward, as one of them follows
    forward, unless none was recorded. A first cycle that is cut is left out; what follows the last optimizer is none.
    """
    found: dict[int, _Cycles] = {}
    like: _Cycle | None = None
    for rank, timeline in run.ranks.items():
        own = _cycles(timeline.at_hand())
        if own is None:
            return {}
        like = like or own.cycle(-2)
        if like.products < FEWEST_PRODUCTS or not own.all_like(like):
            return {}
        found[rank] = own
    first = 0 if all(each.begins_whole() for each in found.values()) else 1
    windows = {rank: tuple(own.windows[first:-1]) for rank, own in found.items()}
    if len(set(map(len, windows.values()))) != 1 or not all(windows.values()) or not clocks.comparable(list(windows)):
        return {}
    ends = [clocks.aligned(rank, np.array(own, np.int64)[:, 1]) for rank, own in windows.items()]
    shortest_ns = min(end - start for own in windows.values() for start, end in own)
    return windows if np.ptp(np.array(ends), axis=0).max() <= TOGETHER * shortest_ns else {}


def own_cycle_ends(timeline: RankTimeline) -> Ints:
    """Return when the optimizers of a rank without marks of steps ended on its device, ascending, in ns on its own
    clock; empty where steps are marked, and where the cycles of this rank are not alike, as above."""
    own = None if size(timeline.steps) else _cycles(timeline.at_hand())
    like = None if own is None else own.cycle(-2)
    if own is None or like is None or like.products < FEWEST_PRODUCTS or not own.all_like(like):
        return np.empty(0, np.int64)
    return own.ends_ns[:-1]


def _cycles(timeline: RankTimeline) -> _Cycles | None:
    """Return a rank's cycles; None without kernels of an optimizer, and of several recordings.

    Two of these kernels are of one optimizer unless there are products between them.
    """
    spans, calls = timeline.spans, timeline.collectives
    computes = np.flatnonzero(spans.kind == COMPUTE)
    computes = computes[sort_order(spans.start_ns[computes])]
    updates = in_optimizer(timeline, computes) | rows_named(spans.name[computes], timeline.names, _is_update)
    if not timeline.has_device or size(timeline.recordings) != 1 or not updates.any():
        return None
    products = ~updates & rows_named(spans.name[computes], timeline.names, _is_product)
    before, own = np.cumsum(products)[updates], computes[updates]
    which = np.cumsum(np.append(0, before[1:] != before[:-1]))
    ends = np.maximum.accumulate(largest_by(which, spans.end_ns[own], int(which[-1]) + 1))
    made = np.flatnonzero(calls.start_ns != NONE)
    made = made[sort_order(calls.start_ns[made])]
    begun = partial(_before, starts_ns=spans.start_ns[computes], ends_ns=ends)
    return _Cycles(
        names=timeline.names,
        start_ns=int(spans.start_ns.min()),
        ends_ns=np.append(ends, spans.end_ns.max()),
        update=spans.name[own],
        op=calls.op[made],
        kernels=begun(),
        products=begun(of=products),
        updates=np.append(np.searchsorted(which, np.arange(ends.size + 1)), own.size),
        calls=_before(calls.start_ns[made], ends),
    )


def _before(starts_ns: Ints, ends_ns: Ints, of: Flags | None = None) -> Ints:
    """Return how many have begun before each cycle, and in all; of them, where that is asked."""
    cuts = np.concatenate([[0], np.searchsorted(starts_ns, ends_ns, side="right"), [starts_ns.size]])
    return cuts if of is None else np.append(0, np.cumsum(of))[cuts]


def _is_update(name: str) -> bool:
    return family_of(name) == "optimizer" and NOT_AN_UPDATE.search(name) is None


def _is_product(name: str) -> bool:
    return family_of(name) == "matrix products" and OF_A_PRODUCT not in name
