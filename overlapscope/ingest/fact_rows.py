"""Rows as readers collect them, one mapping each, to a table of `overlapscope.timeline.facts`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from overlapscope.timeline.columns import MISSING, Columns, column_kinds, make
from overlapscope.timeline.names import NameTable

T = TypeVar("T", bound=Columns)


def fact_table(table: type[T], rows: Sequence[Mapping[str, Any]], names: NameTable) -> T:
    """Build a table; names are spelled out in the rows, and what a row lacks, or has as None, is missing."""
    columns: dict[str, list[Any]] = {}
    for column, kind in column_kinds(table).items():
        values = [row.get(column) for row in rows]
        if kind == "name":
            columns[column] = names.codes(values)
        else:
            columns[column] = [MISSING[kind] if value is None else value for value in values]
    return make(table, len(rows), **columns)
