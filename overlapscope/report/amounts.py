"""Amounts and their differences, spelled for people."""

from typing import Literal

from overlapscope.timeline.size_text import size_text

NOT_APPLICABLE = "n/a"


def ms(ns: float | None) -> str:
    """Give nanoseconds as milliseconds with three decimals; n/a for None."""
    return NOT_APPLICABLE if ns is None else f"{ns / 1e6:,.3f}"


def percent(ratio: float | None) -> str:
    """Give a ratio as a percentage; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{round(ratio * 100, 1) + 0.0:.1f} %"  # no minus before 0


def count(number: int, noun: str) -> str:
    """Give a number with its noun, in the plural where it takes one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(size_bytes: int | None) -> str:
    """Give bytes in the binary unit that fits; ? for None."""
    return "?" if size_bytes is None else size_text(size_bytes)


def signed_size(size_bytes: float) -> str:
    """Give a difference of sizes with its sign."""
    return f"{'+' if size_bytes > 0 else ''}{size_text(size_bytes)}"


def signed_ms(ns: float) -> str:
    """Give nanoseconds as milliseconds with their sign."""
    return f"{ns / 1e6:+,.3f}" if ns else ms(0)


def signed_percent(ratio: float | None) -> str:
    """Give a relative difference as a percentage with its sign; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{ratio * 100:+,.1f} %"


def amount(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Give a value of a metric: milliseconds without their unit, or a percentage."""
    return ms(value) if unit == "ns" else percent(value)


def change(difference: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Give a difference of two values of a metric, with its sign: milliseconds, or points."""
    if difference is None:
        return NOT_APPLICABLE
    return signed_ms(difference) if unit == "ns" else f"{difference * 100:+.1f} points"


def with_unit(value: float | None, unit: Literal["ns", "ratio"]) -> str:
    """Give a value with its unit, as in a sentence."""
    return f"{ms(value)} ms" if unit == "ns" and value is not None else amount(value, unit)
