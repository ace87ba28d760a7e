"""Rule: each step broadcasts tensors of the same sizes, which ranks that update them alike need not send."""

from collections import Counter
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.savings import saved_without_ns
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.build.host_ranges import DDP_BUFFERS
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

FEWEST_STEPS: Final = 3
MOSTLY: Final = 0.75
"""Least share of the steps which broadcast the same. A choice: a first step may broadcast everything."""
LEAST_BYTES: Final = 64 << 10
"""A step that broadcasts less sends settings or results. A choice."""
OWN_PARTS: Final = "ZeroRedundancyOptimizer"
"""Each rank updates a part of the parameters, and sends it."""


class _Broadcasts(msgspec.Struct, frozen=True, kw_only=True):
    """What most steps of a rank broadcast."""

    calls: int
    size_bytes: int
    of_buffers: bool


def repeated_broadcasts(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where broadcasts of the same sizes in each step are exposed for long enough."""
    found = [_broadcasts(timeline, windows) for timeline, windows in given.some_at_hand()]
    one = found[0] if found else None
    rows = [row for row in given.analysis.collectives if row.op == "broadcast" and (row.dimension or DATA) == DATA]
    exposed = given.exposed_ns(rows)
    at_most = min(exposed, saved_without_ns(given, rows))
    if one is None or None in found or not given.is_worth(at_most):
        return None
    what = "DDP broadcasts its buffers" if one.of_buffers else "each step broadcasts tensors of the same sizes"
    calls = "one call" if one.calls == 1 else f"{one.calls} calls"
    unless = (
        "needed where they differ between ranks and are read"
        if one.of_buffers
        else "what all ranks update alike need not be sent; what one rank alone changes must be"
    )
    return recommended(
        given,
        id="repeated_broadcasts",
        title=f"Broadcast less: {what}, {one.size_bytes / 1e6:.1f} MB in {calls}, and {ms(exposed)} of a "
        f"{ms(given.step_ns)} {given.per} are exposed for it; {unless}",
        at_most_ns=at_most,
        apply={"ddp": "DistributedDataParallel(model, broadcast_buffers=False)  # or SyncBatchNorm"}
        if one.of_buffers
        else {"torch": "torch.distributed.broadcast(parameter, src=0)  # once, before the first step"},
        evidence={"calls": one.calls, "bytes": one.size_bytes, "exposed_ns": round(exposed)},
        measured=["the sizes of the broadcasts of each step, and what of them is exposed"],
        assumed=["that none of them is needed; durations include waiting for the rank that sends"],
    )


def _broadcasts(timeline: RankTimeline, windows: Windows) -> _Broadcasts | None:
    """Return what most steps of a rank broadcast; None where that differs, is little or not known, or each rank
    updates parts of its own."""
    calls, names = timeline.collectives, timeline.names
    if any(OWN_PARTS in name for name in names):
        return None
    other = rows_named(calls.dimension, names, lambda name: name not in ("", DATA))
    rows = np.flatnonzero(rows_named(calls.op, names, "broadcast".__eq__) & (calls.step != NONE) & ~other)
    rows = rows[window_of(windows, calls.start_ns[rows]) != NONE]
    if not rows.size or (calls.bytes[rows] == NONE).any():
        return None
    rows = rows[sort_order(calls.step[rows], calls.bytes[rows])]
    cuts = np.flatnonzero(np.diff(calls.step[rows])) + 1
    sizes = Counter(tuple(own.tolist()) for own in np.split(calls.bytes[rows], cuts))
    (usual, times), every = sizes.most_common(1)[0], max(len(windows), sizes.total())
    if every < FEWEST_STEPS or times < MOSTLY * every or sum(usual) < LEAST_BYTES:
        return None
    buffers = rows_named(calls.module[rows], names, DDP_BUFFERS.__eq__)
    return _Broadcasts(calls=len(usual), size_bytes=sum(usual), of_buffers=bool(buffers.all()))
