"""Find expert imbalance (EP): tokens that are distributed unevenly over the ranks, and what that costs.

A dispatch sends each rank of an expert group the bytes of its experts' tokens; the combine after it returns them. The
rank with the most tokens computes longest and arrives last at the combine, where the others wait for it. Both show in
the sizes and starts of matched all-to-all calls; a dispatch is a call whose received bytes vary more between ranks than
the sent bytes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.dimensions import EXPERT
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.run import Run

MIN_IMBALANCE: Final = 1.2
"""The rank with the most bytes gets at least this many times the mean, over all calls, ..."""
MIN_CALLS: Final = 5
MIN_LAST: Final = 0.5
"""... arrives last at this share of the combines or more, and at twice the share expected by chance, ..."""
MIN_SHARE: Final = 0.01
"""... and the mean wait for it is at least this share of the recording, and a millisecond."""


class _Exchanges(msgspec.Struct, frozen=True, kw_only=True):
    """The uneven all-to-all calls of one group in order of time; rows are ranks, columns calls."""

    group: str | None
    ranks: tuple[int, ...]
    rows: Ints
    starts_ns: Floats
    """On the common clock."""
    sent: Ints
    received: Ints


def expert_imbalance(
    run: Run, cross_rank: CrossRank, coverage: Mapping[int, Coverage], window_ns: Mapping[int, int | None]
) -> list[Finding]:
    """Return a finding for each expert group whose ranks wait for the rank with the most tokens.

    Needs the bytes that each rank received (`received_bytes`). `window_ns` holds the length of each rank's recording.
    """
    by_group: dict[tuple[str | None, tuple[int, ...]], list[MatchedCalls]] = defaultdict(list)
    for block in cross_rank.matching.uneven:
        if _is_expert(run, block):
            by_group[block.group, block.ranks].append(block)
    found = []
    for blocks in by_group.values():
        calls = _exchanges(run, blocks, cross_rank.clocks)
        if calls is not None:
            found += _costly(run, calls, coverage, window_ns)
    return found


def _is_expert(run: Run, block: MatchedCalls) -> bool:
    timeline = run.ranks[block.ranks[0]]
    code = timeline.collectives.dimension[block.rows[0, 0]]
    return bool(code >= 0 and timeline.names[code] == EXPERT)


def _exchanges(run: Run, blocks: Sequence[MatchedCalls], clocks: Clocks) -> _Exchanges | None:
    rows = np.concatenate([block.rows for block in blocks], axis=1)
    starts = np.concatenate([clocks.starts(block) for block in blocks], axis=1)
    tables = [run.ranks[rank].collectives for rank in blocks[0].ranks]
    sent = np.array([table.bytes[own] for table, own in zip(tables, rows, strict=True)])
    received = np.array([table.received_bytes[own] for table, own in zip(tables, rows, strict=True)])
    known = ((sent != NONE) & (received != NONE)).all(axis=0)
    order = np.flatnonzero(known)[np.argsort(starts[:, known].max(axis=0), kind="stable")]
    if order.size == 0:
        return None
    return _Exchanges(
        group=blocks[0].group,
        ranks=blocks[0].ranks,
        rows=rows[:, order],
        starts_ns=starts[:, order],
        sent=sent[:, order],
        received=received[:, order],
    )


def _costly(
    run: Run, calls: _Exchanges, coverage: Mapping[int, Coverage], window_ns: Mapping[int, int | None]
) -> list[Finding]:
    is_dispatch = np.ptp(calls.received, axis=0) > np.ptp(calls.sent, axis=0)
    before = np.maximum.accumulate(np.where(is_dispatch, np.arange(is_dispatch.size), -1))
    combines = np.flatnonzero(~is_dispatch & (before >= 0))
    if combines.size < MIN_CALLS:
        return []
    tokens = calls.received[:, before[combines]]
    imbalance = float((tokens.max(axis=0) / np.maximum(tokens.mean(axis=0), 1.0)).mean())
    starts = calls.starts_ns[:, combines]
    fullest = tokens.argmax(axis=0)
    last = starts.argmax(axis=0) == fullest
    waits = starts.max(axis=0) - starts.mean(axis=0)
    cost_ns = float(waits[last].sum())
    length = max([each for rank in calls.ranks if (each := window_ns.get(rank))] or [0])
    often = max(MIN_LAST, 2 / len(calls.ranks)) if len(calls.ranks) > 2 else 0.75
    if imbalance < MIN_IMBALANCE or float(last.mean()) < often or cost_ns < max(MILLISECOND_NS, MIN_SHARE * length):
        return []
    share = tokens.sum(axis=1) / max(float(tokens.sum()), 1.0)
    named = f"group {calls.group}" if calls.group else "an unnamed group"
    overlap_figures = {
        f"{kind}_{part}_ns": value
        for kind, chosen in (("dispatch", np.flatnonzero(is_dispatch)), ("combine", np.flatnonzero(~is_dispatch)))
        for part, value in zip(
            ("hidden", "exposed"), _overlapped_and_exposed(run, calls, chosen, coverage), strict=True
        )
    }
    return [
        Finding(
            id=f"expert_imbalance:{calls.group or '?'}",
            severity="warning",
            title=f"expert load of {named} is imbalanced: the most loaded rank gets {imbalance:.2f} times the mean "
            f"number of tokens and arrives last at {int(last.sum())} of {combines.size} combines; the others wait "
            f"{cost_ns / 1e6:.3f} ms for it on average",
            evidence={
                "group": calls.group,
                "imbalance": imbalance,
                "received_share": {str(rank): float(part) for rank, part in zip(calls.ranks, share, strict=True)},
                "combines": int(combines.size),
                "fullest_came_last": int(last.sum()),
                "mean_wait_ns": round(cost_ns),
                **overlap_figures,
            },
            known_from="sizes and starts of matched all-to-all calls",
        )
    ]


def _overlapped_and_exposed(
    run: Run, calls: _Exchanges, chosen: Ints, coverage: Mapping[int, Coverage]
) -> tuple[int, int]:
    """Return the overlapped and the exposed nanoseconds of these calls, mean over ranks."""
    overlap_figures = total = 0
    for rank, rows in zip(calls.ranks, calls.rows, strict=True):
        table = run.ranks[rank].collectives
        starts, ends = table.start_ns[rows[chosen]], table.end_ns[rows[chosen]]
        overlap_figures += int(BusyTime(coverage[rank].compute).within(starts, ends).sum())
        total += int((ends - starts).sum())
    return round(overlap_figures / len(calls.ranks)), round((total - overlap_figures) / len(calls.ranks))
