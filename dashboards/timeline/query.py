"""Parse the query of a timeline address, and format rank lists for it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope_dashboards.runs.site import NotFound
from overlapscope_dashboards.timeline.heat_map import DOMINATING, MODES
from overlapscope_dashboards.timeline.lanes import MAX_RANKS
from overlapscope_dashboards.timeline.tracks import SHOWN
from overlapscope_dashboards.timeline.window import TimeWindow, within

MAX_TEXT: Final = 200
FIRST_RANKS: Final = 4
"""Number of ranks whose lanes are shown if the address names none."""


class TimelineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A requested view of the timeline. Times are relative to the run's start."""

    window: TimeWindow
    ranks: tuple[int, ...]
    mode: str = DOMINATING
    text: str = ""
    show: tuple[str, ...] = ()
    """What is shown on demand, of `SHOWN`."""


def parse_timeline_query(query: Mapping[str, Any], whole: TimeWindow, ranks: Sequence[int]) -> TimelineQuery:
    """Parse `t0`, `t1` (ns from the run's start), `ranks` (`0-3,6`), `mode`, `q` and `show`; missing ones get defaults.

    A window is moved into the run. Raises NotFound where none of the ranks was recorded, or there is no such mode or
    row.
    """
    start, end = _integer(query.get("t0")), _integer(query.get("t1"))
    window = within(whole.start_ns if start is None else start, whole.end_ns if end is None else end, whole)
    mode = str(query.get("mode") or DOMINATING)
    if mode not in MODES:
        raise NotFound(f"The timeline has no mode {mode[:20]!r}.", [(each, f"?mode={each}") for each in MODES])
    show = [each for each in str(query.get("show") or "").split(",") if each]
    if not set(show) <= set(SHOWN):
        raise NotFound(
            f"The timeline cannot show {','.join(show)[:40]!r}.", [(each, f"?show={each}") for each in SHOWN]
        )
    return TimelineQuery(
        window=window,
        ranks=_ranks(str(query.get("ranks") or ""), ranks),
        mode=mode,
        text=str(query.get("q") or "")[:MAX_TEXT],
        show=tuple(each for each in SHOWN if each in show),
    )


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, such as `0-3,6`."""
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
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(rank for rank in there if first <= rank <= last)
    if not found:
        raise NotFound(
            f"No rank {text[:40]!r} was recorded; write ranks as 0-3,6.",
            [(f"rank {each}", f"?ranks={each}") for each in there[:MAX_RANKS]],
        )
    return tuple(sorted(found)[:MAX_RANKS])


def _integer(value: Any) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if abs(value) < 1 << 53 else None
    match = re.fullmatch(r"-?[0-9]{1,18}", str(value or ""))
    return int(match[0]) if match else None
