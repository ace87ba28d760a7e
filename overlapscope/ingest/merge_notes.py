"""What could not be put together, and why: one sentence for each reason and group, with the ranks it holds for."""

from collections.abc import Iterable

import msgspec

MAX_RANKS = 16


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a user should know of one rank and one group."""

    rank: int
    group: str | None
    kind: str
    """Notes of one kind and group are told once, in the words of the first rank."""
    text: str
    """What happened, and what to do about it."""


def sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Give one sentence for each kind and group."""
    together: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        together.setdefault((note.kind, note.group or ""), []).append(note)
    return tuple(_sentence(each) for each in together.values())


def _sentence(notes: list[Note]) -> str:
    first, *others = sorted({note.rank: note for note in notes}.values(), key=lambda note: note.rank)
    of_group = "" if first.group is None else f", group {first.group!r}"
    like = ""
    if others:
        shown = ", ".join(str(note.rank) for note in others[:MAX_RANKS])
        rest = f" and {len(others) - MAX_RANKS} more" if len(others) > MAX_RANKS else ""
        like = f" (likewise rank{'s' if len(others) > 1 else ''} {shown}{rest})"
    return f"rank {first.rank}{of_group}: {first.text}{like}"
