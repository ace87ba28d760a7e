"""Say which ranks share the clock of one host, so that no offset is estimated between them."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.run import Run

TOGETHER_NS: Final = 200_000
"""A call whose ends on two ranks are no further apart than this ended together. Of ranks on one clock ..."""
FEWEST: Final = 2
OFTEN: Final = 0.1
"""... at least so many calls do, and this share of all: others end apart, as the thread that sees an end waits ..."""
MOST_OFTEN: Final = 0.5
"""... and at least this share of those that end any one distance apart, which is how far two clocks would be."""
EARLY_NS: Final = 100_000
"""By this much a call may end, as recorded, before its last member began."""


def shared_clocks(run: Run, blocks: Sequence[MatchedCalls]) -> dict[int, str]:
    """Return the host of each rank that shares a clock with the other ranks of that host.

    Those are the ranks that OverlapScope's own capture recorded, and those of CPU runs whose host another source names,
    where the matched calls agree with it: containers on two nodes may have one name.
    """
    found = {}
    for rank, timeline in run.ranks.items():
        settings = timeline.recorded.get("settings")
        host = settings.get("host") if isinstance(settings, dict) else None
        if isinstance(host, str):
            found[rank] = host
    for host, ranks in ranks_of_hosts(run).items():
        named = [rank for rank in ranks if rank not in found and not run.ranks[rank].has_device]
        if len(named) > 1 and _agree(named, blocks):
            found |= dict.fromkeys(named, host)
    return found


def _agree(ranks: Sequence[int], blocks: Sequence[MatchedCalls]) -> bool:
    """Return whether the ranks' calls end as on one clock, any two ranks compared."""
    apart: dict[tuple[int, int], list[Ints]] = {}
    for block in blocks:
        places = [at for at, rank in enumerate(block.ranks) if rank in ranks]
        if len(places) < 2:
            continue
        start, end = block.start_ns[places], block.end_ns[places]
        if (start.max(axis=0) - end.min(axis=0) > EARLY_NS).any():
            return False
        for one, other in combinations(range(len(places)), 2):
            pair = block.ranks[places[one]], block.ranks[places[other]]
            apart.setdefault(pair, []).append(end[other] - end[one])
    return bool(apart) and all(_end_together(np.sort(np.concatenate(each))) for each in apart.values())


def _end_together(apart_ns: Ints) -> bool:
    """Return whether often enough the same call ended at one moment on two ranks; `apart_ns` is in order."""
    most = int((np.searchsorted(apart_ns, apart_ns + 2 * TOGETHER_NS, side="right") - np.arange(apart_ns.size)).max())
    return int((np.abs(apart_ns) <= TOGETHER_NS).sum()) >= max(FEWEST, OFTEN * apart_ns.size, MOST_OFTEN * most)
