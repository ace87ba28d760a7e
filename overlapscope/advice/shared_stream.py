"""Rule: a collective waits on its stream for another group's or another operation; use a separate communicator."""

from collections import defaultdict
from typing import Final

import numpy as np

from overlapscope.advice.calls.backward_prefetch import OF_FSDP, backward_prefetch
from overlapscope.advice.calls.binding_calls import DIRECTLY_NS
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, NONE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
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
    needed_ns = 0
    for timeline, _ in given.some_at_hand():
        if timeline.has_device:
            own, own_needed_ns = _blocked(timeline, given)
            needed_ns += own_needed_ns
            for pair, ns in own.items():
                blocked[pair] += ns
    others = {pair: ns for pair, ns in blocked.items() if pair[0] != pair[1]}
    total = sum(blocked.values()) + needed_ns
    if not total or sum(others.values()) < OTHERS * total:
        return None
    queued, ahead = (round(ns * (1 - needed_ns / total)) for ns in (queued, ahead))
    if not given.is_worth(queued):
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


def _blocked(timeline: RankTimeline, given: RuleInput) -> tuple[dict[tuple[_CallKind, _CallKind], int], int]:
    """Return the ns that calls waited in the queue while the call before them on their stream ran, by both kinds (the
    one that ran first): of calls that begin at its end, as others then still wait for their data. And those of messages
    which a stream of their own would not let end earlier (`_could_run_beside`), in sum."""
    spans, calls = timeline.spans, timeline.collectives
    rows = np.flatnonzero((spans.kind == COMM) & (spans.collective != NONE) & (spans.launch_ns != NONE))
    rows = rows[sort_order(spans.lane[rows], spans.start_ns[rows])]
    if rows.size < 2:
        return {}, 0
    before, row = rows[:-1], rows[1:]
    same = spans.lane[before] == spans.lane[row]
    waited = spans.end_ns[before] - np.maximum(spans.launch_ns[row], spans.start_ns[before])
    follows = spans.start_ns[row] - spans.end_ns[before] <= DIRECTLY_NS
    chosen = same & follows & (waited > 0)
    first, second = spans.collective[before[chosen]], spans.collective[row[chosen]]
    waited, free = waited[chosen], _could_run_beside(timeline, given.arrivals[timeline.rank].arrived_ns, first, second)
    needed_ns = int(waited[~free].sum())
    first, second, waited = first[free], second[free], waited[free]
    keys = np.stack([calls.op[first], calls.group[first], calls.op[second], calls.group[second]], axis=1)
    kinds, at = np.unique(keys, axis=0, return_inverse=True)
    totals = np.zeros(len(kinds), np.int64)
    np.add.at(totals, at.ravel(), waited)
    name = timeline.name
    by_kinds = {
        ((name(a) or "unknown", name(b)), (name(c) or "unknown", name(d))): total
        for (a, b, c, d), total in zip(kinds.tolist(), totals.tolist(), strict=True)
    }
    return by_kinds, needed_ns


def _could_run_beside(timeline: RankTimeline, arrived_ns: Ints, first: Ints, second: Ints) -> Flags:
    """Return which calls `second` could have run beside the `first` before them: all but messages.

    A message after one with the same peer may be the answer to it, as that of a server is. One whose peer had not come
    when its stream was free would have waited for the peer there. Where the peer, or when it came, is not known,
    nothing says that it could.
    """
    calls = timeline.collectives
    messages = rows_named(calls.op, timeline.names, POINT_TO_POINT.__contains__)
    answers = messages[first] & ((calls.peer[first] == calls.peer[second]) | (calls.peer[first] == NONE))
    came = (arrived_ns[second] != NONE) & (arrived_ns[second] <= calls.start_ns[second] + DIRECTLY_NS)
    found: Flags = ~messages[second] | ((calls.peer[second] != NONE) & ~answers & came)
    return found


def _label(kind: _CallKind) -> str:
    op, group = kind
    return f"{op} of group {group}" if group else op
