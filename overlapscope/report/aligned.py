"""Columns of text."""

from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Align columns: the first `left` to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
