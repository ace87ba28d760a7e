"""Clock offsets between ranks, from the ends of matched collectives, which members share within tens of microseconds.

Offsets are what a rank's clock shows more than the middle one of those it is connected with: the one nearest to all
others (of two, the lower rank's), so that one rank's wrong clock shows as its own. They are joint over the graph of
groups: each is the median distance of the rank's ends to the centre of their calls, repeated until it rests.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.matching import Matched
from overlapscope.timeline.columns import Ints

ROUNDS = 50
RESTS_WITHIN_NS = 1.0
DRIFT_CALLS = 30
"""Drift is told only from this many calls of a rank ..."""
DRIFT_NOISES = 4.0
"""... and when it moves the clock by this many times the scatter of the ends over the recording."""
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Offset and drift of each rank that shares calls with another; `reference_ns` is where drift is nought."""

    offset_ns: Mapping[int, float] = field(default_factory=dict)
    drift: Mapping[int, float] = field(default_factory=dict)
    """Nanoseconds gained a nanosecond."""
    reference_ns: int = 0
    residual_ns: float | None = None
    """Median distance of an end to the centre of its call, on aligned clocks."""

    def aligned(self, rank: int, time_ns: Ints) -> Reals:
        """Give times of a rank on the common clock, as distances from `reference_ns`."""
        moved = (time_ns - self.reference_ns).astype(np.float64)
        drifted: Reals = moved - self.offset_ns.get(rank, 0.0) - self.drift.get(rank, 0.0) * moved
        return drifted

    def ends(self, block: Matched) -> Reals:
        """Give the ends of a block's calls on the common clock."""
        return np.array([self.aligned(rank, times) for rank, times in zip(block.ranks, block.end_ns, strict=True)])

    def starts(self, block: Matched) -> Reals:
        """Give the starts likewise."""
        return np.array([self.aligned(rank, times) for rank, times in zip(block.ranks, block.start_ns, strict=True)])

    def spread_ns(self, block: Matched) -> Ints:
        """Give how far apart the ends of each call lie."""
        ends = self.ends(block)
        apart: Ints = np.rint(ends.max(axis=0) - ends.min(axis=0)).astype(np.int64)
        return apart


def clock_offsets(blocks: Sequence[Matched], hosts: Mapping[int, str] | None = None) -> Clocks:
    """Give the clocks of all ranks that share a matched call with another.

    `hosts` names the host of ranks where it is known: ranks of one host share its clock.
    """
    if not blocks:
        return Clocks()
    reference = int(min(block.end_ns.min() for block in blocks))
    offsets = _first_guess(blocks)
    sharing = _sharing(offsets, hosts or {})
    clocks = Clocks(offset_ns=_one_a_host(offsets, sharing), reference_ns=reference)
    for _ in range(ROUNDS):
        behind = _distances(blocks, clocks)
        moves = {rank: float(np.median(np.concatenate([behind[each] for each in sharing[rank]]))) for rank in behind}
        offsets = {rank: offset + moves[rank] for rank, offset in clocks.offset_ns.items()}
        clocks = Clocks(offset_ns=offsets, reference_ns=reference)
        if max(map(abs, moves.values())) < RESTS_WITHIN_NS:
            break
    drift = _one_a_host(_drifts(blocks, clocks), sharing)
    if any(drift.values()):
        offsets = _one_a_host(_undrifted(blocks, clocks, drift), sharing)
        clocks = Clocks(offset_ns=offsets, drift=drift, reference_ns=reference)
    far = np.concatenate([np.abs(each) for each in _distances(blocks, clocks).values()])
    shown = _from_the_middle(blocks, clocks.offset_ns)
    return Clocks(offset_ns=shown, drift=clocks.drift, reference_ns=reference, residual_ns=float(np.median(far)))


def _sharing(ranks: Iterable[int], hosts: Mapping[int, str]) -> dict[int, list[int]]:
    """Give, for each rank, those that share its clock, itself among them."""
    known = list(ranks)
    return {
        rank: [each for each in known if each == rank or (rank in hosts and hosts.get(each) == hosts[rank])]
        for rank in known
    }


def _one_a_host(values: Mapping[int, float], sharing: Mapping[int, Sequence[int]]) -> dict[int, float]:
    return {rank: float(np.median([values[each] for each in sharing[rank]])) for rank in values}


def _first_guess(blocks: Sequence[Matched]) -> dict[int, float]:
    """Walk the graph of groups from each component's lowest rank, by median distances of ends."""
    beside: dict[int, list[Matched]] = {}
    for block in blocks:
        for rank in block.ranks:
            beside.setdefault(rank, []).append(block)
    offsets: dict[int, float] = {}
    for start in sorted(beside):
        if start in offsets:
            continue
        offsets[start] = 0.0
        queue = deque([start])
        while queue:
            rank = queue.popleft()
            for block in beside[rank]:
                own = block.end_ns[block.ranks.index(rank)]
                for at, other in enumerate(block.ranks):
                    if other not in offsets:
                        offsets[other] = offsets[rank] + float(np.median(block.end_ns[at] - own))
                        queue.append(other)
    return offsets


def _distances(blocks: Sequence[Matched], clocks: Clocks) -> dict[int, Reals]:
    """Give, for each rank, how far its ends lie behind the centre of their calls."""
    found: dict[int, list[Reals]] = {}
    for block in blocks:
        ends = clocks.ends(block)
        far = ends - np.median(ends, axis=0)
        for rank, row in zip(block.ranks, far, strict=True):
            found.setdefault(rank, []).append(row)
    return {rank: np.concatenate(rows) for rank, rows in found.items()}


def _drifts(blocks: Sequence[Matched], clocks: Clocks) -> dict[int, float]:
    """Give the drift of each rank whose ends wander off steadily; 0 for the others.

    The slope is the median over pairs of calls of the first and last third (a Theil-Sen estimate of fewer pairs), so
    that single late ends do not turn it.
    """
    far = _distances(blocks, clocks)
    at: dict[int, list[Reals]] = {}
    for block in blocks:
        for rank, times in zip(block.ranks, block.end_ns, strict=True):
            at.setdefault(rank, []).append((times - clocks.reference_ns).astype(np.float64))
    drifts = {}
    for rank, rows in at.items():
        times, distances = np.concatenate(rows), far[rank]
        order = np.argsort(times, kind="stable")
        times, distances = times[order], distances[order]
        drifts[rank] = 0.0
        third = times.size // 3
        if times.size < DRIFT_CALLS:
            continue
        apart = times[-third:] - times[:third]
        slope = float(np.median((distances[-third:] - distances[:third]) / np.maximum(apart, 1.0)))
        rest = distances - slope * times
        scatter = float(np.median(np.abs(rest - np.median(rest))))
        if abs(slope) * (times[-1] - times[0]) > DRIFT_NOISES * max(scatter, 1.0):
            drifts[rank] = slope
    return drifts


def _undrifted(blocks: Sequence[Matched], clocks: Clocks, drift: Mapping[int, float]) -> dict[int, float]:
    """Give the offsets at the reference time, once drift is taken out."""
    moved = Clocks(offset_ns=clocks.offset_ns, drift=drift, reference_ns=clocks.reference_ns)
    far = _distances(blocks, moved)
    return {rank: offset + float(np.median(far[rank])) for rank, offset in clocks.offset_ns.items()}


def _from_the_middle(blocks: Sequence[Matched], offsets: Mapping[int, float]) -> dict[int, float]:
    """Count the offsets of each connected set of ranks from its middle clock: the one nearest to all others."""
    lowest = {rank: rank for rank in offsets}
    changed = True
    while changed:
        changed = False
        for block in blocks:
            least = min(lowest[rank] for rank in block.ranks)
            for rank in block.ranks:
                changed = changed or lowest[rank] != least
                lowest[rank] = least
    shown = {}
    for first in sorted(set(lowest.values())):
        members = [rank for rank in sorted(offsets) if lowest[rank] == first]
        values = np.array([offsets[rank] for rank in members])
        order = np.argsort(values, kind="stable")
        middle = values[min(order[(values.size - 1) // 2], order[values.size // 2])]
        shown.update({rank: float(value - middle) for rank, value in zip(members, values, strict=True)})
    return dict(sorted(shown.items()))
