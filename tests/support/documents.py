"""Compare JSON documents by their figures."""

from collections.abc import Iterator
from typing import Any


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield where two documents differ in more than words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in before or key not in after:
                yield f"{place}.{key}: {'added' if key in after else 'gone'}"
            else:
                yield from differences(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}: {len(before)} entries, now {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(before, str) and isinstance(after, str):
        if before != after and not any(mark in before + after for mark in " /"):
            yield f"{place}: {before!r}, now {after!r}"
    elif type(before) is not type(after) or before != after:
        yield f"{place}: {str(before)[:60]}, now {str(after)[:60]}"
