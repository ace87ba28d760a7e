"""A report before it has a format: the verdict or the sentence first, then tables, then what not to overlook."""

from collections.abc import Iterator
from dataclasses import dataclass

from overlapscope.report.aligned import aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under a head; the first `left` columns are words, the others figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a report says, in the order in which it is read."""

    title: str
    lead: tuple[str, ...]
    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def text_of(sheet: Sheet) -> str:
    """Give the sheet as text for a terminal, ending in a newline."""
    return "\n\n".join("\n".join(part) for part in _parts(sheet) if part) + "\n"


def _parts(sheet: Sheet) -> Iterator[list[str]]:
    yield [sheet.title, *sheet.lead]
    for table in sheet.tables:
        if table.rows:
            yield [*aligned([table.head, *table.rows], table.left), *([table.note] if table.note else [])]
    yield [f"! {each}" for each in sheet.warnings] + [f"- {each}" for each in sheet.notes]
