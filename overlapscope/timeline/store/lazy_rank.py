"""Ranks of a run directory: small tables stay in memory, spans and annotations are read again when they are needed.

Every table of a rank but its host spans is read once when the run is opened; a damaged one means that this rank is
left out. The large tables are then dropped from memory, except those that were used last.

Host spans are often the largest table, and few questions need them: of these, only the names are read at first, and
the rest when a column is accessed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from sys import intern
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from overlapscope.errors import HostEventsError, InputError
from overlapscope.files.safe_open import FileState, file_state, open_regular, read_regular
from overlapscope.timeline.columns import (
    Collectives,
    Columns,
    Flags,
    HostSpans,
    Recordings,
    Syncs,
    T,
    concat,
    make,
    place_rows,
    size,
)
from overlapscope.timeline.lazy_host_spans import LazyHostSpans, MadeOnce, Times, select_host_spans
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import TABLES, PartRows, RankTimeline, join_parts, tables_of
from overlapscope.timeline.store.arrow_tables import (
    open_parquet,
    read_columns,
    stored_columns,
    whole_numbers,
    words_of,
)
from overlapscope.timeline.store.manifest import RankEntry, read_parts
from overlapscope.timeline.store.rank_files import check_against_entry
from overlapscope.timeline.store.validity import check_host_events, check_possible

EMPTY: Final[Mapping[str, Any]] = {name: make(kind, 0) for name, kind in TABLES.items()}
LARGE_TABLES: Final = ("spans", "annotations")
"""Tables that are dropped from memory."""
HOST_TABLES: Final = ("host", "syncs")
"""Tables that runs of the first schema do not have."""
KEPT_ROWS: Final = 1_000_000
"""Rows of these that stay in memory: of a few ranks, or all of a small run ..."""
KEPT_TABLES: Final = 4
"""... and tables that stay, however large: a user looking at one or two ranks needs theirs repeatedly."""
MAX_LOST: Final = 3
"""Most parts of a rank that are listed as left out."""
UNREADABLE: Final = (OSError, pa.ArrowException, LookupError, ValueError)
"""What reading a damaged table raises."""


class StoredRank(RankTimeline, frozen=True, kw_only=True, dict=True):
    """A rank whose large tables are read when they are accessed, which raises InputError if that fails.

    A copy is a plain timeline with all its tables; to change values, start from `at_hand()`. Its host spans, and those
    of its copies, are `LazyHostSpans`.
    """

    __repr__ = object.__repr__  # shows no table

    def __reduce__(self) -> Any:
        """Return how to copy it, in memory or to another process."""
        return replace, (self.at_hand(),)

    @classmethod
    def of(cls, timeline: RankTimeline, unloaded: "UnloadedTables", **changed: Any) -> "StoredRank":
        """Return the timeline with changed values and with `unloaded` in place of its large tables."""
        values: dict[str, Any] = dict.fromkeys(LARGE_TABLES)
        values |= {name: getattr(timeline, name) for name in timeline.__struct_fields__ if name not in LARGE_TABLES}
        found = cls(**values | changed)
        for name in LARGE_TABLES:
            getattr(cls, name).__delete__(found)  # unset, so that `__getattr__` is called
        vars(found)["_unloaded"] = unloaded
        return found

    def __getattr__(self, name: str) -> Any:
        """Return a large table."""
        if name not in LARGE_TABLES:
            raise AttributeError(name)
        return self._unloaded.table(name, self.names)

    def with_calls(self, names: tuple[str, ...], calls: Collectives) -> "StoredRank":
        """Return the rank with other columns of its calls, its large tables where they are."""
        return StoredRank.of(self, self._unloaded, names=names, collectives=calls)

    @property
    def num_spans(self) -> int:
        """The number of spans, without reading them."""
        rows: int = self._unloaded.spans
        return rows

    def at_hand(self) -> RankTimeline:
        """Return a plain timeline with all tables but its host spans in memory.

        Not cached, because callers go through many ranks.
        """
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in LARGE_TABLES}
        for name in LARGE_TABLES:
            values[name] = self._unloaded.table(name, self.names, keep=False)
        return RankTimeline(**values)

    __copy__ = at_hand


class TableCache:
    """The large tables that were used last, of all ranks of a run, by their files."""

    def __init__(self, rows: int = KEPT_ROWS) -> None:
        self._room = rows
        self._tables: OrderedDict[Path, Columns] = OrderedDict()
        self._lock = Lock()

    def get(self, file: Path) -> Columns | None:
        """Return a table if it is kept."""
        with self._lock:
            if file in self._tables:
                self._tables.move_to_end(file)
            return self._tables.get(file)

    def keep(self, file: Path, table: Columns) -> None:
        """Keep a table, in place of the least recently used ones."""
        with self._lock:
            if file not in self._tables:
                self._tables[file] = table
                self._room -= size(table)
            while self._room < 0 and len(self._tables) > KEPT_TABLES:
                _, dropped = self._tables.popitem(last=False)
                self._room += size(dropped)

    def has_room(self, table: Columns) -> bool:
        """Return whether a table can be kept without dropping others."""
        return size(table) <= self._room or len(self._tables) < KEPT_TABLES


class UnloadedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The large tables in one folder: those of a rank, or of a part of it."""

    folder: Path
    states: Mapping[str, FileState]
    """State of each table's file when the run was opened."""
    rows: PartRows | None = None
    """Where a part's rows are in the rank."""


class UnloadedTables(msgspec.Struct, frozen=True, kw_only=True):
    """The large tables of a rank, in its folder or those of its parts."""

    folder: Path
    parts: tuple[UnloadedPart, ...]
    spans: int
    """Number of spans."""
    cache: TableCache

    def table(self, name: str, names: tuple[str, ...], *, keep: bool = True) -> Columns:
        """Return a table of the rank, whose names are `names`.

        Raises InputError if it cannot be read, or has changed since the run was opened.
        """
        file = self.folder / f"{name}.parquet"
        found = self.cache.get(file)
        if found is None:
            parts = [_read_again(part, name, names) for part in self.parts]
            found = parts[0] if len(parts) == 1 else concat(parts)
            if keep:
                self.cache.keep(file, found)
        return found


def _read_again(part: UnloadedPart, name: str, names: tuple[str, ...]) -> Columns:
    file = part.folder / f"{name}.parquet"
    try:
        found = read_table(part.folder, name, TABLES[name], NameTable(names))
        same = file_state(file.stat()) == part.states[name]  # checked last: the file may be replaced at any time
    except UNREADABLE as error:
        raise InputError(f"{file}: cannot be read any more: {first_line(error)}") from error
    if not same:
        raise InputError(f"{file}: was changed since the run was opened; open it again")
    rows = part.rows
    return found if rows is None else place_rows(found, recording=rows.recording, lane=rows.lane, call=rows.call)


class UnloadedHostSpans(msgspec.Struct, frozen=True, kw_only=True):
    """The host spans of a rank, in its folder."""

    file: Path
    state: FileState
    """State of the file when the run was opened."""
    names: tuple[str, ...]
    """The rank's names."""
    windows: int
    lanes: int
    """Numbers of recording windows and lanes of the rank."""
    cache: TableCache

    def __reduce__(self) -> Any:
        """Return how to copy it, in memory or to another process, where the file may not be: as the table."""
        return MadeOnce, (self(),)

    def __call__(self) -> HostSpans:
        """Return the table.

        Raises HostEventsError if it cannot be read, and InputError if it has changed since the run was opened.
        """
        found: Any = self.cache.get(self.file)
        if found is None:
            found = self._read()
            self.cache.keep(self.file, found)
        table: HostSpans = found
        return table

    def select(self, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None) -> HostSpans:
        """Return rows as `select_host_spans` does. Raises as a call does."""
        return select_host_spans(self(), kinds, names, around)

    def _read(self) -> HostSpans:
        try:
            found = read_table(self.file.parent, "host", HostSpans, NameTable(self.names))
            check_host_events("host", found, windows=self.windows, lanes=self.lanes)
            same = file_state(self.file.stat()) == self.state  # checked last: the file may be replaced at any time
        except UNREADABLE as error:
            without = "move it away to read this rank without host events"
            raise HostEventsError(str(self.file), f"{first_line(error)}; {without}") from error
        if not same:
            raise InputError(f"{self.file}: was changed since the run was opened; open it again")
        return found


class RankByFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A stored rank as it travels to another process of this machine: its small tables, and where the others lie."""

    small: Mapping[str, Any]
    folder: Path
    parts: tuple[UnloadedPart, ...]
    spans: int
    host: Mapping[str, Any] | None
    """Where its host spans lie; None where they are among the small tables."""

    @classmethod
    def of(cls, rank: StoredRank) -> "RankByFiles":
        """Return the rank without what its files hold."""
        source = rank.host.source if isinstance(rank.host, LazyHostSpans) else None
        unread = isinstance(source, UnloadedHostSpans)
        left_out = (*LARGE_TABLES, "host") if unread else LARGE_TABLES
        unloaded = rank._unloaded
        return cls(
            small={name: getattr(rank, name) for name in rank.__struct_fields__ if name not in left_out},
            folder=unloaded.folder,
            parts=unloaded.parts,
            spans=unloaded.spans,
            host={name: getattr(source, name) for name in _PLACE_OF_HOST} if unread else None,
        )

    def at_hand(self) -> RankTimeline:
        """Return the timeline as `StoredRank.at_hand` does; raises as it does."""
        cache, values = TableCache(), dict(self.small)
        if self.host is not None:
            values["host"] = LazyHostSpans.of(UnloadedHostSpans(**self.host, cache=cache))
        unloaded = UnloadedTables(folder=self.folder, parts=self.parts, spans=self.spans, cache=cache)
        for name in LARGE_TABLES:
            values[name] = unloaded.table(name, values["names"], keep=False)
        return RankTimeline(**values)


_PLACE_OF_HOST: Final = tuple(name for name in UnloadedHostSpans.__struct_fields__ if name != "cache")


class OpenedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as it was opened, and what of it could not be."""

    timeline: RankTimeline
    lost: str | None = None
    """Why its host events, or parts of it, are left out, if they are."""


def open_rank(bare: RankTimeline, folder: Path, cache: TableCache, entry: RankEntry) -> OpenedRank:
    """Read and check a rank like `read_rank`, and drop its large tables except those that `cache` has room for."""
    opened, parts = _read_whole(bare, folder, cache, entry)
    timeline = opened.timeline
    for name in LARGE_TABLES:
        table = getattr(timeline, name)
        if cache.has_room(table):
            cache.keep(folder / f"{name}.parquet", table)
    unloaded = UnloadedTables(folder=folder, parts=parts, spans=size(timeline.spans), cache=cache)
    return replace(opened, timeline=StoredRank.of(timeline, unloaded))


def read_rank(bare: RankTimeline, folder: Path, cache: TableCache, entry: RankEntry) -> OpenedRank:
    """Read all tables of `folder`, or of its parts, checked, except the host spans, which are left for later.

    `entry` states how many rows there are. Raises one of `UNREADABLE` where a table is damaged, or none of the parts
    can be read; where host events are damaged, or some parts, only these are left out.
    """
    return _read_whole(bare, folder, cache, entry)[0]


def _read_whole(
    bare: RankTimeline, folder: Path, cache: TableCache, entry: RankEntry
) -> tuple[OpenedRank, tuple[UnloadedPart, ...]]:
    found, lost = read_parts(folder)
    if not found and not lost:
        states = _states(folder)
        opened = _read_folder(bare, folder, cache, entry)
        check_against_entry(entry, opened.timeline)
        return opened, (UnloadedPart(folder=folder, states=states),)
    timelines, parts = [], []
    for part, own in found:
        try:
            states = _states(part)
            timeline = _read_folder(replace(bare, recorded=own.recorded), part, cache, own).timeline
            check_against_entry(own, timeline)
        except UNREADABLE as error:
            lost.append(f"{part.name}: {first_line(error)}")
            continue
        timelines.append(timeline)
        parts.append(UnloadedPart(folder=part, states=states))
    if not timelines:
        raise ValueError(f"none of its parts can be read: {lost[0]}")
    joined, rows = join_parts(timelines)
    check_possible(joined)
    why = f"parts left out: {'; '.join(lost[:MAX_LOST])}{', ...' if len(lost) > MAX_LOST else ''}" if lost else None
    placed = tuple(replace(part, rows=own_rows) for part, own_rows in zip(parts, rows, strict=True))
    return OpenedRank(timeline=replace(joined, recorded=bare.recorded), lost=why), placed


def _states(folder: Path) -> dict[str, FileState]:
    return {name: file_state((folder / f"{name}.parquet").stat()) for name in LARGE_TABLES}


def _read_folder(bare: RankTimeline, folder: Path, cache: TableCache, entry: RankEntry) -> OpenedRank:
    names = NameTable()
    tables: dict[str, Any] = {
        name: read_table(folder, name, kind, names, bare.rank)
        for name, kind in tables_of(bare.basis).items()
        if name not in HOST_TABLES
    }
    windows, lanes = size(tables["recordings"]), size(tables["lanes"])
    lost = state = None
    try:
        if entry.syncs:
            tables["syncs"] = read_table(folder, "syncs", Syncs, names, bare.rank)
            _check_rows(size(tables["syncs"]), entry.syncs, "syncs.parquet")
            check_host_events("syncs", tables["syncs"], windows=windows, lanes=lanes)
        if entry.host_spans:
            state = _host_names(folder / "host.parquet", bare.rank, entry.host_spans, names)
    except UNREADABLE as error:
        lost = f"its host events left out: {first_line(error)}"
        tables.pop("syncs", None)
        tables["recordings"] = _without_host_events(tables["recordings"])
    found = replace(bare, host_damaged=lost is not None, **tables)
    check_possible(found)
    found = replace(found, names=tuple(map(intern, names.to_list())))  # most ranks have the same ones
    if state is None:
        return OpenedRank(timeline=found, lost=lost)
    file = folder / "host.parquet"
    unloaded = UnloadedHostSpans(file=file, state=state, names=found.names, windows=windows, lanes=lanes, cache=cache)
    return OpenedRank(timeline=replace(found, host=LazyHostSpans.of(unloaded)))


def _host_names(path: Path, rank: int, rows: int, names: NameTable) -> FileState:
    """Add the names of host spans, of which there should be `rows`, to `names`; return the file's state before."""
    try:
        state = file_state(path.stat())
        with open_regular(path) as opened:
            file = open_parquet(opened)
            _check_rows(file.metadata.num_rows, rows, "the table")
            names.encode(words_of(read_of_rank(rank, file, ["name"]).column("name")))
    except UNREADABLE as error:
        raise ValueError(f"{path.name}: {first_line(error)}") from error
    return state


def _check_rows(found: int, stated: int, what: str) -> None:
    if found != stated:
        raise ValueError(f"{what} has {found} rows, the rank's entry states {stated}")


def _without_host_events(recordings: Recordings) -> Recordings:
    return replace(recordings, host_events=np.zeros(size(recordings), np.bool_))


def read_table(folder: Path, name: str, kind: type[T], names: NameTable, rank: int | None = None) -> T:
    """Read a table; its names are added to `names`. Raises OSError, or ValueError if it is damaged.

    A table of another rank than `rank` counts as damaged.
    """
    content = read_regular(folder / f"{name}.parquet")
    try:
        file = open_parquet(pa.BufferReader(content))
        there = set(file.schema_arrow.names)
        every = stored_columns(kind)
        wanted = [column for column in every if column in there]
        if len(wanted) < len(every) and there - {"rank", *wanted}:  # one that older runs lack, or renamed
            raise ValueError(f"has columns of other names: {', '.join(sorted(there - {'rank', *wanted}))[:80]!r}")
        return read_columns(read_of_rank(rank, file, wanted), kind, names)
    except UNREADABLE as error:
        raise ValueError(f"{name}.parquet: {first_line(error)}") from error


def read_of_rank(rank: int | None, file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """Return columns of a file. Raises ValueError if its column `rank`, if there is one, contains another rank.

    Its rows are read, not its statistics: in a damaged footer, asking pyarrow for those ends the process.
    """
    states = rank is not None and "rank" in file.schema_arrow.names
    table = file.read(columns=[*columns, "rank"] if states else columns, use_threads=False)
    for chunk in table.column("rank").chunks if states else ():
        other = whole_numbers(chunk, np.int32)
        if (other != rank).any():
            raise ValueError(f"is of rank {other[np.argmax(other != rank)]}")
    return table


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return str(error).strip().split("\n")[0][:200]
