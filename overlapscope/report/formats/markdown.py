"""A sheet as Markdown: for a GitHub step summary or the comment on a change.

Names come from files, so each is escaped until no Markdown, HTML, mention, link or table can be made of it.
"""

import re
from typing import Final

from overlapscope.report.formatting import inert
from overlapscope.report.model import Sheet, Table, tables_of

LIMIT_BYTES: Final = 1_000_000
"""GitHub refuses a step summary of more than 1 MiB whole."""
CUT: Final = "\n*The rest is left out: it would be too long for a step summary.*\n"
APART: Final = "<!-- -->"
"""Keeps GitHub, which looks at the rendered text, from a mention or a reference."""
_ACTIVE: Final = re.compile(r"[^\w\s.,:;'+%/()-]|(?<![^\W_])_|_(?![^\W_])|[.:](?=\S)(?!\d)")
"""What could be markup: all punctuation but such as stands in plain sentences. An underscore inside a word and a full
stop before a blank or a digit are plain; before a letter they could make a link."""


def render(sheet: Sheet) -> str:
    """Return the page, ending in a newline, below GitHub's limit."""
    parts = [f"### {escaped(sheet.title)}"]
    parts += ["  \n".join(escaped(line) for line in sheet.lead)] if sheet.lead else []
    parts += ["  \n".join(escaped(line) for line in sheet.why)] if sheet.why else []
    parts += [_table(table) for table in tables_of(sheet) if table.rows]
    lines = [f"- **{escaped(each)}**" for each in sheet.warnings] + [f"- {escaped(each)}" for each in sheet.notes]
    parts += ["\n".join(lines)] if lines else []
    return _bounded("\n\n".join(parts) + "\n")


def escaped(text: str) -> str:
    """Return text that stands in a line, or in a cell of a table, for itself."""
    plain = " ".join(inert(text).split())
    return _ACTIVE.sub(lambda match: f"&#{ord(match[0])};{APART if match[0] in '@#' else ''}", plain)


def _table(table: Table) -> str:
    rule = ["---" if at < table.left else "---:" for at in range(len(table.head))]
    rows = [[escaped(cell) for cell in row] for row in (table.head, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join(lines) + (f"\n\n{escaped(table.note)}" if table.note else "")


def _bounded(page: str) -> str:
    """Cut a page that is too long at the end of a line, and say so."""
    content = page.encode()
    if len(content) <= LIMIT_BYTES:
        return page
    kept = content[: LIMIT_BYTES - len(CUT.encode())]
    return kept[: kept.rfind(b"\n") + 1].decode() + CUT
