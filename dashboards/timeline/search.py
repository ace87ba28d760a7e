"""Looking for a name: which spans of some ranks have it, and which of them comes next."""

from collections.abc import Sequence

import msgspec
import numpy as np

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.run import RankTimeline


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """Spans in order of time, on the common clock."""

    rank: Ints
    row: Ints
    """Row in the rank's `Spans`."""
    start_ns: Ints
    end_ns: Ints

    @property
    def number(self) -> int:
        """How many."""
        return int(self.row.size)


def hits(ranks: Sequence[tuple[RankTimeline, Ints, Ints]], text: str) -> Hits:
    """Return the spans whose name, or host operation, holds `text`, in whatever case; none for no text.

    Each rank comes with the starts and ends of its spans on the common clock.
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
    return Hits(rank=rank[order], row=row[order], start_ns=start[order], end_ns=end[order])


def from_here(found: Hits, at: int | None, time_ns: int, step: int) -> int | None:
    """Give the number of the next hit (step 1) or the one before (step -1), around the ends; None where there is none.

    From hit number `at`; without one, from a time: the first that starts at it or later, or the last before it.
    """
    if not found.number:
        return None
    if at is not None:
        return (at + step) % found.number
    later = int(np.searchsorted(found.start_ns, time_ns, side="left"))
    return (later if step > 0 else later - 1) % found.number
