"""Pack tables in memory: integers in as few bytes as their range needs, times as differences.

A row of a call takes about a sixth of its plain size, a row of a span about a third. Every value is restored exactly.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.files.spill import ArrayInMemory, SpilledArray, SpillStore, make_without_fields
from overlapscope.timeline.columns import MISSING, NONE, Collectives, Columns, Ints, T, column_kinds
from overlapscope.timeline.intervals import EMPTY, Intervals

NARROW_DTYPES: Final = (np.uint8, np.uint16, np.uint32)
BASE_COLUMN: Final = "start_ns"
"""The column that is kept by the differences from row to row ..."""
RELATIVE_COLUMNS: Final = frozenset({"end_ns", "launch_ns"})
"""... and those that are kept by their distance from it."""


class PackedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of integers."""

    rows: int
    low: int
    """The least value; the only one where there are no `places`."""
    places: SpilledArray | None
    """How far each value lies above; where some are missing, 0 is missing and 1 is the least."""
    missing: int | None
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, values: npt.NDArray[Any], missing: int) -> Self:
        """Pack a column of integers in which `missing` stands for what is missing."""
        rows, dtype = values.size, values.dtype
        if not rows:
            return cls(rows=0, low=0, places=None, missing=None, dtype=dtype)
        low, high = int(values.min()), int(values.max())
        if low == high:
            return cls(rows=rows, low=low, places=None, missing=None, dtype=dtype)
        lacks = low == missing
        if lacks:
            there = values != missing
            low = int(values[there].min())
        narrow = next((each for each in NARROW_DTYPES if high - low + lacks <= np.iinfo(each).max), None)
        if narrow is None or np.dtype(narrow).itemsize >= dtype.itemsize:
            return cls(rows=rows, low=0, places=ArrayInMemory(values.copy()), missing=None, dtype=dtype)
        places = (values - dtype.type(low - lacks)).astype(narrow)
        if lacks:
            places *= there
        return cls(
            rows=rows, low=low - lacks, places=ArrayInMemory(places), missing=missing if lacks else None, dtype=dtype
        )

    def values(self) -> npt.NDArray[Any]:
        """Return the column as it was."""
        if self.places is None:
            return np.broadcast_to(self.dtype.type(self.low), (self.rows,))
        places = self.places.values()
        found: npt.NDArray[Any] = places.astype(self.dtype)
        if self.low or self.missing is not None:
            found += self.dtype.type(self.low)
        if self.missing is not None:
            found[places == 0] = self.missing
        return found

    def put_aside(self, aside: SpillStore) -> Self:
        """Return the same column, its values put aside."""
        return self if self.places is None else replace(self, places=aside.put(self.places.values()))


class PackedIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """Sorted, disjoint intervals by what lies in and between them."""

    first: int
    lengths: PackedColumn
    gaps: PackedColumn
    """Between each and the next."""

    @classmethod
    def of(cls, plain: Intervals) -> Self:
        """Pack intervals."""
        starts, ends = plain
        return cls(
            first=int(starts[0]) if starts.size else 0,
            lengths=PackedColumn.of(ends - starts, NONE),
            gaps=PackedColumn.of(starts[1:] - ends[:-1], NONE),
        )

    def put_aside(self, aside: SpillStore) -> Self:
        """Return the same intervals, put aside."""
        return replace(self, lengths=self.lengths.put_aside(aside), gaps=self.gaps.put_aside(aside))

    def intervals(self) -> Intervals:
        """Return them as they were."""
        if not self.lengths.rows:
            return EMPTY
        edges = np.empty(2 * self.lengths.rows, np.int64)
        edges[0] = self.first
        edges[1::2] = self.lengths.values()
        edges[2::2] = self.gaps.values()
        np.cumsum(edges, out=edges)
        return Intervals(np.ascontiguousarray(edges[::2]), np.ascontiguousarray(edges[1::2]))


class PackedTable(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a table."""

    columns: Mapping[str, PackedColumn]
    first: int | None
    """The first value of the column of times that is kept by its differences; None where it is kept as it is."""
    beside: frozenset[str]
    """Columns that are kept by their distance from it."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return next(each.rows for name, each in self.columns.items() if name != BASE_COLUMN)

    @classmethod
    def of(cls, table: Columns) -> Self:
        """Pack a table of integers, codes and words with a `start_ns`."""
        start: Ints = getattr(table, BASE_COLUMN)
        whole = start.size > 0 and bool((start != NONE).all())
        columns, beside = {}, set()
        for name, kind in column_kinds(table).items():
            values = getattr(table, name)
            if whole and name == BASE_COLUMN:
                values = np.diff(values)
            elif whole and name in RELATIVE_COLUMNS:
                known = values != NONE
                apart = np.where(known, values - start, NONE)
                if ((apart != NONE) == known).all():  # times so far apart that their distance is none are damage
                    values = apart
                    beside.add(name)
            columns[name] = PackedColumn.of(values, int(MISSING[kind]))
        return cls(columns=columns, first=int(start[0]) if whole else None, beside=frozenset(beside))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column as it was."""
        values = self.columns[name].values()
        if name in self.beside:
            return np.where(values == NONE, NONE, values + self.column(BASE_COLUMN))
        if name != BASE_COLUMN or self.first is None:
            return values
        found = np.empty(values.size + 1, np.int64)
        found[0] = self.first
        np.cumsum(values, out=found[1:])
        found[1:] += self.first
        return found

    def table(self, kind: type[T]) -> T:
        """Return the whole table as it was."""
        return kind(**{name: self.column(name) for name in self.columns})

    def put_aside(self, aside: SpillStore) -> Self:
        """Return the same table, its columns put aside."""
        return replace(self, columns={name: each.put_aside(aside) for name, each in self.columns.items()})

    def with_column(self, name: str, column: PackedColumn) -> Self:
        """Return the table with another column in place of one that is no time."""
        return replace(self, columns={**self.columns, name: column})


class PackedCollectives(Collectives, frozen=True, kw_only=True, dict=True):
    """Calls whose columns come out of a packed table when they are asked for. A copy is a plain table."""

    packed: ClassVar[PackedTable]  # of each object; no column
    __repr__ = object.__repr__  # shows no column

    def __copy__(self) -> Collectives:
        return self.packed.table(Collectives)

    def __reduce__(self) -> Any:
        """Tell how to copy it, in memory or from process to process."""
        return replace, (self.packed.table(Collectives),)

    @classmethod
    def of(cls, packed: PackedTable) -> "PackedCollectives":
        """Return the calls of a packed table."""
        found = make_without_fields(cls, _CALLS)
        vars(found)["packed"] = packed
        return found

    def __getattr__(self, name: str) -> Any:
        """Return a column."""
        if name not in _CALLS:
            raise AttributeError(name)
        return self.packed.column(name)


_CALLS: Final = frozenset(column_kinds(Collectives))
