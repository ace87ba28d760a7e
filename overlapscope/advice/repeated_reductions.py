"""Rule: DDP reduces the same gradients after each of several passes of a step, where once is enough."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

DDP_FORWARD: Final = "DistributedDataParallel.forward"
"""torch's annotation around DDP's forward (1.10 and later)."""
MOSTLY: Final = 0.75
"""Least share of the steps that reduce which reduce so often. A choice: a first step rebuilds its buckets."""


def repeated_reductions(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where each step reduces its gradients once for each of several forwards of DDP, and
    that is exposed for long enough."""
    found = [each for timeline, windows in given.some_at_hand() if (each := _times(timeline, windows)) is not None]
    times = min(found, default=1)
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
        verdict="change",
        at_most_ns=saved,
        apply={
            "ddp": "with model.no_sync():  # around forward and backward of all passes of a step but the last\n"
            "    model(batch).sum().backward()"
        },
        evidence={"times": times, "exposed_ns": round(exposed)},
        measured=["the calls of each pass and their sizes, and what of them is exposed"],
        assumed=[
            "that the passes add up to one gradient, as they do where the optimizer runs once; sums are rounded in "
            "another order"
        ],
    )


def _times(timeline: RankTimeline, windows: Windows) -> int | None:
    """Return how often most steps of a rank reduce the same gradients; None where they do not, or it is not known."""
    numbers = list(_by_step(timeline, windows))
    if not numbers:
        return None
    times = int(np.median(numbers))
    return times if sum(each == times for each in numbers) >= MOSTLY * len(numbers) else None


def _by_step(timeline: RankTimeline, windows: Windows) -> Iterator[int]:
    """Yield for each step that reduces gradients how often it reduces those of the same sizes, each time after another
    forward of DDP and all before its first optimizer: 1 where that is not so."""
    calls, names = timeline.collectives, timeline.names
    if DDP_FORWARD not in names:
        return
    forward = timeline.annotations.name == names.index(DDP_FORWARD)
    begun = np.sort(timeline.annotations.start_ns[forward])
    reduces = np.array([name == "all_reduce" for name in (*names, "")], np.bool_)[calls.op]
    other = np.array([name not in ("", DATA) for name in (*names, "")], np.bool_)[calls.dimension]
    rows = np.flatnonzero(reduces & ~other & (calls.bytes != NONE) & (calls.step != NONE))
    launched = launch_times(timeline, rows)
    starts = np.array([start for start, _ in windows], np.int64)
    ends = np.array([end for _, end in windows], np.int64)
    for step in unique(calls.step[rows]).tolist():
        here = calls.step[rows] == step
        first = int(launched[here].min())
        if not ((starts <= first) & (first < ends)).any():
            continue  # of a step that is not complete
        optimizer = int(optimizer_ns(timeline, np.array([step]))[0])
        in_time = here & (launched < optimizer)
        yield _passes(np.searchsorted(begun, launched[in_time], side="right"), calls.bytes[rows[in_time]])


def _passes(number: Ints, volume: Ints) -> int:
    """Return the number of passes if all reduce as many bytes in calls of the same sizes; else 1."""
    passes = unique(number)
    sizes = [np.sort(volume[number == each]) for each in passes.tolist()]
    alike = all(np.array_equal(each, sizes[0]) for each in sizes)
    return passes.size if alike and passes.size else 1
