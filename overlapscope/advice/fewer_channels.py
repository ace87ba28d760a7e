"""Rule: collectives slow the compute beside them; use fewer channels, which leaves more multiprocessors to compute."""

from statistics import fmean
from typing import Final

import numpy as np

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, COMPUTE, NONE
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.cost.interference import Slowdown, slowdown

MOST_SPANS: Final = 2_000_000
"""Limit on the kernels of one rank that are compared: more take long and add little."""
TRIED: Final = 8
"""Channels to try where the present number is not known: a quarter of the maximum of 32 before NCCL 2.25."""
FEWEST: Final = 2


def interference(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the same kernels take longer beside a transfer, and it costs enough of a step."""
    library = Library.of(given.run)
    if library is None:
        return None
    slowed = [
        (found, cost)
        for timeline, own in given.some_at_hand()
        if timeline.has_device and (found := _slowed(timeline, moving := _moving(given, timeline))) is not None
        if (cost := _cost(given.coverage[timeline.rank].compute, moving, own, found)) is not None
    ]
    if not slowed:
        return None
    cost = fmean(each[1] for each in slowed)
    worst = max((each[0] for each in slowed), key=lambda each: each.mean)
    if worst.low <= 1 or not given.is_worth(cost):
        return None
    present = channels_of(given.run)
    tried = max(present // 2, FEWEST) if present else TRIED
    now = f" (now {present})" if present else ""
    return recommended(
        given,
        id="fewer_channels",
        title=f"Compute takes {worst.mean:.2f} times as long beside transfers, {ms(cost)} of a {ms(given.step_ns)} "
        f"{given.per}: try {tried} channels{now}",
        at_most_ns=cost,
        apply=fewer_channels(library, tried),
        evidence={
            "slowdown": worst.mean, "slowdown_low": worst.low, "slowdown_high": worst.high, "kernels": worst.kernels,
            "compared": worst.compared_share, "interference_ns": round(cost), "channels": present,
        },
        measured=["the same kernels beside transfers and without them, in different steps"],
        assumed=[
            "that fewer channels do not slow the transfers themselves: the gain is an upper bound",
            *(["that wait time is transfer time: not all ranks were recorded"] if not given.is_whole else []),
        ],
    )  # fmt: skip


def _slowed(timeline: RankTimeline, moving: Intervals) -> Slowdown | None:
    kernels = np.count_nonzero(timeline.spans.kind == COMPUTE)
    if not kernels or kernels > MOST_SPANS:
        return None
    return slowdown(timeline.spans, moving)


def _moving(given: RuleInput, timeline: RankTimeline) -> Intervals:
    """Return when data moved: the last part of each call, where wait time is separated from transfer time."""
    calls, spans = timeline.collectives, timeline.spans
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    transfer = given.transfers[timeline.rank].transfer_ns[timed]
    start = np.where(
        transfer == NONE, calls.start_ns[timed], np.maximum(calls.start_ns[timed], calls.end_ns[timed] - transfer)
    )
    lone = np.flatnonzero((spans.kind == COMM) & (spans.collective == NONE))
    return union((start, calls.end_ns[timed]), (spans.start_ns[lone], spans.end_ns[lone]))


def _cost(computing: Intervals, moving: Intervals, windows: Windows, found: Slowdown) -> float | None:
    """Return the extra time of compute because of transfers beside it, in ns, mean over windows."""
    if found.mean <= 1:
        return None
    beside = intersection(computing, moving)
    inside = time_of(windows)
    return length(intersection(beside, inside)) / len(windows) * (1 - 1 / found.mean)
