"""Rule: DDP reduces the same gradients after each of several passes of a step, where once is enough."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.per_rank.following_compute import OPTIMIZER
from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import DATA, DDP_FORWARD
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

LEAST_BYTES: Final = 4 << 10
"""Passes that reduce less in all reduce metrics. A choice."""
MOSTLY: Final = 0.75
"""Least share of the steps that reduce which reduce so often. A choice: a first step rebuilds its buckets."""


def repeated_reductions(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where each step reduces its gradients once for each of several forwards of DDP, and
    that is exposed for long enough."""
    times = min((_times(timeline, windows) for timeline, windows in given.some_at_hand()), default=1)
    if times == 1:
        return None
    rows = [row for row in given.analysis.collectives if row.op == "all_reduce" and row.dimension in (None, DATA)]
    exposed = given.exposed_ns(rows)
    saved = exposed * (1 - 1 / times)
    if not given.is_worth(saved):
        return None
    return recommended(
        given,
        id="repeated_reductions",
        title=f"Reduce gradients once a {given.per}: DDP reduces all of them {times} times before its optimizer, after "
        f"each of {times} passes; {ms(exposed)} of it are exposed",
        at_most_ns=saved,
        apply={
            "ddp": "with model.no_sync():  # around forward and backward of all passes of a step but the last\n"
            "    loss(model(batch), target).backward()"
        },
        evidence={"times": times, "exposed_ns": round(exposed)},
        measured=["the calls of each pass and their sizes, and what of them is exposed"],
        assumed=[
            "that the passes are of one model, and add up to one gradient, as they do where one optimizer runs once; "
            "sums are rounded in another order"
        ],
    )


def _times(timeline: RankTimeline, windows: Windows) -> int:
    """Return how often most steps of a rank reduce the same gradients; 1 where that is not known."""
    numbers = list(_by_step(timeline, windows))
    times = int(np.median(numbers)) if numbers else 1
    return times if sum(each == times for each in numbers) >= MOSTLY * len(numbers) else 1


def _by_step(timeline: RankTimeline, windows: Windows) -> Iterator[int]:
    """Yield for each step that reduces gradients how often it reduces those of the same sizes, each time after another
    forward of DDP and all before its only optimizer: 1 where that is not so."""
    calls, names = timeline.collectives, timeline.names
    if DDP_FORWARD not in names:
        return
    forward = timeline.annotations.name == names.index(DDP_FORWARD)
    begun = np.sort(timeline.annotations.start_ns[forward])
    reduces = np.array([name == "all_reduce" for name in (*names, "")], np.bool_)[calls.op]
    other = np.array([name not in ("", DATA) for name in (*names, "")], np.bool_)[calls.dimension]
    rows = np.flatnonzero(reduces & ~other & (calls.bytes != NONE) & (calls.step != NONE))
    launched = launch_times(timeline, rows)
    named = np.array([OPTIMIZER.match(name) is not None for name in names], np.bool_)
    optimizers = timeline.annotations.start_ns[named[timeline.annotations.name]]
    starts = np.array([start for start, _ in windows], np.int64)
    ends = np.array([end for _, end in windows], np.int64)
    for step in unique(calls.step[rows]).tolist():
        here = calls.step[rows] == step
        first = int(launched[here].min())
        if not ((starts <= first) & (first < ends)).any():
            continue  # of a step that is not complete
        optimizer = int(optimizer_ns(timeline, np.array([step]))[0])
        in_time = here & (launched < optimizer)
        window = starts[(starts <= first) & (first < ends)][0], ends[(starts <= first) & (first < ends)][0]
        one = np.count_nonzero((optimizers >= window[0]) & (optimizers < window[1])) == 1
        number = np.searchsorted(begun, launched[in_time], side="right")
        yield _passes(number, calls.bytes[rows[in_time]]) if one and in_time.any() else 1


def _passes(number: Ints, volume: Ints) -> int:
    """Return the number of passes if all reduce as many bytes in calls of the same sizes, and not few; else 1."""
    passes = unique(number)
    sizes = [np.sort(volume[number == each]) for each in passes.tolist()]
    alike = all(np.array_equal(each, sizes[0]) for each in sizes) and sizes[0].sum() >= LEAST_BYTES
    return passes.size if alike else 1
