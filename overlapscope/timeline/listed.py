"""A few of many, spelled for people."""

from collections.abc import Sequence


def listed(parts: Sequence[object], most: int = 8) -> str:
    """Give the first parts, such as ranks, with `...` where there are more."""
    return ", ".join(map(str, parts[:most])) + (", ..." if len(parts) > most else "")
