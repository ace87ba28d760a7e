"""The exposed time of any window of a rank, shared out to the kinds of collective that own it."""

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.across import Transfers
from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.call_kind import Shares, call_kinds
from overlapscope.analysis.causes import owned
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.run import RankTimeline

Window = tuple[int, int]


class ExposedShares:
    """One rank's communication, each moment given to one collective, ready for any windows."""

    __slots__ = ("_exposed", "_kind", "_split", "_starts", "_untils", "kind_of", "kinds")

    def __init__(self, timeline: RankTimeline, transfers: Transfers) -> None:
        self.kinds, self.kind_of = call_kinds(timeline)
        mine = owned(timeline)
        own = np.flatnonzero(mine.until_ns > mine.start_ns)
        own = own[np.argsort(mine.start_ns[own], kind="stable")]
        self._starts, self._untils = mine.start_ns[own], mine.until_ns[own]
        place = np.where(mine.row[own] == NONE, -1, mine.row[own])
        self._kind = np.append(self.kind_of, len(self.kinds))[place]
        self._split = np.append(transfers.transfer_ns, NONE)[place] != NONE
        cover = Coverage.of(timeline.spans)
        self._exposed = BusyTime(difference(cover.comm, cover.compute))

    def within(self, windows: Sequence[tuple[Window, int]], columns: int) -> tuple[Shares, Ints]:
        """Give the shares of windows, each with its column; and of each column what waiting could not be split from."""
        unsplit = np.zeros(columns, np.int64)
        none = np.empty(0, np.int64)
        parts = [(none, none, none)]
        for (begin, end), column in windows:
            first = int(np.searchsorted(self._untils, begin, "right"))
            here = slice(first, int(np.searchsorted(self._starts, end, "left")))
            exposed = self._exposed.within(np.maximum(self._starts[here], begin), np.minimum(self._untils[here], end))
            unsplit[column] += exposed[~self._split[here]].sum()
            parts.append((self._kind[here], np.full(exposed.size, column, np.int64), exposed))
        kind, column_of, amount = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Shares.of((*self.kinds, None), kind, column_of, amount), unsplit
