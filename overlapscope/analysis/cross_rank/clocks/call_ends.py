"""The end times of all matched calls, laid out so that numpy computes the medians of all calls and clocks at once.

With a thousand ranks there are hundreds of groups and as many clocks: there is one numpy call for all of one shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Floats, Ints

Places = npt.NDArray[Any]
"""Positions in an array, as int32 where that is enough, else int64."""
AT_ONCE: Final = 1 << 18
"""Ends that are processed at a time, so that temporary arrays stay small."""


class RankSet(msgspec.Struct, frozen=True, kw_only=True):
    """All calls that the same ranks made."""

    ranks: tuple[int, ...]
    ends: Floats
    """Nanoseconds after the reference, on each rank's own clock: rows are ranks, columns calls in order of time."""


class CallEnds(msgspec.Struct, frozen=True, kw_only=True):
    """End times of calls, with the ranks and clocks that they belong to.

    Arrays with one value a rank, such as offsets, are in the order of `ranks`.
    """

    ranks: tuple[int, ...]
    """Ascending."""
    clock: Ints
    """Number of the clock that each rank uses; ranks of one host share a clock."""
    ends: tuple[Floats, ...]
    """One array for all sets of one shape: [set, call, member]."""
    members: tuple[Ints, ...]
    """Position of each member in `ranks`: [set, member]."""
    of_rank: tuple[Places, ...]
    """Positions of each rank's ends in `times`; set by set, in order of time."""
    of_clocks: tuple[tuple[Ints, Places], ...]
    """Clocks with equally many ends, and the positions of these: [clock], [clock, end]."""

    @classmethod
    def of(cls, sets: Sequence[RankSet], hosts: Mapping[int, str]) -> Self:
        """Lay out the calls; `hosts` holds the host of each rank where it is known."""
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
        size = sum(each.ends.size for each in sets)
        place_type = np.int32 if size <= np.iinfo(np.int32).max else np.int64
        positions: list[Places] = [np.empty((0, 0), np.int64)] * len(sets)
        begin = 0
        for (count, calls), chosen in by_shape.items():
            ends.append(np.array([sets[at].ends.T for at in chosen]).reshape(len(chosen), calls, count))
            members.append(np.array([[place[rank] for rank in sets[at].ranks] for at in chosen], np.int64))
            for row, at in enumerate(chosen):
                positions[at] = (begin + (row * calls + np.arange(calls)) * count).astype(place_type)
            begin += len(chosen) * calls * count
        own: list[list[Places]] = [[] for _ in ranks]
        for each, begins in zip(sets, positions, strict=True):
            for member, rank in enumerate(each.ranks):
                own[place[rank]].append(begins + place_type(member))
        of_rank = tuple(np.concatenate(each) for each in own)
        return cls(
            ranks=tuple(ranks), clock=clock, ends=tuple(ends), members=tuple(members), of_rank=of_rank,
            of_clocks=_by_count(of_rank, clock),
        )  # fmt: skip

    @property
    def times(self) -> Floats:
        """All ends, the arrays of `ends` one after the other."""
        return np.concatenate([each.ravel() for each in self.ends])

    def behind(self, offset: Floats, drift: Floats) -> Floats:
        """Return how much later each end is than the median end of its call, in the order of `times`."""
        found = np.empty(sum(each.size for each in self.ends))
        begin = 0
        for ends, members in zip(self.ends, self.members, strict=True):
            behind = found[begin : begin + ends.size].reshape(ends.shape)
            begin += ends.size
            own_offset, own_drift = offset[members][:, None, :], drift[members][:, None, :]
            for part in _stretches(ends.shape[1], ends.shape[0] * ends.shape[2]):
                aligned = ends[:, part] - own_offset - own_drift * ends[:, part]
                behind[:, part] = aligned - _centre(aligned)
        return found

    def middles(self, values: Floats) -> Floats:
        """Return for each rank the median of its clock's values; `values` are in the order of `times`."""
        found = np.zeros(int(self.clock.max()) + 1)
        for clocks, positions in self.of_clocks:
            for part in _stretches(clocks.size, positions.shape[1]):
                found[clocks[part]] = _middle(values[positions[part]])
        return found[self.clock]

    def middle_of_clock(self, values: Floats) -> Floats:
        """Return for each rank the median over the ranks that share its clock; one value a rank."""
        found = values.copy()
        for each in np.flatnonzero(np.bincount(self.clock) > 1).tolist():
            shared = self.clock == each
            found[shared] = _middle(values[shared][None, :])[0]
        return found


def _stretches(rows: int, of_row: int) -> Iterator[slice]:
    """Yield slices of `rows` rows, each of at most about AT_ONCE values."""
    count = max(1, AT_ONCE // max(1, of_row))
    return (slice(begin, begin + count) for begin in range(0, rows, count))


def _by_count(of_rank: Sequence[Places], clock: Ints) -> tuple[tuple[Ints, Places], ...]:
    of_clock: dict[int, list[Places]] = {}
    for positions, own in zip(of_rank, clock.tolist(), strict=True):
        of_clock.setdefault(own, []).append(positions)
    by_count: dict[int, list[tuple[int, Places]]] = {}
    for own, parts in of_clock.items():
        joined = np.concatenate(parts)
        by_count.setdefault(joined.size, []).append((own, joined))
    return tuple(
        (np.array([own for own, _ in each], np.int64), np.array([positions for _, positions in each]))
        for each in by_count.values()
    )


def _centre(ends: Floats) -> Floats:
    """Return the median of each call's ends. For so few values, sorting takes a quarter of the time of a partition."""
    half = ends.shape[2] // 2
    ordered = np.sort(ends, axis=2) if ends.shape[2] > 2 else ends
    upper: Floats = ordered[:, :, half : half + 1]
    return upper if ends.shape[2] % 2 else (ordered[:, :, half - 1 : half] + upper) / 2


def _middle(rows: Floats) -> Floats:
    """Return the median of each row, faster than `np.median`, which also handles cases that do not occur here."""
    half = rows.shape[1] // 2
    parted = np.partition(rows, half, axis=1)  # for two positions at once, numpy takes five times as long
    upper: Floats = parted[:, half]
    return upper if rows.shape[1] % 2 else (parted[:, :half].max(axis=1) + upper) / 2
