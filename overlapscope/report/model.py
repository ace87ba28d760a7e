"""The content of a report, independent of its format: tables, charts, and the sheet that holds them in order."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from overlapscope.report.formatting import aligned
from overlapscope.report.verdicts import SEVERITY_MARKS


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of cells below a head; the first `left` columns hold words (aligned left), the others figures (right)."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """A report in reading order: title and lead, then why, then tables, then warnings and notes."""

    title: str
    lead: tuple[str, ...]
    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    why: tuple[str, ...] = ()
    """Sentences on stragglers and their causes, and on how reliable the comparison of ranks is."""
    why_table: Table | None = None
    """The evidence for `why`."""


def render_text(sheet: Sheet) -> str:
    """Return the sheet as text for a terminal, ending in a newline."""
    return "\n\n".join("\n".join(part) for part in _parts(sheet) if part) + "\n"


def all_tables(sheet: Sheet) -> tuple[Table, ...]:
    """Return all tables in reading order, that of the evidence first."""
    return (*([sheet.why_table] if sheet.why_table else []), *sheet.tables)


def _parts(sheet: Sheet) -> Iterator[list[str]]:
    yield [sheet.title, *sheet.lead]
    yield list(sheet.why)
    for table in all_tables(sheet):
        if table.rows:
            yield [*aligned([table.head, *table.rows], table.left), *([table.note] if table.note else [])]
    marked = ("warning", sheet.warnings), ("info", sheet.notes)
    yield [f"{SEVERITY_MARKS[severity]} {each}" for severity, lines in marked for each in lines]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one colour of a chart, one per category; None where a value is not known."""

    name: str
    values: tuple[float | None, ...]
    colour: str = ""
    """Its name in the palette; empty where it has no meaning of its own, and its place decides."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of values in milliseconds: stacked bars, grouped bars, or lines."""

    title: str
    words: str
    """What the chart shows, in one sentence; screen readers read it aloud."""
    kind: Literal["stacked", "grouped", "lines"]
    axis: str
    """The label of the value axis, with the unit."""
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    """Each has one value per category."""
    section: Literal["how much", "why"] = "how much"
    """The section of the report that shows it."""
