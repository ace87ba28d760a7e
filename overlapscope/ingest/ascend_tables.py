"""Rows of the Ascend profiler's CSV files."""

import csv
from collections.abc import Iterator
from pathlib import Path

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.lines import lines


def header_of(text: str) -> list[str]:
    """Give the column titles of a table's first line; empty where that is no plain list of titles."""
    first = text.split("\n", 1)[0].rstrip("\r")
    return [] if "\x00" in first or len(first) > 4096 else [each.strip().strip('"') for each in first.split(",")]


def rows_of(stream: ByteStream, path: Path) -> Iterator[dict[str, str]]:
    """Yield each row by column title. Raises InputError for what no CSV can be, as `ByteStream.blocks` does."""
    table = csv.reader(line.decode("utf-8", "replace").replace("\x00", "") for line in lines(stream))
    try:
        titles = [each.strip().removeprefix("\ufeff") for each in next(table, [])]
        for row in table:
            if row:
                yield dict(zip(titles, (cell.strip() for cell in row), strict=False))
    except csv.Error as error:
        raise InputError(f"{shown(path)}: line {table.line_num} is no row of a table: {error}") from error


def number_of(cell: str | None) -> float | None:
    """Give a cell's number; None for an empty one, `N/A` and whatever else is no number."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def step_of(cell: str | None) -> int | None:
    """Give a cell's step number; None where the profile was not cut into steps."""
    return int(cell) if cell and cell.isdecimal() and len(cell) < 19 else None
