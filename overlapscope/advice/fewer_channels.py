"""Rule: collectives slow the compute beside them; use fewer channels, which leaves more multiprocessors to compute."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.per_rank.interference import interference as slowdown
from overlapscope.analysis.result import Recommendation, slowed_by_communication
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMM, NONE, Ints
from overlapscope.timeline.intervals import BusyTime, difference, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

TRIED: Final = 8
"""Channels to try where the present number is not known: a quarter of the maximum of 32 before NCCL 2.25."""
FEWEST: Final = 2
MOSTLY: Final = 0.9
"""The title says which share of the compute is beside calls with more channels than are tried, if it is at most this. A
choice."""
CHANNELS: Final = re.compile("nccl|rccl", re.I)
"""Names of kernels whose blocks are channels, one each."""


def interference(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the same kernels take longer beside communication, and it costs enough."""
    library = Library.of(given.run)
    lost = slowed_by_communication(given.analysis)
    if library is None or lost is None:
        return None
    cost, least, _ = lost
    worst = max((each.interference for each in given.analysis.ranks if each.interference), key=lambda each: each.times)
    if worst.low <= 1 or least <= 0 or not given.is_worth(cost):
        return None
    present = channels_of(given.run) or _most_blocks(given)
    tried = max(present // 2, FEWEST) if present else TRIED
    share = _share_beside(given, tried)
    if not share or (share < 1 and _slow_alike(given, tried)):
        return None
    now = f" (now {present})" if present else ""
    part = f"; {percent_text(share)} of such compute is beside calls with more" if share <= MOSTLY else ""
    return recommended(
        given,
        id="fewer_channels",
        title=f"Compute takes {worst.times:.2f} times as long beside communication, {ms(cost)} of a "
        f"{ms(given.step_ns)} {given.per}: try {tried} channels{now}{part}",
        at_most_ns=share * cost,
        apply=fewer_channels(library, tried),
        evidence={
            "slowdown": worst.times, "slowdown_low": worst.low, "slowdown_high": worst.high,
            "launches": worst.launches, "compared": worst.compared_share, "interference_ns": round(cost),
            "channels": present, "share_beside_more": share,
        },
        measured=["the same launches beside communication and free of it, in different steps"],
        assumed=["that fewer channels do not slow the transfers themselves: the gain is an upper bound"],
    )  # fmt: skip


def _most_blocks(given: RuleInput) -> int | None:
    """Return the largest number of channels of collectives by the grids of their kernels; None where none is known."""
    found = [int(blocks.max(initial=0)) for _, blocks, _ in _kernels(given)]
    return max(found, default=0) or None


def _share_beside(given: RuleInput, channels: int) -> float:
    """Return which share of compute beside collectives is beside some that have more channels than this, by the grids
    of their kernels; 1 where these are not known. Calls that have no more gain nothing."""
    more_ns = every_ns = 0
    for timeline, blocks, rows in _kernels(given):
        more_ns += _beside_ns(given, timeline, rows[(blocks > channels) | (blocks == NONE)])
        every_ns += _beside_ns(given, timeline, rows)
    return more_ns / every_ns if every_ns else 1.0


def _slow_alike(given: RuleInput, channels: int) -> bool:
    """Return whether compute beside calls with more channels than this is not clearly slower than beside the others, on
    most ranks at hand where both are known: then channels are not why."""
    clearly = []
    for timeline, blocks, rows in _kernels(given):
        spans, more = timeline.spans, (blocks > channels) | (blocks == NONE)
        many, every = (union((spans.start_ns[own], spans.end_ns[own])) for own in (rows[more], rows))
        few = difference(every, many)
        beside_many, beside_few = (
            slowdown(spans, own, other=other).value for own, other in ((many, few), (few, many))
        )  # fmt: skip
        if not isinstance(beside_many, str) and not isinstance(beside_few, str):
            clearly.append(beside_many.low > beside_few.high)
    return bool(clearly) and 2 * sum(clearly) <= len(clearly)


def _beside_ns(given: RuleInput, timeline: RankTimeline, rows: Ints) -> int:
    beside = union((timeline.spans.start_ns[rows], timeline.spans.end_ns[rows]))
    return int(BusyTime(given.coverage[timeline.rank].compute).within(beside.starts, beside.ends).sum())


def _kernels(given: RuleInput) -> Iterator[tuple[RankTimeline, Ints, Ints]]:
    """Yield ranks at hand with the blocks of each kernel of a collective, and its row."""
    for timeline, _ in given.some_at_hand():
        spans = timeline.spans
        rows = np.flatnonzero((spans.kind == COMM) & rows_named(spans.name, timeline.names, CHANNELS.search))
        yield timeline, spans.blocks[rows], rows
