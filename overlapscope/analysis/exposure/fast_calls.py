"""How long calls transfer at most that could not be split from waiting: little longer than the fast ones."""

from collections.abc import Iterable, Mapping

import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.cross_rank.wait_transfer import BASELINE_CALLS, BASELINE_QUANTILE
from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.exposure.corresponding_groups import even_calls, least_of_corresponding
from overlapscope.analysis.exposure.longer_than_like import LONGER, since_ns
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.rows import factorize_rows, split_by
from overlapscope.timeline.run import RankTimeline, Run


def transfers_at_most(
    run: Run, ranks: Iterable[int], transfers: Mapping[int, Transfers], arrived: Mapping[int, Arrivals]
) -> Mapping[int, Ints]:
    """Return for how long each call of these ranks transfers, in ns, at most; NONE where no others show it.

    It is `LONGER` times as long as the fast ones of its operation, type and size, of its own group or, where these are
    too few, on any of these ranks, of one that corresponds to it: a group whose own are slower may have a slower link.
    """
    own = {rank: _of_own_groups(run.ranks[rank], transfers[rank], arrived[rank]) for rank in ranks}
    of_others = least_of_corresponding(run.ranks, own, run.groups)
    return {rank: np.where(own_ns == NONE, of_others[rank], own_ns) for rank, own_ns in own.items()}


def _of_own_groups(timeline: RankTimeline, transfers: Transfers, arrived: Arrivals) -> Ints:
    calls = timeline.collectives
    own = np.flatnonzero(even_calls(timeline) & (calls.group >= 0) & (transfers.transfer_ns == NONE))
    lasted_ns = (calls.end_ns - since_ns(timeline, arrived))[own]
    kind, _ = factorize_rows([each[own] for each in (calls.op, calls.group, calls.dtype, calls.bytes)])
    found = np.full(calls.op.size, NONE)
    for alike in of_many_calls(kind):
        found[own[alike]] = round(LONGER * float(np.quantile(lasted_ns[alike], BASELINE_QUANTILE)))
    return found


def of_many_calls(kind: Ints) -> list[Ints]:
    """Return the rows of each kind that has `BASELINE_CALLS`, so enough to know its fast ones."""
    rows = np.flatnonzero(np.bincount(kind)[kind] >= BASELINE_CALLS)
    return [rows[each] for each in split_by(kind[rows])]
