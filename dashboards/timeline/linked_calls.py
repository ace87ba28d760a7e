"""The same call on the ranks that took part: what is marked on all of them when one is pointed at."""

from collections.abc import Mapping

import msgspec
import numpy as np

from overlapscope.analysis.across_ranks import Across
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import Run


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """One call on its ranks: row of each in its `Collectives`."""

    ranks: tuple[int, ...]
    rows: tuple[int, ...]


class Links:
    """Which collectives of different ranks are one call."""

    def __init__(self, run: Run, together: Across) -> None:
        self._blocks: list[tuple[tuple[int, ...], Ints]] = [
            (each.block.ranks, each.block.rows) for each in (*together.splits, *together.uneven)
        ]
        self._blocks += [
            ((each.sender, each.receiver), np.array([each.send_rows, each.recv_rows])) for each in together.pairs.pairs
        ]
        self._place: Mapping[int, Ints] = {
            rank: np.full((size(timeline.collectives), 2), NONE, np.int64) for rank, timeline in run.ranks.items()
        }
        for number, (ranks, rows) in enumerate(self._blocks):
            for rank, own in zip(ranks, rows, strict=True):
                self._place[rank][own] = np.stack((np.full(own.size, number), np.arange(own.size)), axis=1)

    def of(self, rank: int, row: int) -> Linked:
        """Return the call that a rank's collective is; of one that was not matched, that rank alone."""
        number, column = self._place[rank][row].tolist()
        if number == NONE:
            return Linked(ranks=(rank,), rows=(row,))
        ranks, rows = self._blocks[number]
        return Linked(ranks=ranks, rows=tuple(rows[:, column].tolist()))
