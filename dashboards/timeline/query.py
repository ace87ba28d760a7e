"""What an address of the timeline asks for, and the address that asks for it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope_dashboards.runs.site import Unknown
from overlapscope_dashboards.timeline.heat_map import DOMINATING, MODES
from overlapscope_dashboards.timeline.lanes import MAX_RANKS
from overlapscope_dashboards.timeline.window import Window, within

MAX_TEXT: Final = 200
FIRST_RANKS: Final = 4
"""So many ranks are shown by lane where the address names none."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A view of the timeline. Times count from the run's begin."""

    window: Window
    ranks: tuple[int, ...]
    mode: str = DOMINATING
    text: str = ""


def asked(query: Mapping[str, Any], whole: Window, ranks: Sequence[int]) -> Asked:
    """Read `t0`, `t1` (nanoseconds from the run's begin), `ranks` (`0-3,6`), `mode` and `q`; what is missing is usual.

    A window is moved into the run. Raises Unknown where none of the ranks was recorded, or there is no such mode.
    """
    start, end = _integer(query.get("t0")), _integer(query.get("t1"))
    window = within(whole.start_ns if start is None else start, whole.end_ns if end is None else end, whole)
    mode = str(query.get("mode") or DOMINATING)
    if mode not in MODES:
        raise Unknown(f"The timeline has no mode {mode[:20]!r}.", [(each, f"?mode={each}") for each in MODES])
    return Asked(
        window=window,
        ranks=_ranks(str(query.get("ranks") or ""), ranks),
        mode=mode,
        text=str(query.get("q") or "")[:MAX_TEXT],
    )


def spelled(ranks: Sequence[int]) -> str:
    """Return ranks as `0-3,6`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _ranks(text: str, there: Sequence[int]) -> tuple[int, ...]:
    if not text.strip():
        return tuple(there[:FIRST_RANKS])
    found: set[int] = set()
    for part in text[:MAX_TEXT].split(","):
        told = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        if told:
            first, last = int(told[1]), int(told[2] or told[1])
            found.update(rank for rank in there if first <= rank <= last)
    if not found:
        raise Unknown(
            f"No rank {text[:40]!r} was recorded; write ranks as 0-3,6.",
            [(f"rank {each}", f"?ranks={each}") for each in there[:MAX_RANKS]],
        )
    return tuple(sorted(found)[:MAX_RANKS])


def _integer(value: Any) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if abs(value) < 1 << 53 else None
    told = re.fullmatch(r"-?[0-9]{1,18}", str(value or ""))
    return int(told[0]) if told else None
