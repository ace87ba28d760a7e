"""Search spans by name, and find the next hit."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.run import RankTimeline

MOST_DIGITS: Final = 19
"""A number with as many digits is no rank and no row."""


class SearchHits(msgspec.Struct, frozen=True, kw_only=True):
    """Found spans ordered by time, on the common clock."""

    rank: Ints
    row: Ints
    """Row in the rank's `Spans`."""
    start_ns: Ints
    end_ns: Ints

    @property
    def count(self) -> int:
        """Number of hits."""
        return int(self.row.size)


def find_spans(ranks: Sequence[tuple[RankTimeline, Ints, Ints]], text: str) -> SearchHits:
    """Return the spans whose name or host operation contains `text`, ignoring case; none for empty text.

    Each rank is given with the starts and ends of its spans on the common clock.
    """
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    wanted = text.strip().casefold()
    for timeline, start, end in ranks if wanted else ():
        matches = np.array([wanted in name.casefold() for name in timeline.names] + [False])  # code -1 is the last
        rows = np.flatnonzero(matches[timeline.spans.name] | matches[timeline.spans.host_op])
        found.append((np.full(rows.size, timeline.rank, np.int64), rows, start[rows], end[rows]))
    rank, row, start, end = (
        np.concatenate([each[at] for each in found]) if found else np.empty(0, np.int64) for at in range(4)
    )
    order = np.lexsort((row, rank, start))
    return SearchHits(rank=rank[order], row=row[order], start_ns=start[order], end_ns=end[order])


def index_of_hit(found: SearchHits, key: str) -> int | None:
    """Return the index of the hit that is the span `rank:row`; None where it is none."""
    rank, _, row = key.partition(":")
    if not (rank.isdecimal() and row.isdecimal() and max(len(rank), len(row)) < MOST_DIGITS):
        return None
    at = np.flatnonzero((found.rank == int(rank)) & (found.row == int(row)))
    return int(at[0]) if at.size else None


def next_hit(found: SearchHits, at: int | None, time_ns: int, step: int) -> int | None:
    """Return the index of the next (step 1) or previous (step -1) hit, wrapping around; None without hits.

    Relative to hit `at`; without it to a time: the first hit that starts at or after it, or the last before it.
    """
    if not found.count:
        return None
    if at is not None:
        return (at + step) % found.count
    later = int(np.searchsorted(found.start_ns, time_ns, side="left"))
    return (later if step > 0 else later - 1) % found.count
