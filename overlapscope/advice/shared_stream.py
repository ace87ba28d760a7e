"""Rule: a collective waits on its stream for another group's or another operation; use a separate communicator."""

from collections import defaultdict
from typing import Final

import numpy as np

from overlapscope.advice.calls.backward_prefetch import OF_FSDP, backward_prefetch
from overlapscope.advice.calls.binding_calls import DIRECTLY_NS
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, NONE
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

OTHERS: Final = 0.5
"""Least share of the queueing behind calls of another group or operation for a separate stream to help: behind calls of
the same kind the link is busy. A choice: most of the queueing."""
MOST_PAIRS: Final = 5
_CallKind = tuple[str, str | None]
"""Operation and group."""


def busy_lane(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where queueing behind other groups' calls is exposed; None for runs without devices.

    It is exposed of the calls that ran ahead of one that compute waited for, and of that one itself.
    """
    ahead = given.cause_ns("ahead")
    queued = given.cause_ns("queued") + ahead
    if not given.is_worth(queued):
        return None
    blocked: dict[tuple[_CallKind, _CallKind], int] = defaultdict(int)
    for timeline, _ in given.some_at_hand():
        if timeline.has_device:
            for pair, ns in _blocked(timeline).items():
                blocked[pair] += ns
    others = {pair: ns for pair, ns in blocked.items() if pair[0] != pair[1]}
    total = sum(blocked.values())
    if not total or sum(others.values()) < OTHERS * total:
        return None
    (before, behind), _ = max(others.items(), key=lambda each: each[1])
    if {before[0], behind[0]} == {*OF_FSDP} and before[1] == behind[1] and backward_prefetch(given) is not None:
        return None  # that is of the same calls
    share = sum(others.values()) / total
    return recommended(
        given,
        id="busy_lane",
        title=f"{ms(queued)} of a {ms(given.step_ns)} {given.per} are exposed while {_label(behind)} waits on "
        f"its stream for {_label(before)}: give it its own communicator",
        at_most_ns=queued,
        apply={
            "torch": "own = torch.distributed.new_group(ranks)  # its own communicator and stream",
            "fsdp2": "model.set_separate_reduce_scatter_group()  # torch 2.13 and later",
        },
        evidence={
            "queued_ns": queued,
            "ahead_ns": ahead,
            "behind_others": share,
            "pairs": [
                {"before": list(one), "behind": list(other), "ns": ns}
                for (one, other), ns in sorted(others.items(), key=lambda each: -each[1])[:MOST_PAIRS]
            ],
        },
        measured=["queueing on one stream, and the calls that ran there"],
        assumed=["that the link can carry both at once: the gain is an upper bound"],
    )


def _blocked(timeline: RankTimeline) -> dict[tuple[_CallKind, _CallKind], int]:
    """Return the ns that calls waited in the queue while the call before them on their stream ran, by both kinds (the
    one that ran first): of calls that begin at its end, as others then still wait for their data."""
    spans, calls = timeline.spans, timeline.collectives
    rows = np.flatnonzero((spans.kind == COMM) & (spans.collective != NONE) & (spans.launch_ns != NONE))
    rows = rows[sort_order(spans.lane[rows], spans.start_ns[rows])]
    if rows.size < 2:
        return {}
    before, row = rows[:-1], rows[1:]
    same = spans.lane[before] == spans.lane[row]
    waited = spans.end_ns[before] - np.maximum(spans.launch_ns[row], spans.start_ns[before])
    follows = spans.start_ns[row] - spans.end_ns[before] <= DIRECTLY_NS
    chosen = same & follows & (waited > 0)
    first, second = spans.collective[before[chosen]], spans.collective[row[chosen]]
    keys = np.stack([calls.op[first], calls.group[first], calls.op[second], calls.group[second]], axis=1)
    kinds, at = np.unique(keys, axis=0, return_inverse=True)
    totals = np.zeros(len(kinds), np.int64)
    np.add.at(totals, at.ravel(), waited[chosen])
    name = timeline.name
    return {
        ((name(a) or "unknown", name(b)), (name(c) or "unknown", name(d))): total
        for (a, b, c, d), total in zip(kinds.tolist(), totals.tolist(), strict=True)
    }


def _label(kind: _CallKind) -> str:
    op, group = kind
    return f"{op} of group {group}" if group else op
