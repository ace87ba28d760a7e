"""Find the same call on all participating ranks, to mark it on all of them on hover."""

from collections.abc import Mapping

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import Run


class LinkedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call on its ranks, and its row in the `Collectives` of each."""

    ranks: tuple[int, ...]
    rows: tuple[int, ...]


class CallLinks:
    """Index of matched calls: which collectives of different ranks are the same call."""

    def __init__(self, run: Run, cross_rank: CrossRank) -> None:
        self._blocks: list[tuple[tuple[int, ...], Ints]] = [
            (each.block.ranks, each.block.rows) for each in (*cross_rank.splits, *cross_rank.uneven)
        ]
        self._blocks += [
            ((each.sender, each.receiver), np.array([each.send_rows, each.recv_rows]))
            for each in cross_rank.pairs.pairs
        ]
        self._place: Mapping[int, Ints] = {
            rank: np.full((size(timeline.collectives), 2), NONE, np.int64) for rank, timeline in run.ranks.items()
        }
        for number, (ranks, rows) in enumerate(self._blocks):
            for rank, own in zip(ranks, rows, strict=True):
                self._place[rank][own] = np.stack((np.full(own.size, number), np.arange(own.size)), axis=1)

    def of(self, rank: int, row: int) -> LinkedCall:
        """Return the call of a rank's collective on all its ranks; for an unmatched one only this rank."""
        number, column = self._place[rank][row].tolist()
        if number == NONE:
            return LinkedCall(ranks=(rank,), rows=(row,))
        ranks, rows = self._blocks[number]
        return LinkedCall(ranks=ranks, rows=tuple(rows[:, column].tolist()))
