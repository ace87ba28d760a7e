"""Render a sheet as Markdown, for a GitHub step summary or a comment on a pull request.

Names come from files, so text is escaped: it cannot form Markdown, HTML, a mention, a link or a table cell.
"""

import re
from typing import Final

from overlapscope.report.formatting import inert
from overlapscope.report.model import Sheet, Table, all_tables

LIMIT_BYTES: Final = 1_000_000
"""GitHub rejects a step summary of more than 1 MiB as a whole."""
CUT: Final = "\n*The rest is left out: it would be too long for a step summary.*\n"
APART: Final = "<!-- -->"
"""An empty comment that breaks mentions and references, which GitHub searches for in the rendered text."""
_ACTIVE: Final = re.compile(r"[^\w\s.,:;'+%/()-]|(?<![^\W_])_|_(?![^\W_])|[.:](?=\S)(?!\d)")
"""Match what could be markup: all punctuation except that of plain sentences. An underscore inside a word and a full
stop before a space or a digit are plain; a full stop or a colon before a letter could form a link."""


def render(sheet: Sheet) -> str:
    """Return the page, ending in a newline, cut to GitHub's limit."""
    parts = [f"### {escaped(sheet.title)}"]
    parts += ["  \n".join(escaped(line) for line in sheet.lead)] if sheet.lead else []
    parts += ["  \n".join(escaped(line) for line in sheet.why)] if sheet.why else []
    parts += [_table(table) for table in all_tables(sheet) if table.rows]
    lines = [f"- **{escaped(each)}**" for each in sheet.warnings] + [f"- {escaped(each)}" for each in sheet.notes]
    parts += ["\n".join(lines)] if lines else []
    return _bounded("\n\n".join(parts) + "\n")


def escaped(text: str) -> str:
    """Return text on one line with everything escaped that Markdown, HTML or GitHub would interpret."""
    plain = " ".join(inert(text).split())
    return _ACTIVE.sub(lambda match: f"&#{ord(match[0])};{APART if match[0] in '@#' else ''}", plain)


def _table(table: Table) -> str:
    rule = ["---" if at < table.left else "---:" for at in range(len(table.head))]
    rows = [[escaped(cell) for cell in row] for row in (table.head, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join(lines) + (f"\n\n{escaped(table.note)}" if table.note else "")


def _bounded(page: str) -> str:
    """Return the page, cut after a line and marked as cut where it is longer than `LIMIT_BYTES`."""
    content = page.encode()
    if len(content) <= LIMIT_BYTES:
        return page
    kept = content[: LIMIT_BYTES - len(CUT.encode())]
    return kept[: kept.rfind(b"\n") + 1].decode() + CUT
