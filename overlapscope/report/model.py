"""A report before it has a format: the verdict or the sentence first, then why, then tables, then warnings."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from overlapscope.report.formatting import aligned
from overlapscope.report.verdicts import SEVERITY_MARKS


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells under a head; the first `left` columns are words, the others figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says, in the order in which it is read."""

    title: str
    lead: tuple[str, ...]
    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    why: tuple[str, ...] = ()
    """Who was waited for and why, and how far that can be known."""
    why_table: Table | None = None
    """The evidence for it."""


def text_of(sheet: Sheet) -> str:
    """Return the sheet as text for a terminal, ending in a newline."""
    return "\n\n".join("\n".join(part) for part in _parts(sheet) if part) + "\n"


def tables_of(sheet: Sheet) -> tuple[Table, ...]:
    """Return all tables, those that say why first."""
    return (*([sheet.why_table] if sheet.why_table else []), *sheet.tables)


def _parts(sheet: Sheet) -> Iterator[list[str]]:
    yield [sheet.title, *sheet.lead]
    yield list(sheet.why)
    for table in tables_of(sheet):
        if table.rows:
            yield [*aligned([table.head, *table.rows], table.left), *([table.note] if table.note else [])]
    marked = ("warning", sheet.warnings), ("info", sheet.notes)
    yield [f"{SEVERITY_MARKS[severity]} {each}" for severity, lines in marked for each in lines]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One colour of a chart; None where a value is not known."""

    name: str
    values: tuple[float | None, ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What a chart shows, and how: bars behind each other, bars under each other, or lines."""

    title: str
    words: str
    """What is to be seen, in a sentence, for who cannot see it."""
    kind: Literal["stacked", "grouped", "lines"]
    axis: str
    """What the values are, with their unit."""
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    """Each with a value a category."""
    tells: Literal["how much", "why"] = "how much"
    """Which question it answers."""
