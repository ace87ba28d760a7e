"""Amounts and their differences, spelled for people."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from overlapscope.display import size_text

NOT_APPLICABLE = "n/a"
_COMMANDS: Final = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
"""What CI services read as commands: `::name` at the start of a line (GitHub; blanks before it do not matter), and
`##[name`, `##vso[` or `##teamcity[` anywhere."""


def ms(ns: float | None) -> str:
    """Return nanoseconds as milliseconds with three decimals; n/a for None."""
    return NOT_APPLICABLE if ns is None else f"{ns / 1e6:,.3f}"


def percent(ratio: float | None) -> str:
    """Return a ratio as a percentage; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{round(ratio * 100, 1) + 0.0:.1f} %"  # no minus before 0


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it takes one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(size_bytes: int | None) -> str:
    """Return bytes in the binary unit that fits; ? for None."""
    return "?" if size_bytes is None else size_text(size_bytes)


def signed_size(size_bytes: float) -> str:
    """Return a difference of sizes with its sign."""
    return f"{'+' if size_bytes > 0 else ''}{size_text(size_bytes)}"


def signed_ms(ns: float) -> str:
    """Return nanoseconds as milliseconds with their sign."""
    return f"{ns / 1e6:+,.3f}" if ns else ms(0)


def signed_percent(ratio: float | None) -> str:
    """Return a relative difference as a percentage with its sign; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{ratio * 100:+,.1f} %"


def amount(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return a value of a metric: milliseconds without their unit, or a percentage."""
    return ms(value) if unit == "ns" else percent(value)


def change(difference: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return a difference of two values of a metric, with its sign: milliseconds, or points."""
    if difference is None:
        return NOT_APPLICABLE
    return signed_ms(difference) if unit == "ns" else f"{difference * 100:+.1f} points"


def with_unit(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return a value with its unit, as in a sentence."""
    return f"{ms(value)} ms" if unit == "ns" and value is not None else amount(value, unit)


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


def inert(text: str) -> str:
    r"""Replace control characters, changes of direction and the beginnings of CI commands by their code, as in `\x1b`.

    Line feeds stay.
    """
    shown = text
    if not text.replace("\n", "").isprintable():
        shown = "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
    return _COMMANDS.sub(lambda match: rf"{match[1]}\x3a" if match[1] is not None else r"\x23", shown)


def one_row(text: str) -> str:
    r"""Replace line feeds by their code, `\x0a`: a name in a table or a finding begins no line of its own."""
    return text.replace("\n", r"\x0a")


def inert_json(text: str) -> str:
    """Break the beginnings of CI commands in JSON, where they can only stand inside strings."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)
