"""Ranks of a run directory: small tables stay in memory, spans and annotations are read again when they are needed.

Every table of a rank is read once when the run is opened; a damaged one means that this rank is left out. The large
tables are then dropped from memory, except those that were used last.
"""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from sys import intern
from threading import Lock
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.files.safe_open import FileState, file_state, read_regular
from overlapscope.files.spill import SpillStore, make_without_fields
from overlapscope.timeline.columns import (
    Annotations,
    Codes,
    Collectives,
    Columns,
    Gradients,
    Lanes,
    Recordings,
    Spans,
    Steps,
    T,
    Telemetry,
    column_kinds,
    make,
    size,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.store.arrow_tables import from_arrow, open_parquet
from overlapscope.timeline.store.packed import PackedCollectives, PackedColumn, PackedTable
from overlapscope.timeline.store.validity import check_possible

TABLES: Final[dict[str, type[Columns]]] = {
    "recordings": Recordings,
    "spans": Spans,
    "collectives": Collectives,
    "steps": Steps,
    "lanes": Lanes,
    "annotations": Annotations,
    "gradients": Gradients,
    "telemetry": Telemetry,
}
EMPTY: Final[Mapping[str, Any]] = {name: make(kind, 0) for name, kind in TABLES.items()}
LARGE_TABLES: Final = ("spans", "annotations")
"""Tables that are dropped from memory."""
KEPT_ROWS: Final = 2_000_000
"""Rows of these that stay in memory, packed: of a few ranks, or all of a small run ..."""
KEPT_TABLES: Final = 4
"""... and tables that stay unpacked, however large: a user looking at one or two ranks needs theirs repeatedly."""
RELEASE_ROWS: Final = 100_000
"""Arrow keeps the memory of dropped tables; it is released after so many rows have been read. Releasing it after each
small table would take as long as reading it."""
UNREADABLE: Final = (OSError, pa.ArrowException, LookupError, ValueError)
"""What reading a damaged table raises."""


class UnloadedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was dropped from memory."""

    rows: int
    state: FileState
    """State of its file when the run was opened."""


class StoredRank(RankTimeline, frozen=True, kw_only=True, dict=True):
    """A rank whose large tables are read when they are accessed, which raises InputError if that fails.

    A copy is a plain timeline with all its tables; to change values, start from `at_hand()`.
    """

    __repr__ = object.__repr__  # shows no table

    def __copy__(self) -> RankTimeline:
        return self.at_hand()

    def __reduce__(self) -> Any:
        """Return how to copy it, in memory or to another process."""
        return replace, (self.at_hand(),)

    @classmethod
    def of(
        cls,
        timeline: RankTimeline,
        folder: Path,
        kept: "TableCache",
        large: Mapping[str, "UnloadedTable"],
        **changed: Any,
    ) -> "StoredRank":
        """Return the timeline with changed values and without its large tables, which are read from `folder`."""
        values = {
            name: getattr(timeline, name) for name in timeline.__struct_fields__ if name not in LARGE_TABLES
        } | changed
        if not isinstance(values["collectives"], PackedCollectives):
            values["collectives"] = PackedCollectives.of(PackedTable.of(timeline.collectives).put_aside(kept.aside))
        found = make_without_fields(cls, LARGE_TABLES, **values)
        vars(found).update(_rank_path=folder, _kept=kept, _large=large)
        return found

    def __getattr__(self, name: str) -> Any:
        """Return a large table."""
        if name not in LARGE_TABLES:
            raise AttributeError(name)
        return self._kept.table(self._rank_path, name, self.names, self._large[name])

    def with_dimension(self, names: tuple[str, ...], dimension: Codes) -> "StoredRank":
        """Return the rank with the dimensions of its calls, its large tables where they are."""
        calls: PackedCollectives = self.collectives  # type: ignore[assignment]  # as `of` makes them
        packed = calls.packed.with_column("dimension", PackedColumn.of(dimension, -1).put_aside(self._kept.aside))
        changed = {"names": names, "collectives": PackedCollectives.of(packed)}
        return StoredRank.of(self, self._rank_path, self._kept, self._large, **changed)

    @property
    def num_spans(self) -> int:
        """The number of spans, without reading them."""
        large: Mapping[str, UnloadedTable] = self._large
        return large["spans"].rows

    def at_hand(self) -> RankTimeline:
        """Return a plain timeline with all tables in memory; not cached, because callers go through many ranks."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in LARGE_TABLES}
        for name in LARGE_TABLES:
            values[name] = self._kept.table(self._rank_path, name, self.names, self._large[name], remember=False)
        values["collectives"] = self.collectives.packed.table(Collectives)  # type: ignore[attr-defined]
        return RankTimeline(**values)


class TableCache:
    """A cache of the large tables that were used last, of all ranks of a run."""

    def __init__(self, rows: int = KEPT_ROWS) -> None:
        self._most = self._room = rows
        self._packed: OrderedDict[tuple[Path, str], PackedTable] = OrderedDict()
        self._plain: OrderedDict[tuple[Path, str], Columns] = OrderedDict()
        self._read = 0
        self._lock = Lock()
        self.aside = SpillStore()
        """Store of the packed tables of calls, which are never dropped."""

    def table(
        self, folder: Path, name: str, names: tuple[str, ...], stored: UnloadedTable, *, remember: bool = True
    ) -> Columns:
        """Return a table of the rank in `folder`, whose names are `names`.

        Raises InputError if it cannot be read, or has changed since the run was opened.
        """
        place = folder, name
        with self._lock:
            plain, packed = self._plain.get(place), self._packed.get(place)
            for each in (self._plain, self._packed):
                if place in each:
                    each.move_to_end(place)
        if plain is not None:
            return plain
        if packed is None:
            self.note_read(stored.rows)
            found = _read_again(folder, name, names, stored)
        else:
            found = packed.table(TABLES[name])
        if remember:
            if packed is None:
                self._pack(place, found)
            with self._lock:
                self._plain[place] = found
                if len(self._plain) > KEPT_TABLES:
                    self._plain.popitem(last=False)
        return found

    def note_read(self, rows: int) -> None:
        """Count rows that were read, and release Arrow's memory after RELEASE_ROWS of them."""
        with self._lock:
            self._read += rows
            many = self._read >= RELEASE_ROWS
            self._read *= not many
        if many:
            release_arrow_memory()

    def offer(self, folder: Path, name: str, table: Columns) -> None:
        """Keep a table if there is room for it."""
        if size(table) <= self._room:
            self._pack((folder, name), table)
        elif not self._packed and len(self._plain) < KEPT_TABLES:
            self._plain[folder, name] = table

    def _pack(self, place: tuple[Path, str], table: Columns) -> None:
        """Cache a table unless it is larger than the cache, in place of the least recently used ones."""
        if size(table) > self._most:
            return
        packed = PackedTable.of(table)
        with self._lock:
            if place in self._packed:
                return
            self._packed[place] = packed
            self._room -= size(table)
            while self._room < 0:
                _, gone = self._packed.popitem(last=False)
                self._room += gone.rows


def _read_again(folder: Path, name: str, names: tuple[str, ...], stored: UnloadedTable) -> Columns:
    try:
        found = read_table(folder, name, TABLES[name], NameTable(names))
        same = _state(folder, name) == stored.state  # checked last: the file may be replaced at any time
    except UNREADABLE as error:
        raise InputError(f"{folder / name}.parquet: cannot be read any more: {first_line(error)}") from error
    if not same:
        raise InputError(f"{folder / name}.parquet: was changed since the run was opened; open it again")
    return found


def open_rank(bare: RankTimeline, folder: Path, kept: TableCache) -> StoredRank:
    """Read and check a rank like `read_rank`, and drop its large tables except those that `kept` has room for."""
    states = {name: _state(folder, name) for name in LARGE_TABLES}
    timeline = read_rank(bare, folder)
    for name in LARGE_TABLES:
        kept.offer(folder, name, getattr(timeline, name))
    large = {name: UnloadedTable(rows=size(getattr(timeline, name)), state=states[name]) for name in LARGE_TABLES}
    kept.note_read(large["spans"].rows)
    return StoredRank.of(timeline, folder, kept, large)


def release_arrow_memory() -> None:
    """Return the memory of dropped tables, which Arrow keeps, to the system."""
    pa.default_memory_pool().release_unused()


def read_rank(bare: RankTimeline, folder: Path) -> RankTimeline:
    """Return the timeline with all tables of `folder`, checked. Raises one of `UNREADABLE` where it is damaged."""
    names = NameTable()
    tables: Mapping[str, Any] = {
        name: read_table(folder, name, kind, names, bare.rank) for name, kind in TABLES.items()
    }
    found = replace(bare, **tables)
    check_possible(found)
    return replace(found, names=tuple(map(intern, names.to_list())))  # most ranks have the same ones


def read_table(folder: Path, name: str, kind: type[T], names: NameTable, rank: int | None = None) -> T:
    """Read a table; its names are added to `names`. Raises OSError, or ValueError if it is damaged.

    A table of another rank than `rank` counts as damaged.
    """
    content = read_regular(folder / f"{name}.parquet")
    try:
        file = open_parquet(pa.BufferReader(content))
        if rank is not None:
            check_rank(file, rank)
        there = set(file.schema_arrow.names)
        wanted = [column for column in column_kinds(kind) if column in there]
        return from_arrow(file.read(columns=wanted, use_threads=False), kind, names)
    except UNREADABLE as error:
        raise ValueError(f"{name}.parquet: {first_line(error)}") from error


def check_rank(file: pq.ParquetFile, rank: int) -> None:
    """Raise ValueError if the statistics of a file's column `rank`, if there are any, contain another rank."""
    metadata = file.metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunk = next(filter(_is_rank, map(group.column, range(metadata.num_columns))), None)
        if chunk is not None and chunk.is_stats_set and chunk.statistics.has_min_max:
            for other in {chunk.statistics.min, chunk.statistics.max} - {rank}:
                raise ValueError(f"is of rank {other}")


def _is_rank(chunk: Any) -> bool:
    return bool(chunk.path_in_schema == "rank")


def _state(folder: Path, name: str) -> FileState:
    return file_state((folder / f"{name}.parquet").stat())


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return str(error).strip().split("\n")[0][:200]
