"""Times with three significant digits; the exact value is shown on hover, and in tables beside charts."""

from collections.abc import Sequence
from math import floor, log10
from typing import Final

import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.report.formatting import NOT_APPLICABLE, ms

DIGITS: Final = 3


class Time(msgspec.Struct, frozen=True):
    """A time in a sentence; None where it is not known."""

    ns: float | None


Words = Sequence[str | Time]
"""A sentence with times in it."""


Figure = tuple[str, "str | Time", Words]
"""A key figure: its name, its value, and the text below."""


def rounded_ms(ns: float | None) -> str:
    """Return nanoseconds as text in milliseconds with three significant digits, below 1 ms with two decimals; n/a for
    None."""
    if ns is None:
        return NOT_APPLICABLE
    value = ns / 1e6
    if abs(value) < 1:
        return f"{value + 0.0:.2f}"
    decimals = DIGITS - 1 - floor(log10(abs(value)))
    shown = round(value, decimals)
    decimals = max(DIGITS - 1 - floor(log10(abs(shown))), 0)  # 9.999 is 10.0
    return f"{shown:,.{decimals}f}"


def exact_text(words: Words) -> str:
    """Return a sentence with its times in milliseconds with three decimals, as commands print it."""
    return "".join(each if isinstance(each, str) else f"{ms(each.ns)} ms" for each in words)


def time(ns: float | None, *, unit: bool = True, kind: str = "time") -> Component:
    """Return a time with three significant digits, and the exact one on hover; `kind` is its class."""
    if ns is None:
        return html.Span(NOT_APPLICABLE, className=kind)
    return html.Span(f"{rounded_ms(ns)} ms" if unit else rounded_ms(ns), title=f"{ms(ns)} ms", className=kind)


def with_times(words: Words) -> list[Component | str]:
    """Return a sentence as children of a component."""
    return [each if isinstance(each, str) else time(each.ns) for each in words]
