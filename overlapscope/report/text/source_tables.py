"""Render what sources report besides times: communicators, links, measurements, reported figures."""

from collections.abc import Mapping
from typing import Any

from overlapscope.analysis.source_tables import Told
from overlapscope.report.formatting import aligned

MAX_ROWS = 6
MAX_CELL = 60


def source_table_text(tables: Mapping[str, Told], *, all_rows: bool = False) -> str:
    """Return one text table each, without empty columns; long tables are cut and a line states where the rest is."""
    return "\n\n".join(_table(name, each, len(each.rows) if all_rows else MAX_ROWS) for name, each in tables.items())


def _table(name: str, table: Told, limit: int) -> str:
    columns = [key for key in table.rows[0] if any(row[key] not in (None, "untold") for row in table.rows)]
    shown = table.rows[:limit]
    cells = [[_cell(row[key]) for key in columns] for row in shown]
    title = name.replace("_", " ")
    head = [key.replace("_", " ") for key in columns]
    lines = [f"{title}:", *aligned([head, *cells], left=len(columns))]
    cut = len(table.rows) - len(shown) + table.left_out
    if cut:
        how = "--all" if limit < len(table.rows) and not table.left_out else f"the run's facts/{name}.parquet"
        lines.append(f"{cut} more rows: {how}")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_CELL else f"{text[:28]}...{text[-29:]}"  # names of tensors differ at their ends
