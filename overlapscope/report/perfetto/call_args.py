"""The arguments of a collective's slice in Perfetto: names and numbers of one call."""

from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.exposure.exposed_causes import Causes
from overlapscope.analysis.exposure.owned_comm import own_communication
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import RankTimeline

WORDS: Final = ("op", "executed_op", "group", "dtype", "algorithm", "protocol", "dimension", "phase", "module")
NUMBERS: Final = ("seq", "bytes", "group_size", "channels")


class CallArguments:
    """Look up the arguments of a rank's collectives, one call at a time."""

    def __init__(self, timeline: RankTimeline, transfers: Transfers, causes: Causes) -> None:
        self._timeline, self._transfers, self._causes = timeline, transfers, causes
        self._cause = _main_causes(timeline, causes)

    def told(self, row: int) -> dict[str, Any]:
        """Return the arguments of one row of `Collectives`; an unmatched call has neither transfer nor wait time."""
        calls, names = self._timeline.collectives, self._timeline.names
        args: dict[str, Any] = {}
        for name in WORDS:
            code = int(getattr(calls, name)[row])
            if code >= 0:
                args[name] = names[code]
        for name in NUMBERS:
            value = int(getattr(calls, name)[row])
            if value != NONE:
                args[name] = value
        transfer = int(self._transfers.transfer_ns[row])
        if transfer != NONE:
            args["transfer_ns"] = transfer
            args["wait_ns"] = int(calls.end_ns[row] - calls.start_ns[row]) - transfer
            args["last_rank"] = int(self._transfers.last[row])
        args["exposed_ns"] = int(self._causes.exposed_ns[row])
        if self._cause[row] >= 0:
            args["cause"] = tuple(CAUSES)[self._cause[row]]
        return args


def _main_causes(timeline: RankTimeline, causes: Causes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each collective the cause of most of its exposed time; -1 where none of it is exposed."""
    exposed = own_communication(timeline)
    rows = np.flatnonzero(exposed.row != NONE)
    shares = np.array([causes.busy[each].within(exposed.start_ns[rows], exposed.until_ns[rows]) for each in CAUSES])
    found = np.full(size(timeline.collectives), -1, np.int64)
    found[exposed.row[rows]] = np.where(shares.max(axis=0) > 0, shares.argmax(axis=0), -1)
    return found
