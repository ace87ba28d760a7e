"""What is known of one collective, as plain words and numbers, asked for one call after another."""

from typing import Any, Final

import numpy as np

from overlapscope.analysis.across_ranks import Transfers
from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.exposed_causes import Causes, owned
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import RankTimeline

WORDS: Final = ("op", "executed_op", "group", "dtype", "algorithm", "protocol", "dimension", "phase", "module")
NUMBERS: Final = ("seq", "bytes", "group_size", "channels")


class CallWords:
    """Tells of a rank's collectives."""

    def __init__(self, timeline: RankTimeline, transfers: Transfers, causes: Causes) -> None:
        self._timeline, self._transfers, self._causes = timeline, transfers, causes
        self._cause = _main_causes(timeline, causes)

    def told(self, row: int) -> dict[str, Any]:
        """Tell of one row of `Collectives`; of a call that was not matched, neither transfer nor waiting."""
        calls, names = self._timeline.collectives, self._timeline.names
        told: dict[str, Any] = {}
        for name in WORDS:
            code = int(getattr(calls, name)[row])
            if code >= 0:
                told[name] = names[code]
        for name in NUMBERS:
            value = int(getattr(calls, name)[row])
            if value != NONE:
                told[name] = value
        transfer = int(self._transfers.transfer_ns[row])
        if transfer != NONE:
            told["transfer_ns"] = transfer
            told["wait_ns"] = int(calls.end_ns[row] - calls.start_ns[row]) - transfer
            told["last_rank"] = int(self._transfers.last[row])
        told["exposed_ns"] = int(self._causes.exposed_ns[row])
        if self._cause[row] >= 0:
            told["cause"] = tuple(CAUSES)[self._cause[row]]
        return told


def _main_causes(timeline: RankTimeline, causes: Causes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each collective the cause of most of its exposed time; -1 where none of it is exposed."""
    mine = owned(timeline)
    rows = np.flatnonzero(mine.row != NONE)
    shares = np.array([causes.busy[each].within(mine.start_ns[rows], mine.until_ns[rows]) for each in CAUSES])
    found = np.full(size(timeline.collectives), -1, np.int64)
    found[mine.row[rows]] = np.where(shares.max(axis=0) > 0, shares.argmax(axis=0), -1)
    return found
