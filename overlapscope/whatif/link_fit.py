"""How long all-reduces take for their size, from a recording in which several may share a link.

A call's own duration counts the link twice where two run at once. While k calls are under way each gets a k-th of it,
so that a call took for itself the integral of 1 / k over its time; the sum over all calls is the time of their union.
That is fair to calls of one size. A small one beside a large one waits in its queues and seems to take long: where
shares by bytes would say something else, the size tells nothing of its own, and only the sum is kept.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Floats, Ints
from overlapscope.whatif.curves import Curve, curve

BESIDE: Final = 0.8
"""Share of its time beside compute from which on a call counts as beside it."""
ALONE: Final = 0.2
LEAST_CALLS: Final = 4
"""Of either kind, to compare them."""
APART: Final = 4.0
"""Factor between sizes from which on they tell latency from bandwidth."""
FAIR: Final = 1.25
"""A size tells its time where shares by bytes give it as much, but for this factor."""
SIZES: Final = np.geomspace(1 << 10, 1 << 34, 49)
SPREAD: Final = 1.645


class Link(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the all-reduces of a recording tell of it."""

    bytes: Ints
    """Of each call, as the following: all steps behind each other."""
    own_ns: Floats
    """Time of the link that it took for itself."""
    by_bytes_ns: Floats
    """The same, had calls that ran at once shared it by their bytes."""
    beside: Floats
    """Share of it in which some member computed."""

    @property
    def told(self) -> Ints:
        """Sizes that tell how long they take, in order."""
        sizes = np.unique(self.bytes)
        pairs = [(_median(self.own_ns, self.bytes == size), _median(self.by_bytes_ns, self.bytes == size))
                 for size in sizes.tolist()]  # fmt: skip
        return sizes[[max(pair) <= FAIR * min(pair) for pair in pairs]]

    @property
    def slowed(self) -> tuple[float, float, float] | None:
        """Times that a call takes beside compute over what it takes alone: mean and 90 % interval; None if untold."""
        ratio, wide = 0.0, 0.0
        weight = 0
        for size in np.unique(self.bytes).tolist():
            here = self.bytes == size
            alone, beside = self.own_ns[here & (self.beside < ALONE)], self.own_ns[here & (self.beside > BESIDE)]
            count = min(alone.size, beside.size)
            if count < LEAST_CALLS:
                continue
            each = float(beside.mean() / alone.mean())
            error = np.hypot(
                alone.std() / alone.mean() / alone.size**0.5, beside.std() / beside.mean() / beside.size**0.5
            )
            ratio, wide, weight = ratio + each * count, wide + (each * float(error) * count) ** 2, weight + count
        if not weight:
            return None
        mean, half = ratio / weight, SPREAD * wide**0.5 / weight
        return max(mean, 1.0), max(mean - half, 1.0), max(mean + half, 1.0)


def link(bytes_: Ints, begun_ns: Floats, done_ns: Floats, computing_until_ns: Floats) -> Link:
    """Return what calls tell: `begun_ns` and `done_ns` are (step, call), and compute ends in each step at a time."""
    own, by_bytes, beside = (np.empty_like(begun_ns) for _ in range(3))
    for step in range(begun_ns.shape[0]):
        edges = np.unique(np.concatenate((begun_ns[step], done_ns[step], computing_until_ns[step : step + 1])))
        middle = (edges[1:] + edges[:-1]) / 2
        under_way = np.searchsorted(np.sort(begun_ns[step]), middle) - np.searchsorted(np.sort(done_ns[step]), middle)
        share = np.diff(edges) / np.maximum(under_way, 1)
        until = np.concatenate(([0.0], np.cumsum(share)))
        at_begin = np.interp(begun_ns[step], edges, until)
        own[step] = np.interp(done_ns[step], edges, until) - at_begin
        a_byte = np.diff(edges) / np.maximum(_bytes_under_way(bytes_, begun_ns[step], done_ns[step], middle), 1.0)
        until_byte = np.concatenate(([0.0], np.cumsum(a_byte)))
        lasted = np.interp(done_ns[step], edges, until_byte) - np.interp(begun_ns[step], edges, until_byte)
        by_bytes[step] = bytes_ * lasted
        stop = np.minimum(done_ns[step], computing_until_ns[step])
        before = np.maximum(np.interp(stop, edges, until) - at_begin, 0.0)
        beside[step] = np.divide(before, own[step], out=np.zeros_like(before), where=own[step] > 0)
    sizes = np.broadcast_to(bytes_, begun_ns.shape)
    return Link(
        bytes=sizes.ravel().astype(np.int64),
        own_ns=own.ravel(),
        by_bytes_ns=by_bytes.ravel(),
        beside=np.clip(beside.ravel(), 0, 1),
    )


def _bytes_under_way(bytes_: Ints, begun_ns: Floats, done_ns: Floats, at_ns: Floats) -> Floats:
    before = []
    for times in (begun_ns, done_ns):
        order = np.argsort(times, kind="stable")
        sums = np.concatenate(([0.0], np.cumsum(bytes_[order].astype(np.float64))))
        before.append(sums[np.searchsorted(times[order], at_ns)])
    return before[0] - before[1]


def _median(values: Floats, chosen: npt.NDArray[np.bool_]) -> float:
    return max(float(np.median(values[chosen])), 1.0)


def own_times(begun_ns: Floats, done_ns: Floats) -> Floats:
    """Return the time of their link that calls took for themselves, where those under way at once share it."""
    if not begun_ns.size:
        return begun_ns
    edges = np.unique(np.concatenate((begun_ns, done_ns)))
    middle = (edges[1:] + edges[:-1]) / 2
    under_way = np.searchsorted(np.sort(begun_ns), middle) - np.searchsorted(np.sort(done_ns), middle)
    until = np.concatenate(([0.0], np.cumsum(np.diff(edges) / np.maximum(under_way, 1))))
    own: Floats = np.interp(done_ns, edges, until) - np.interp(begun_ns, edges, until)
    return own


def transfer_curve(found: Link, slowed: float, latency_ns: float, *, ranks: int, source: str) -> Curve:
    """Return the curve of what calls take alone, where compute beside them makes them take `slowed` times as long.

    Sizes that tell their time are measured; between and around them latency and bandwidth are taken to be constant,
    which is an assumption and marked so. `latency_ns` holds where the sizes do not tell it.
    """
    alone = found.own_ns / (1 + (slowed - 1) * found.beside)
    seen = np.unique(found.bytes[alone > 0])
    times = np.array([np.median(alone[(found.bytes == size) & (alone > 0)]) for size in seen.tolist()])
    told = np.isin(seen, found.told)
    some = told if told_latency(seen[told]) else np.ones_like(told)
    base, per_byte = line(seen[some], times[some], latency_ns, told=bool(told_latency(seen[told])))
    seen, times = seen[told], times[told]
    around = SIZES[~np.isin(SIZES, seen)]
    if seen.size:
        around = around[(around < 0.8 * seen[0]) | (around > 1.25 * seen[-1])]
    all_sizes = np.concatenate((seen, around))
    return curve(
        "all_reduce",
        all_sizes,
        np.concatenate((times, base + per_byte * around)),
        ranks=ranks,
        measured=np.arange(all_sizes.size) < seen.size,
        source=source,
    )


def told_latency(sizes: Ints) -> bool:
    """Return whether sizes lie far enough apart to tell latency from bandwidth."""
    return bool(sizes.size and sizes.max() >= APART * sizes.min())


def line(sizes: Ints, times_ns: Floats, latency_ns: float, *, told: bool = True) -> tuple[float, float]:
    """Return latency in ns and ns a byte: through all sizes where they tell both, else with the latency given.

    `told` is False where the times of single sizes are not to be relied on: their sum is.
    """
    if told and told_latency(sizes):
        # Relative errors count: small calls tell the latency, large ones the bandwidth.
        weights = 1 / times_ns
        columns = np.stack((np.ones(sizes.size), sizes.astype(np.float64)), axis=1) * weights[:, None]
        (base, per_byte), *_ = np.linalg.lstsq(columns, times_ns * weights, rcond=None)
        if base >= 0 and per_byte > 0:
            return float(base), float(per_byte)
        latency_ns = 0.0 if base < 0 else latency_ns
    total = float(np.maximum(times_ns - latency_ns, times_ns / 2).sum())
    return latency_ns, total / float(sizes.sum())
