"""Where exposed communication belongs, in a few lines: by dimension, phase and module."""

from overlapscope.analysis.collectives import CollectiveRow
from overlapscope.analysis.exposed_by import PLACES, UNKNOWN, ExposedBy

MAX_NAMES = 5
MAX_PLACE = 28


def place(row: CollectiveRow) -> str:
    """Give the dimension, phase and module of a kind of call in a few words; empty where none is known."""
    return _short(" ".join(each for each in (row.dimension, row.phase, row.module) if each))


def _short(words: str) -> str:
    return words if len(words) <= MAX_PLACE else f"{words[: MAX_PLACE // 2 - 2]}...{words[-MAX_PLACE // 2 + 1 :]}"


def where(exposed: ExposedBy) -> str:
    """Give a line for each way of placing that places anything; nothing where none does."""
    lines = []
    for kind in PLACES:
        sums: dict[str, int] = getattr(exposed, kind)
        if not set(sums) - {UNKNOWN}:
            continue
        shown = [f"{_short(name)} {ns / 1e6:,.3f} ms" for name, ns in list(sums.items())[:MAX_NAMES]]
        more = f", {len(sums) - MAX_NAMES} more" if len(sums) > MAX_NAMES else ""
        lines.append(f"exposed by {kind}: {', '.join(shown)}{more}")
    return "\n".join(lines)
