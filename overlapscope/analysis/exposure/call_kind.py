"""The key by which two calls count as the same collective, in one run or in two, and amounts summed by that key."""

from typing import Self

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Ints, or_none
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline


class CallKind(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One kind of call. The algorithm is not part of the key: the same collective may run with another one."""

    op: str
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    bytes: int | None = None
    dimension: str | None = None
    phase: str | None = None
    module: str | None = None


class CallFields(msgspec.Struct, kw_only=True, frozen=True):
    """A kind of call in a JSON document: the fields of `CallKind`."""

    op: str
    group: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None
    """Bytes of one call; null where they are not known, or vary from call to call."""
    dimension: str | None
    phase: str | None
    module: str | None


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one rank by kind of call and step, as triples (kind, column, amount).

    Not as a matrix: calls of uneven size can make as many kinds as there are calls.
    """

    kinds: tuple[CallKind | None, ...]
    """None stands for communication that belongs to no collective."""
    kind: Ints
    column: Ints
    amount: Ints

    @classmethod
    def of(cls, kinds: tuple[CallKind | None, ...], kind: Ints, column: Ints, amount: Ints) -> Self:
        """Sum the amounts of the same kind and column."""
        width = int(column.max(initial=0)) + 1
        keys, place = np.unique(kind * width + column, return_inverse=True)
        sums = np.zeros(keys.size, np.int64)
        np.add.at(sums, place.reshape(-1), amount)
        some = sums != 0
        return cls(kinds=kinds, kind=keys[some] // width, column=keys[some] % width, amount=sums[some])

    def within(self, columns: Ints) -> "Shares":
        """Return only these columns (ascending), renumbered from 0."""
        chosen = np.isin(self.column, columns)
        column = np.searchsorted(columns, self.column[chosen])
        return replace(self, kind=self.kind[chosen], column=column, amount=self.amount[chosen])

    def totals(self) -> dict[CallKind | None, int]:
        """Return the sum over all steps of each kind."""
        sums = np.zeros(len(self.kinds), np.int64)
        np.add.at(sums, self.kind, self.amount)
        return {self.kinds[at]: int(sums[at]) for at in np.flatnonzero(sums).tolist()}


def call_kinds(timeline: RankTimeline) -> tuple[tuple[CallKind, ...], Ints]:
    """Return the kinds of call of a rank, and the number of the kind of each of its calls."""
    calls, name = timeline.collectives, timeline.name
    names_and_sizes = (calls.op, calls.group, calls.group_size, calls.dtype, calls.bytes)
    columns = [column.astype(np.int64) for column in (*names_and_sizes, calls.dimension, calls.phase, calls.module)]
    kind_of, first = factorize_rows(columns)
    keys = zip(*(column[first].tolist() for column in columns), strict=True)
    kinds = tuple(
        CallKind(
            op=name(op) or "unknown",
            group=name(group),
            group_size=or_none(members),
            dtype=name(dtype),
            bytes=or_none(volume),
            dimension=name(dimension),
            phase=name(phase),
            module=name(module),
        )
        for op, group, members, dtype, volume, dimension, phase, module in keys
    )
    return kinds, kind_of
