"""Measure how long all-reduces take for their size, in a recording in which several may share a link.

The duration of a call counts the link twice where two run at once. While k calls run, each gets 1 / k of the link; the
link time of a call is the integral of 1 / k over its duration, and the sum over all calls is the time of their union.
This is right for calls of one size. A small call beside a large one waits in its queues and seems to take long: where
shares by bytes give another result, the time of that size is not reliable, and only the sum over sizes is used.
"""

from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import Flags, Floats, Ints
from overlapscope.whatif.cost.curves import Curve, curve

BESIDE: Final = 0.8
"""Least share of its time beside compute for a call to count as beside compute."""
ALONE: Final = 0.2
"""Largest share of its time beside compute for a call to count as alone."""
LEAST_CALLS: Final = 4
"""Least calls beside compute, and alone, to compare them."""
SIZES_APART: Final = 4.0
"""Least factor between the largest and smallest size to separate latency from bandwidth."""
RELIABLE: Final = 1.25
"""The time of a size is reliable where shares by bytes give the same time within this factor."""
SIZES: Final = np.geomspace(1 << 10, 1 << 34, 49)
SPREAD: Final = 1.645
"""Standard errors to each side of a 90 % interval."""


class LinkTimes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Link times of the all-reduces of a recording; one entry a call, all steps one after the other."""

    bytes: Ints
    """Size of each call."""
    own_ns: Floats
    """Link time of the call, where calls that ran at once share the link equally."""
    by_bytes_ns: Floats
    """Link time of the call, where they share the link by their bytes."""
    beside: Floats
    """Share of the link time in which a member computed."""

    @property
    def reliable_sizes(self) -> Ints:
        """Sizes whose time is reliable, ascending."""
        sizes = np.unique(self.bytes)
        pairs = [(_median(self.own_ns, self.bytes == size), _median(self.by_bytes_ns, self.bytes == size))
                 for size in sizes.tolist()]  # fmt: skip
        return sizes[[max(pair) <= RELIABLE * min(pair) for pair in pairs]]

    @property
    def slowed(self) -> tuple[float, float, float] | None:
        """Time of a call beside compute over its time alone: mean, low, high (90 % interval); None if not measured."""
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


def link_times(bytes_: Ints, begun_ns: Floats, done_ns: Floats, computing_until_ns: Floats) -> LinkTimes:
    """Return the link times of calls. `begun_ns` and `done_ns` have shape (step, call); `computing_until_ns` is when
    compute ended, by step.
    """
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
    return LinkTimes(
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


def _median(values: Floats, chosen: Flags) -> float:
    return max(float(np.median(values[chosen])), 1.0)


def own_times(begun_ns: Floats, done_ns: Floats) -> Floats:
    """Return the link time of each call, where calls that run at once share the link equally."""
    if not begun_ns.size:
        return begun_ns
    edges = np.unique(np.concatenate((begun_ns, done_ns)))
    middle = (edges[1:] + edges[:-1]) / 2
    under_way = np.searchsorted(np.sort(begun_ns), middle) - np.searchsorted(np.sort(done_ns), middle)
    until = np.concatenate(([0.0], np.cumsum(np.diff(edges) / np.maximum(under_way, 1))))
    own: Floats = np.interp(done_ns, edges, until) - np.interp(begun_ns, edges, until)
    return own


def transfer_curve(found: LinkTimes, slowed: float, latency_ns: float, *, ranks: int, source: str) -> Curve:
    """Return the curve of call times without compute beside them; compute makes calls take `slowed` times as long.

    Points of reliable sizes are measured; around them latency and bandwidth are assumed to be constant, and those
    points are marked as assumed. `latency_ns` is used where the sizes do not determine the latency.
    """
    alone = found.own_ns / (1 + (slowed - 1) * found.beside)
    seen = np.unique(found.bytes[alone > 0])
    times = np.array([np.median(alone[(found.bytes == size) & (alone > 0)]) for size in seen.tolist()])
    reliable = np.isin(seen, found.reliable_sizes)
    some = reliable if determines_latency(seen[reliable]) else np.ones_like(reliable)
    base, per_byte = fit_line(seen[some], times[some], latency_ns, reliable=determines_latency(seen[reliable]))
    seen, times = seen[reliable], times[reliable]
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


def determines_latency(sizes: Ints) -> bool:
    """Return whether sizes differ enough to separate latency from bandwidth."""
    return bool(sizes.size and sizes.max() >= SIZES_APART * sizes.min())


def fit_line(sizes: Ints, times_ns: Floats, latency_ns: float, *, reliable: bool = True) -> tuple[float, float]:
    """Return latency in ns and ns per byte: fitted to all sizes where they determine both, else with the given latency.

    `reliable` is False where the times of single sizes are not reliable; their sum is.
    """
    if reliable and determines_latency(sizes):
        # Minimise relative errors: small calls determine the latency, large ones the bandwidth.
        weights = 1 / times_ns
        columns = np.stack((np.ones(sizes.size), sizes.astype(np.float64)), axis=1) * weights[:, None]
        (base, per_byte), *_ = np.linalg.lstsq(columns, times_ns * weights, rcond=None)
        if base >= 0 and per_byte > 0:
            return float(base), float(per_byte)
        latency_ns = 0.0 if base < 0 else latency_ns
    total = float(np.maximum(times_ns - latency_ns, times_ns / 2).sum())
    return latency_ns, total / float(sizes.sum())
