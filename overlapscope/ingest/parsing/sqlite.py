"""Read a SQLite file of unknown origin.

Nothing in the file is executed: no view, trigger, virtual or generated column is read, and no index is trusted. The
file and its neighbours are never changed: it is opened immutable, so a write-ahead log is not read. The pages of a
damaged or hostile file may form a cycle, so the work is limited to what a file of that size can need.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from overlapscope.display import display_path
from overlapscope.errors import InputError

CHUNK_ROWS: Final = 1 << 15
CHUNK_ROWS_WITH_TEXT: Final = 1 << 12
MAX_VALUE_BYTES: Final = 1 << 20
MAX_TEXT: Final = 1 << 14
"""Characters kept of one text."""
_BROKEN: Final = (sqlite3.Error, UnicodeDecodeError)
"""UnicodeDecodeError comes from messages of sqlite3 errors that quote damaged text."""
_STEP_INSTRUCTIONS: Final = 1_000_000
_INSTRUCTIONS_PER_BYTE: Final = 20
_FREE_INSTRUCTIONS: Final = 20_000_000
"""The work limit in SQLite's instructions, about a second: a row takes about five for each column that is read, and a
column is at least one byte of its row."""


class SqliteFile:
    """An open file. Reading a table stops at damage: `damage` then describes the place; earlier rows remain valid.

    `progress` is called with the estimated number of bytes read since the last call.
    """

    others: frozenset[str]
    """Names of views and virtual tables, which are not read."""

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self.path, self.progress = path, progress
        self.damage: list[str] = []
        self._keys: dict[str, str] = {}
        try:
            self._instructions_left = _FREE_INSTRUCTIONS + _INSTRUCTIONS_PER_BYTE * self.path.stat().st_size
            uri = self.path.absolute().as_uri() + "?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        except (OSError, *_BROKEN) as error:
            raise InputError(f"{display_path(self.path)}: cannot be read: {_one_line(error)}") from error
        try:
            self._harden()
            try:
                self._tables = self._list_tables()
            except sqlite3.DatabaseError as error:
                # Only this lets SQLite open a file that is shorter than its header states, and list the sound tables.
                self._connection.execute("PRAGMA writable_schema=ON")
                self._tables = self._list_tables()
                self.damage.append(f"the file is cut or damaged ({_one_line(error)})")
        except _BROKEN as error:
            self._connection.close()
            raise InputError(
                f"{display_path(self.path)}: its list of tables cannot be read: {_one_line(error)}"
            ) from error

    def __enter__(self) -> "SqliteFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    @property
    def tables(self) -> frozenset[str]:
        """Names of the ordinary tables."""
        return frozenset(self._tables)

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of a table's stored columns; none for a table that is absent."""
        return self._tables.get(table, ())

    def rows(self, table: str, integers: Sequence[str], texts: Sequence[str] = (), where: str = "") -> Iterator[Any]:
        """Yield chunks of rows, each as a list of columns, `integers` first; a value of another type is None.

        Raises InputError when the query takes more work than a file of this size can need.
        """
        wanted = [f"CASE WHEN typeof({_quoted(name)})='integer' THEN {_quoted(name)} END" for name in integers]
        for name in texts:
            text = f"CASE WHEN typeof({_quoted(name)}) IN ('text','blob') THEN substr({_quoted(name)},1,{MAX_TEXT}) END"
            wanted.append(text)
        query = f"SELECT {', '.join(wanted)} FROM {_quoted(table)} NOT INDEXED {where}"
        # A row takes at least a byte a column, two bytes for the lengths of header and row, and two for its pointer.
        row_bytes = len(self._tables[table]) + 4
        for chunk in self._chunks(table, query, CHUNK_ROWS_WITH_TEXT if texts else CHUNK_ROWS):
            if self.progress:
                self.progress(len(chunk) * row_bytes)
            yield list(zip(*chunk, strict=True))

    def _chunks(self, table: str, query: str, rows: int) -> Iterator[list[tuple[Any, ...]]]:
        read = 0
        chunk: list[tuple[Any, ...]] = []
        try:
            cursor = self._connection.execute(query)
            while True:
                chunk = []
                chunk.extend(islice(cursor, rows))  # after an error the list keeps the rows before it
                if not chunk:
                    return
                read += len(chunk)
                yield chunk
        except _BROKEN as error:
            yield from [chunk] if chunk else []
            where = f"damaged after row {read + len(chunk)} ({_one_line(error)}); read up to there"
            self._note_damage(table, where, error)

    def is_key(self, table: str, column: str) -> bool:
        """Return whether the column is the table's integer key, by which rows are found without a full read."""
        return self._keys.get(table) == column

    def text_of(self, table: str, key: str, column: str, value: int) -> str | None:
        """Return the text in the row whose key has the value; None if there is none."""
        query = (
            f"SELECT substr({_quoted(column)},1,{MAX_TEXT}) FROM {_quoted(table)} NOT INDEXED WHERE {_quoted(key)}=?"
        )
        try:
            found = self._connection.execute(query, (value,)).fetchone()
        except _BROKEN as error:
            self._note_damage(table, f"damaged ({_one_line(error)}); some names are missing", error)
            return None
        return as_text(found[0]) if found else None

    def _note_damage(self, table: str, what: str, error: Exception) -> None:
        if self._instructions_left < 0:
            raise InputError(
                f"{display_path(self.path)}: table {table} takes more work than a sound file of this size: damaged"
            ) from error
        note = f"table {table} is {what}"
        if note not in self.damage:
            self.damage.append(note)

    def _harden(self) -> None:
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        self._connection.set_progress_handler(self._exceeds_work_limit, _STEP_INSTRUCTIONS)
        self._connection.execute("PRAGMA trusted_schema=OFF")
        self._connection.execute("PRAGMA cell_size_check=ON")

    def _exceeds_work_limit(self) -> bool:
        self._instructions_left -= _STEP_INSTRUCTIONS
        return self._instructions_left < 0

    def _list_tables(self) -> dict[str, tuple[str, ...]]:
        """Return the ordinary tables with their stored columns."""
        names: list[str] = []
        others: list[str] = []
        query = "SELECT name, sql FROM sqlite_master WHERE type IN ('table','view')"
        for name, text in self._connection.execute(query):
            if isinstance(name, str) and isinstance(text, str):
                (names if text[:12].upper() == "CREATE TABLE" else others).append(name)
        self.others = frozenset(others)
        tables = {}
        for name in names:
            found = self._connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            tables[name] = tuple(column for _, column, *_ in found)
            keys = [column for _, column, kind, *_, place in found if place and kind.upper() == "INTEGER"]
            if len(keys) == 1 and sum(bool(row[-1]) for row in found) == 1:
                self._keys[name] = keys[0]
        return tables


def _one_line(error: Exception) -> str:
    """Return an error's message on one line of at most 200 characters: it may quote the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it holds text that is not UTF-8"
    return " ".join(str(error).split())[:200]


def as_text(value: object) -> str | None:
    """Return a stored text, or bytes as text; None for anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
