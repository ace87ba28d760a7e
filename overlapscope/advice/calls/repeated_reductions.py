"""Rule: DDP or FSDP reduces the same gradients after each of several passes of a step, where once is enough."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from overlapscope.advice.calls.backward_prefetch import OF_FSDP
from overlapscope.advice.job_kind import uses_fsdp1
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, DDP_FORWARD, FORWARD
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

OF_DDP: Final = ("all_reduce",)
SAVED_OF_FSDP: Final = ("reduce_scatter",)
"""What fewer reductions save: FSDP frees parameters after each backward, and gathers them again for the next pass."""
NO_SYNC: Final = (
    "with model.no_sync():  # around forward and backward of all passes of a step but the last\n"
    "    loss(model(batch), target).backward()"
)
WHOLE: Final = "  # each rank keeps the gradients whole until the last pass: look at memory"
NO_SYNC_2: Final = (
    "model.set_requires_gradient_sync(False)  # before all passes of a step but the last, then True; each rank keeps "
    "the gradients whole until then: look at memory"
)
OF_MEMORY: Final = "that memory holds the whole gradients, and that each pass gathers parameters again, as by default"
LEAST_BYTES: Final = 4 << 10
"""Passes that reduce less in all reduce metrics. A choice."""
MOSTLY: Final = 0.75
"""Least share of the steps that reduce which reduce so often. A choice: a first step rebuilds its buckets."""


def repeated_reductions(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where each step reduces its gradients once for each of several passes of DDP or FSDP,
    and that is exposed for long enough."""
    ops = OF_FSDP if "fsdp2" in given.job.frameworks else OF_DDP
    times = min((_times(timeline, windows, ops) for timeline, windows in given.some_at_hand()), default=1)
    if times == 1:
        return None
    name, saves = ("DDP", OF_DDP) if ops == OF_DDP else ("FSDP", SAVED_OF_FSDP)
    rows = [row for row in given.analysis.collectives if row.op in saves and row.dimension in (None, DATA)]
    exposed = given.exposed_ns(rows)
    saved = exposed * (1 - 1 / times)
    if not given.is_worth(saved):
        return None
    return recommended(
        given,
        id="repeated_reductions",
        title=f"Reduce gradients once a {given.per}: {name} reduces all of them {times} times before its optimizer, "
        f"after each of {times} passes; {ms(exposed)} of it are exposed",
        at_most_ns=saved,
        apply={"ddp": NO_SYNC} if ops == OF_DDP else {"fsdp2": NO_SYNC + WHOLE if uses_fsdp1(given.run) else NO_SYNC_2},
        evidence={"times": times, "exposed_ns": round(exposed)},
        measured=["the calls of each pass and their sizes, and what of reductions is exposed"],
        assumed=[
            "that the passes are of one model, and add up to one gradient, as they do where one optimizer runs once; "
            "sums are rounded in another order",
            *([] if ops == OF_DDP else [OF_MEMORY]),
        ],
    )


def _times(timeline: RankTimeline, windows: Windows, ops: Sequence[str]) -> int:
    """Return how often most steps of a rank reduce the same gradients; 1 where that is not known."""
    numbers = list(_by_step(timeline, windows, ops))
    times = int(np.median(numbers)) if numbers else 1
    return times if sum(each == times for each in numbers) >= MOSTLY * len(numbers) else 1


def _by_step(timeline: RankTimeline, windows: Windows, ops: Sequence[str]) -> Iterator[int]:
    """Yield for each step that reduces gradients how often it reduces those of the same sizes, each time after another
    forward and all before its only optimizer: 1 where that is not so."""
    calls, names = timeline.collectives, timeline.names
    other = np.array([name not in ("", DATA) for name in (*names, "")], np.bool_)[calls.dimension]
    rows = np.flatnonzero(rows_named(calls.op, names, ops.__contains__) & ~other & (calls.step != NONE))
    begun = _forwards_of_ddp(timeline) if ops == OF_DDP else _forwards_of_fsdp(timeline, rows)
    if not begun.size:
        return
    launched = launch_times(timeline, rows)
    named = np.array([OPTIMIZER_MARK.match(name) is not None for name in names], np.bool_)
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


def _forwards_of_ddp(timeline: RankTimeline) -> Ints:
    """Return when forwards of DDP began; ns, ascending."""
    notes = timeline.annotations
    return np.sort(notes.start_ns[rows_named(notes.name, timeline.names, DDP_FORWARD.__eq__)])


def _forwards_of_fsdp(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return when FSDP first gathers in forward in each step, and again after it reduced in backward, in ns, ascending;
    none where calls in forward reduce, as those of tensor parallelism do."""
    calls, names = timeline.collectives, timeline.names
    order = np.argsort(launch_times(timeline, rows), kind="stable")
    rows = rows[order]
    forward, backward = (rows_named(calls.phase[rows], names, phase.__eq__) for phase in (FORWARD, BACKWARD))
    gathers = rows_named(calls.op[rows], names, "all_gather".__eq__)
    if (forward & ~gathers).any():
        return np.empty(0, np.int64)
    reduces = backward & rows_named(calls.op[rows], names, "reduce_scatter".__eq__)
    reduced = np.cumsum(reduces)
    begin = np.flatnonzero(forward)
    first = np.append(True, np.diff(reduced[begin]) != 0)[: begin.size]
    return launch_times(timeline, rows[begin[first]])


def _passes(number: Ints, volume: Ints) -> int:
    """Return the number of passes if all reduce as many bytes in calls of the same sizes, and not few; else 1."""
    passes = unique(number)
    sizes = [np.sort(volume[number == each]) for each in passes.tolist()]
    alike = all(np.array_equal(each, sizes[0]) for each in sizes) and np.maximum(sizes[0], 0).sum() >= LEAST_BYTES
    return passes.size if alike else 1
