"""A word that is not known, and the known one that was probably meant."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

LONGEST: Final = 80


def unknown(sort: str, word: str, known: Collection[str]) -> str:
    """Say that there is no such key, metric or the like, with the nearest one, else all there are."""
    near = get_close_matches(word, sorted(known), 1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
    return f"there is no {sort} {word[:LONGEST]!r}; {remedy}"
