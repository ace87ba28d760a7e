"""Compute is slowed by collectives that run beside it: give them fewer of the device's multiprocessors."""

from statistics import fmean
from typing import Final

import numpy as np

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels
from overlapscope.advice.rule_input import Given, Windows, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, COMPUTE, NONE
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.interference import Slowdown, slowdown

MOST_SPANS: Final = 2_000_000
"""Kernels of one rank that are compared: what more would tell does not pay for the time."""
TRIED: Final = 8
"""Channels to try where the present number is not known: a quarter of the 32 that NCCL takes at most before 2.25."""
FEWEST: Final = 2


def interference(given: Given) -> Recommendation | None:
    """Return the recommendation where the same kernels surely take longer beside a transfer, and that costs enough."""
    library = Library.of(given.run)
    if library is None:
        return None
    told = [
        (found, cost)
        for timeline, own in given.some_at_hand()
        if timeline.has_device and (found := _slowed(timeline, moving := _moving(given, timeline))) is not None
        if (cost := _cost(given.coverage[timeline.rank].compute, moving, own, found)) is not None
    ]
    if not told:
        return None
    cost = fmean(each[1] for each in told)
    worst = max((each[0] for each in told), key=lambda each: each.mean)
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
            "compared": worst.told, "interference_ns": round(cost), "channels": present,
        },
        measured=["the same kernels beside transfers and free of them, in different steps"],
        assumed=[
            "that fewer channels slow the transfers themselves by nothing, which bounds the gain",
            *(["waiting counts as transfer: not all ranks were recorded"] if not given.is_whole else []),
        ],
    )  # fmt: skip


def _slowed(timeline: RankTimeline, moving: Intervals) -> Slowdown | None:
    kernels = np.count_nonzero(timeline.spans.kind == COMPUTE)
    if not kernels or kernels > MOST_SPANS:
        return None
    return slowdown(timeline.spans, moving)


def _moving(given: Given, timeline: RankTimeline) -> Intervals:
    """Return when data moved: a transfer is the end of its call, where waiting was split off."""
    calls, spans = timeline.collectives, timeline.spans
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    transfer = given.transfers[timeline.rank].transfer_ns[timed]
    start = np.where(
        transfer == NONE, calls.start_ns[timed], np.maximum(calls.start_ns[timed], calls.end_ns[timed] - transfer)
    )
    lone = np.flatnonzero((spans.kind == COMM) & (spans.collective == NONE))
    return union((start, calls.end_ns[timed]), (spans.start_ns[lone], spans.end_ns[lone]))


def _cost(computing: Intervals, moving: Intervals, windows: Windows, found: Slowdown) -> float | None:
    """Return how much longer compute took for the transfers beside it, mean over windows."""
    if found.mean <= 1:
        return None
    beside = intersection(computing, moving)
    inside = union((np.array([w[0] for w in windows]), np.array([w[1] for w in windows])))
    return length(intersection(beside, inside)) / len(windows) * (1 - 1 / found.mean)
