"""A chart before it has a format: figures in milliseconds by category and series."""

from typing import Literal

import msgspec


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One colour of a chart; None where a value is not known."""

    name: str
    values: tuple[float | None, ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What a chart shows, and how: bars behind each other, bars under each other, or lines."""

    title: str
    words: str
    """What is to be seen, in a sentence, for who cannot see it."""
    kind: Literal["stacked", "grouped", "lines"]
    axis: str
    """What the values are, with their unit."""
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    """Each with a value a category."""
    tells: Literal["how much", "why"] = "how much"
    """Which question it answers."""
