"""What the sources report about a job besides times, as rows for documents."""

import math
from typing import Any

import msgspec

from overlapscope.timeline.columns import NONE, column_kinds, enum_values, size
from overlapscope.timeline.facts import FACT_TABLES, Facts

MAX_ROWS = 5_000


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """The first rows of one table of `overlapscope.timeline.facts`, with names as text and missing values as null."""

    rows: list[dict[str, str | int | float | None]]
    left_out: int
    """Rows that are not listed here; the run directory holds all rows."""


def rows_of_sources(facts: Facts, limit: int = MAX_ROWS) -> dict[str, Told]:
    """Return the non-empty tables by name, at most `limit` rows of each."""
    return {
        name: Told(rows=_rows(facts, name, limit), left_out=max(0, size(getattr(facts, name)) - limit))
        for name in FACT_TABLES
        if size(getattr(facts, name))
    }


def _rows(facts: Facts, name: str, limit: int) -> list[dict[str, Any]]:
    table = getattr(facts, name)
    columns: dict[str, list[Any]] = {}
    for column, kind in column_kinds(table).items():
        values = getattr(table, column)[:limit].tolist()
        if kind == "name":
            columns[column] = [facts.name(code) for code in values]
        elif kind == "enum":
            spelled = enum_values(type(table), column)
            columns[column] = [spelled[code] for code in values]
        elif kind == "int64":
            columns[column] = [None if value == NONE else value for value in values]
        else:
            columns[column] = [None if math.isnan(value) else value for value in values]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
