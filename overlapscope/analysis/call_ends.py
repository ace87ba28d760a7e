"""The ends of all matched calls, laid out so that the middle of every call and of every clock is taken at once.

With a thousand ranks there are hundreds of groups and as many clocks: numpy is asked once for all of one shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSet:
    """All calls of the same ranks."""

    ranks: tuple[int, ...]
    ends: Reals
    """Distance from the reference, on the rank's own clock: a row for each rank, in order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnds:
    """Ends of calls, and whose they are. Values of ranks, as offsets, stand in the order of `ranks`."""

    ranks: tuple[int, ...]
    """Ascending."""
    clock: Ints
    """Number of the clock that each rank goes by; those of one host share it."""
    ends: tuple[Reals, ...]
    """One array for all sets of one shape: [set, call, member]."""
    members: tuple[Ints, ...]
    """Place of each member in `ranks`: [set, member]."""
    of_rank: tuple[Ints, ...]
    """Positions of each rank's ends in all ends, one array after the other; set by set, in order of time."""
    of_clocks: tuple[tuple[Ints, Ints], ...]
    """Clocks with equally many ends, and the positions of each one's: [clock], [clock, end]."""

    @classmethod
    def of(cls, sets: Sequence[RankSet], hosts: Mapping[int, str]) -> Self:
        """Lay out the calls; `hosts` names the host of ranks where it is known."""
        ranks = sorted({rank for each in sets for rank in each.ranks})
        place = {rank: at for at, rank in enumerate(ranks)}
        first: dict[str, int] = {}
        _, clock = np.unique(
            [first.setdefault(hosts[rank], at) if rank in hosts else at for at, rank in enumerate(ranks)],
            return_inverse=True,
        )
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for at, each in enumerate(sets):
            by_shape.setdefault(each.ends.shape, []).append(at)
        ends, members = [], []
        positions: list[Ints] = [np.empty((0, 0), np.int64)] * len(sets)
        begin = 0
        for (count, calls), chosen in by_shape.items():
            ends.append(np.array([sets[at].ends.T for at in chosen]).reshape(len(chosen), calls, count))
            members.append(np.array([[place[rank] for rank in sets[at].ranks] for at in chosen], np.int64))
            for row, at in enumerate(chosen):
                positions[at] = begin + (row * calls + np.arange(calls)) * count
            begin += len(chosen) * calls * count
        own: list[list[Ints]] = [[] for _ in ranks]
        for each, begins in zip(sets, positions, strict=True):
            for member, rank in enumerate(each.ranks):
                own[place[rank]].append(begins + member)
        of_rank = tuple(np.concatenate(each) for each in own)
        return cls(
            ranks=tuple(ranks), clock=clock, ends=tuple(ends), members=tuple(members), of_rank=of_rank,
            of_clocks=_by_count(of_rank, clock),
        )  # fmt: skip

    @property
    def times(self) -> Reals:
        """All ends, one array after the other."""
        return np.concatenate([each.ravel() for each in self.ends])

    def behind(self, offset: Reals, drift: Reals) -> Reals:
        """Give how far each end lies behind the centre of its call, in the order of `times`."""
        found = []
        for ends, members in zip(self.ends, self.members, strict=True):
            aligned = ends - offset[members][:, None, :] - drift[members][:, None, :] * ends
            found.append((aligned - _centre(aligned)).ravel())
        return np.concatenate(found)

    def middles(self, values: Reals) -> Reals:
        """Give for each rank the median of its clock's values, which stand in the order of `times`."""
        found = np.zeros(int(self.clock.max()) + 1)
        for clocks, positions in self.of_clocks:
            found[clocks] = _middle(values[positions])
        return found[self.clock]

    def middle_of_clock(self, values: Reals) -> Reals:
        """Give for each rank the median of its clock's ranks' values."""
        found = values.copy()
        for each in np.flatnonzero(np.bincount(self.clock) > 1).tolist():
            shared = self.clock == each
            found[shared] = _middle(values[shared][None, :])[0]
        return found


def _by_count(of_rank: Sequence[Ints], clock: Ints) -> tuple[tuple[Ints, Ints], ...]:
    of_clock: dict[int, list[Ints]] = {}
    for positions, own in zip(of_rank, clock.tolist(), strict=True):
        of_clock.setdefault(own, []).append(positions)
    by_count: dict[int, list[tuple[int, Ints]]] = {}
    for own, parts in of_clock.items():
        joined = np.concatenate(parts)
        by_count.setdefault(joined.size, []).append((own, joined))
    return tuple(
        (np.array([own for own, _ in each], np.int64), np.array([positions for _, positions in each]))
        for each in by_count.values()
    )


def _centre(ends: Reals) -> Reals:
    """Give the median of each call's ends. Sorted as a whole: of so few, that takes a quarter of finding the middle."""
    half = ends.shape[2] // 2
    ordered = np.sort(ends, axis=2) if ends.shape[2] > 2 else ends
    upper: Reals = ordered[:, :, half : half + 1]
    return upper if ends.shape[2] % 2 else (ordered[:, :, half - 1 : half] + upper) / 2


def _middle(rows: Reals) -> Reals:
    """Give the median of each row; numpy's own looks out for much that is not here."""
    half = rows.shape[1] // 2
    parted = np.partition(rows, half, axis=1)  # for two places at once, numpy takes five times as long
    upper: Reals = parted[:, half]
    return upper if rows.shape[1] % 2 else (parted[:, :half].max(axis=1) + upper) / 2
