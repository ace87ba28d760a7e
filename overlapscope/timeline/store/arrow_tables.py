"""Convert tables of columns to Arrow tables and back: missing values become null, codes become names."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from overlapscope.files.safe_open import open_regular
from overlapscope.timeline.columns import (
    DTYPES,
    HOST_SPAN_KINDS,
    MISSING,
    NONE,
    Codes,
    Columns,
    HostSpans,
    Ints,
    Small,
    T,
    column_kinds,
    enum_values,
    size,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rows import unique

LATER_COLUMNS: Final = frozenset({
    "cut", "state", "record_function_id", "peer", "received_bytes", "blocks", "host_events", "input_elements",
    "input_shapes", "waited_ns",
})  # fmt: skip
"""Columns that runs of earlier versions do not have."""
_MOST_SHOWN: Final = 40
"""Characters of an odd word that are shown."""


class StoredHostSpans(Columns, frozen=True, kw_only=True):
    """`HostSpans` as a run directory stores them: durations take a sixth less room than ends."""

    recording: Ints
    lane: Ints
    kind: Annotated[Small, HOST_SPAN_KINDS]
    name: Codes
    start_ns: Ints
    duration_ns: Ints
    correlation: Ints


def as_stored(table: Columns) -> Columns:
    """Return the table that a file holds for it."""
    if not isinstance(table, HostSpans):
        return table
    kept = {name: getattr(table, name) for name in column_kinds(HostSpans) if name != "end_ns"}
    known = (table.start_ns != NONE) & (table.end_ns != NONE)
    return StoredHostSpans(**kept, duration_ns=np.where(known, table.end_ns - table.start_ns, NONE))


def to_arrow(table: Columns, names: tuple[str, ...], rank: int | None = None) -> pa.Table:
    """Return a table as Arrow columns, with a column `rank` before them where one is given."""
    columns: dict[str, Any] = {}
    if rank is not None:
        columns["rank"] = _column(np.full(size(table), rank, np.int32))
    for column, kind in column_kinds(table).items():
        values = getattr(table, column)
        if kind == "name":
            columns[column] = _dictionary(values, names)
        elif kind == "enum":
            columns[column] = pa.DictionaryArray.from_arrays(_column(values), _words(enum_values(type(table), column)))
        elif kind == "int64":
            columns[column] = _column(values, values != NONE)
        elif kind == "float64":
            columns[column] = _column(values, ~np.isnan(values))
        else:
            columns[column] = _column(values)
    return pa.table(columns)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table as zstd Parquet with a checksum per page. Raises OSError.

    Integers are stored as differences: times of spans rarely repeat, so a dictionary of them would take ten times as
    long to write, and longer to read. Durations are stored as they are.
    """
    with open(path, "wb") as file:  # Arrow itself opens no path that is not UTF-8
        _write(table, file)


def parquet_bytes(table: pa.Table) -> bytes:
    """Return what `write_parquet` would write."""
    content = BytesIO()
    _write(table, content)
    return content.getvalue()


def _write(table: pa.Table, file: BinaryIO) -> None:
    named = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    integers = {field.name for field in table.schema if pa.types.is_integer(field.type)} - {"duration_ns"}
    pq.write_table(
        table,
        file,
        compression="zstd",
        use_dictionary=named,
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,  # without it, half of all flipped bits would change a figure without an error
    )


def open_parquet(file: Any) -> pq.ParquetFile:
    """Open a Parquet file of `write_parquet`, or of another tool, whose pages may have no checksums.

    Raises OSError, or pyarrow.ArrowException if it is damaged; reading from it raises the same.
    """
    opened = pq.ParquetFile(file, page_checksum_verification=True)
    rows = sum(opened.metadata.row_group(each).num_rows for each in range(opened.num_row_groups))
    if rows != opened.metadata.num_rows:  # no checksum is of the footer: a flipped bit there would leave out rows
        raise pa.ArrowInvalid(f"the footer says {opened.metadata.num_rows} rows, its row groups {rows}")
    return opened


def read_parquet(path: Path) -> pa.Table:
    """Read a whole Parquet file. Raises OSError, also for anything but a file; pyarrow.ArrowException if damaged."""
    with open_regular(path) as file:
        return open_parquet(file).read()


def _dictionary(codes: Any, names: tuple[str, ...]) -> Any:
    """Return a dictionary column that contains only the names in use, sorted: whatever their codes, files are alike."""
    used = np.array(sorted(unique(codes[codes >= 0]).tolist(), key=names.__getitem__), np.int32)
    place = np.zeros(len(names) + 1, np.int32)
    place[used] = np.arange(used.size, dtype=np.int32)
    words = _words([names[code] for code in used.tolist()])
    return pa.DictionaryArray.from_arrays(_column(place[codes], codes >= 0), words)


def _column(values: Any, present: Any = None) -> Any:
    """Return numpy values as a column, null where they are not present.

    Built from Arrow buffers: `pyarrow.array` loads pandas, which takes longer than reading most runs.
    """
    known = None if present is None or present.all() else _buffer(np.packbits(present, bitorder="little"))
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [known, _buffer(data)])


def _words(words: Sequence[str]) -> Any:
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), _buffer(ends), pa.py_buffer(b"".join(encoded)))


def _buffer(values: Any) -> Any:
    return pa.py_buffer(np.ascontiguousarray(values))


def read_columns(table: pa.Table, kind: type[T], names: NameTable) -> T:
    """Return a table as `from_arrow` does of what `as_stored` made of it."""
    if not issubclass(kind, HostSpans):
        return from_arrow(table, kind, names)
    stored = from_arrow(table, StoredHostSpans, names)
    kept = {name: getattr(stored, name) for name in column_kinds(kind) if name != "end_ns"}
    known = (stored.start_ns != NONE) & (stored.duration_ns != NONE)
    return kind(**kept, end_ns=np.where(known, stored.start_ns + stored.duration_ns, NONE))


def stored_columns(kind: type[Columns]) -> tuple[str, ...]:
    """Return the names of the columns that a file holds for a table."""
    return tuple(column_kinds(StoredHostSpans if issubclass(kind, HostSpans) else kind))


def from_arrow(table: pa.Table, kind: type[T], names: NameTable) -> T:
    """Return an Arrow table as columns, its names added to `names`. Raises KeyError, ValueError for another form."""
    columns: dict[str, Any] = {}
    for column, stored in column_kinds(kind).items():
        if column in LATER_COLUMNS and column not in table.column_names:
            columns[column] = np.full(table.num_rows, MISSING[stored], DTYPES[stored])
            continue
        chunks = table.column(column)
        if not len(chunks):  # Arrow loads pandas to make an empty array
            columns[column] = np.empty(0, DTYPES[stored])
            continue
        array = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
        if stored in ("name", "enum"):
            _must_be_text(array.type, column)
            if not pa.types.is_dictionary(array.type):
                array = array.dictionary_encode()
            spelled = array.dictionary.to_pylist()
            if stored == "name":
                codes = names.encode(spelled)
            else:
                if array.null_count:
                    raise ValueError(f"{column} is missing in {array.null_count} of {len(array)} rows")
                codes = np.array([_code(value, column, enum_values(kind, column)) for value in spelled], np.int32)
            indices = _values(array.indices, np.dtype(f"i{array.indices.type.bit_width // 8}"), -1)
            columns[column] = np.append(codes, np.int32(-1)).astype(DTYPES[stored])[indices]
        else:
            columns[column] = _values(array, np.dtype(DTYPES[stored]), MISSING[stored])
    return kind(**columns)


def words_of(column: pa.ChunkedArray) -> list[str]:
    """Return the distinct words of a column of names. Raises ValueError for another form."""
    _must_be_text(column.type, "name")
    words: dict[str, None] = {}
    for chunk in column.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words |= dict.fromkeys(coded.dictionary.to_pylist())
    return list(words)


def _must_be_text(stored: pa.DataType, column: str) -> None:
    words = stored.value_type if pa.types.is_dictionary(stored) else stored
    known = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null
    if not any(each(words) for each in known):
        raise ValueError(f"{column} is of {words} instead of text")


def _code(word: Any, column: str, known: tuple[str, ...]) -> int:
    if word not in known:
        raise ValueError(f"{column}: {str(word)[:_MOST_SHOWN]!r} is none of {', '.join(known)}")
    return known.index(word)


def whole_numbers(array: pa.Array, dtype: type[np.integer[Any]]) -> Any:
    """Return a column of integers as numpy values, -1 for null. Raises ValueError for another form."""
    return _values(array, np.dtype(dtype), -1)


def _values(array: Any, dtype: np.dtype[Any], missing: Any) -> Any:
    """Return a column of fixed width as numpy values, with `missing` for null.

    From Arrow's own buffers, as in `_column`.
    """
    wanted = pa.from_numpy_dtype(dtype)
    if array.type != wanted:
        if not (pa.types.is_integer(array.type) and pa.types.is_integer(wanted)):
            raise ValueError(f"a column is of {array.type} instead of {wanted}")
        array = array.cast(wanted)
    if not len(array):
        return np.empty(0, dtype)
    present, data = array.buffers()
    here = slice(array.offset, array.offset + len(array))
    values = _bits(data)[here] if dtype == np.bool_ else np.frombuffer(data, dtype)[here]
    return np.where(_bits(present)[here], values, dtype.type(missing)) if array.null_count else values


def _bits(packed: Any) -> Any:
    return np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").view(np.bool_)
