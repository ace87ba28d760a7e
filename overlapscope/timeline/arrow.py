"""Tables of columns as Arrow tables, and back: missing becomes null, codes become the names they stand for."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from overlapscope.timeline.columns import DTYPES, MISSING, NONE, Columns, T, column_kinds, enum_values, size
from overlapscope.timeline.names import NameTable

LATER_COLUMNS: Final = frozenset({"cut", "state", "record_function_id", "peer", "received_bytes", "blocks"})
"""Columns that early runs do not have."""


def to_arrow(table: Columns, names: tuple[str, ...], rank: int | None = None) -> pa.Table:
    """Give a table as Arrow columns, with a column `rank` before them where one is given."""
    columns: dict[str, Any] = {}
    if rank is not None:
        columns["rank"] = pa.array(np.full(size(table), rank, np.int32))
    for column, kind in column_kinds(table).items():
        values = getattr(table, column)
        if kind == "name":
            columns[column] = _dictionary(values, names)
        elif kind == "enum":
            spelled = pa.array(enum_values(type(table), column))
            columns[column] = pa.DictionaryArray.from_arrays(pa.array(values), spelled)
        elif kind == "int64":
            columns[column] = pa.array(values, mask=values == NONE)
        elif kind == "float64":
            columns[column] = pa.array(values, mask=np.isnan(values))
        else:
            columns[column] = pa.array(values)
    return pa.table(columns)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table as zstd Parquet. Raises OSError.

    Integers by their differences: times of spans repeat seldom, so that a dictionary of them takes ten times as long
    to write and more to read.
    """
    named = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    differences = {field.name: "DELTA_BINARY_PACKED" for field in table.schema if pa.types.is_integer(field.type)}
    pq.write_table(table, path, compression="zstd", use_dictionary=named, column_encoding=differences)


def _dictionary(codes: Any, names: tuple[str, ...]) -> Any:
    """Give a dictionary column that holds only the names in use."""
    used = np.unique(codes[codes >= 0])
    place = np.zeros(len(names) + 1, np.int32)
    place[used] = np.arange(used.size, dtype=np.int32)
    indices = pa.array(place[codes], mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array([names[code] for code in used.tolist()], pa.string()))


def from_arrow(table: pa.Table, kind: type[T], names: NameTable) -> T:
    """Give an Arrow table as columns, its names added to `names`. Raises KeyError, ValueError for another form."""
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
            if not pa.types.is_dictionary(array.type):
                array = array.dictionary_encode()
            spelled = array.dictionary.to_pylist()
            if stored == "name":
                codes = names.encode(spelled)
            else:
                codes = np.array([enum_values(kind, column).index(value) for value in spelled], np.int32)
            indices = _values(array.indices, np.dtype(f"i{array.indices.type.bit_width // 8}"), -1)
            columns[column] = np.append(codes, np.int32(-1))[indices].astype(DTYPES[stored])
        else:
            columns[column] = _values(array, np.dtype(DTYPES[stored]), MISSING[stored])
    return kind(**columns)


def _values(array: Any, dtype: np.dtype[Any], missing: Any) -> Any:
    """Give a column of fixed width as numpy values, with `missing` for null.

    From Arrow's own buffers: its `to_numpy` loads pandas, which takes longer than most runs.
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
