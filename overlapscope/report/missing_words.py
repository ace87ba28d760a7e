"""Ranks that are missing: those that nothing was there of, and those whose file could not be read."""

from collections.abc import Collection


def missing_words(missing: Collection[int], unread: Collection[int]) -> str:
    """Give both numbers, e.g. `6 not recorded, 1 not readable`; nothing where no rank is missing."""
    lost = len({*unread}.intersection(missing)) if missing else len(unread)
    parts = ((len(missing) - (lost if missing else 0), "not recorded"), (lost, "not readable"))
    return ", ".join(f"{number} {what}" for number, what in parts if number)
