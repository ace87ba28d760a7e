"""How fast messages are between ranks, which shows how fast the links of their devices are."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.wait_transfer import BASELINE_QUANTILE
from overlapscope.analysis.exposure.fast_calls import of_many_calls
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline

MESSAGES: Final = ("send", "recv")

MessageLinks = dict[frozenset[int], float]
"""By pair of ranks, the rate of its fast messages in bytes a ns."""


def message_links(timelines: Iterable[RankTimeline], least_bytes: int) -> MessageLinks:
    """Return how fast messages are between ranks, of the pairs that exchange enough of a size, of
    `least_bytes` or more."""
    found: MessageLinks = {}
    for timeline in timelines:
        calls = timeline.collectives
        rows = rows_named(calls.op, timeline.names, MESSAGES.__contains__) & (calls.peer != NONE)
        rows &= (calls.bytes >= least_bytes) & (calls.start_ns != NONE) & (calls.end_ns > calls.start_ns)
        own = np.flatnonzero(rows)
        for alike in of_many_calls(factorize_rows([calls.op[own], calls.peer[own], calls.bytes[own]])[0]):
            messages = own[alike]
            took_ns = np.quantile((calls.end_ns - calls.start_ns)[messages], BASELINE_QUANTILE)
            pair = frozenset((timeline.rank, int(calls.peer[messages[0]])))
            found[pair] = max(found.get(pair, 0.0), float(calls.bytes[messages[0]] / took_ns))
    return found
