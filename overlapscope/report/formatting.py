"""Format times, sizes and ratios as text, align columns, and make text from files safe to print."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from overlapscope.display import percent_text, shortened, size_text

EXPLAIN: Final = "overlapscope explain"
"""The command that prints the pages of findings and recommendations whose ids follow it."""
MAX_WIDTH: Final = 120
"""Characters of a line of sentences in a terminal."""
NOT_APPLICABLE = "n/a"
_COMMANDS: Final = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
"""Match what CI services execute as commands: `::name` at the start of a line, also after spaces (GitHub), and
`##[name`, `##vso[` or `##teamcity[` anywhere in a line."""


def ms(ns: float | None) -> str:
    """Return nanoseconds as text in milliseconds with three decimals; n/a for None."""
    return NOT_APPLICABLE if ns is None else f"{ns / 1e6:,.3f}"


def percent(ratio: float | None) -> str:
    """Return a ratio as a percentage; n/a for None."""
    return NOT_APPLICABLE if ratio is None else percent_text(ratio)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(size_bytes: int | None) -> str:
    """Return a size in bytes as text with a binary unit (KiB, MiB, ...); ? for None."""
    return "?" if size_bytes is None else size_text(size_bytes)


def bandwidth(gbs: float | None, estimate: str | None) -> str:
    """Return a bandwidth in GB/s as text; n/a for None, with `>=` where its transfer time is an upper bound."""
    return NOT_APPLICABLE if gbs is None else f"{'>= ' if estimate == 'upper_bound' else ''}{gbs:.3g}"


def signed_size(size_bytes: float) -> str:
    """Return a difference of two sizes as text with its sign."""
    return f"{'+' if size_bytes > 0 else ''}{size_text(size_bytes)}"


def signed_ms(ns: float) -> str:
    """Return nanoseconds as text in milliseconds with a sign."""
    return f"{ns / 1e6:+,.3f}" if ns else ms(0)


def signed_percent(ratio: float | None) -> str:
    """Return a relative difference as a percentage with a sign; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{ratio * 100:+,.1f} %"


def amount(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return the value of a metric: milliseconds without the unit, or a percentage."""
    return ms(value) if unit == "ns" else percent(value)


def change(difference: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return the difference of two values of a metric with its sign: milliseconds, or percentage points."""
    if difference is None:
        return NOT_APPLICABLE
    return signed_ms(difference) if unit == "ns" else f"{difference * 100:+.1f} points"


def size_of_change(size: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return how large a difference is, whatever its sign: milliseconds, or percentage points."""
    return f"{size * 100:.1f} points" if unit == "ratio" and size is not None else with_unit(size, unit)


def with_unit(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Return the value of a metric with its unit, for use in a sentence."""
    return f"{ms(value)} ms" if unit == "ns" and value is not None else amount(value, unit)


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Yield one line per row, `left` columns aligned left and the others right; line feeds in cells are escaped."""
    rows = [[one_row(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def short(text: str, longest: int) -> str:
    """Return a name on one line with at most so many characters (`shortened`)."""
    return shortened(text, longest)


def inert(text: str) -> str:
    r"""Escape control characters, changes of text direction and CI commands, for example as `\x1b`; keep line feeds."""
    shown = text
    if not text.replace("\n", "").isprintable():
        shown = "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
    return _COMMANDS.sub(lambda match: rf"{match[1]}\x3a" if match[1] is not None else r"\x23", shown)


def one_row(text: str) -> str:
    r"""Escape line feeds as `\x0a`, so that a name in a table or a finding cannot start a line of its own."""
    return text.replace("\n", r"\x0a")


def inert_json(text: str) -> str:
    """Escape CI commands in JSON text, where they can only occur inside strings."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)
