"""Columns of text."""

from collections.abc import Iterable, Sequence

from overlapscope.report.inert import one_row


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Align columns: the first `left` to the left, the others to the right. No cell breaks its line."""
    rows = [[one_row(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
