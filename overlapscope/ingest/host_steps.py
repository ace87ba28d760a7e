"""Training steps as host annotations mark them, and the step that a moment belongs to."""

import numpy as np

from overlapscope.ingest.kineto_dialect import STEP
from overlapscope.ingest.ranges import Ranges
from overlapscope.timeline.columns import NONE, Ints, Steps, make, size


def host_steps(host: Ranges, names: list[str], base_ns: int = 0) -> tuple[Steps, int]:
    """Give the annotated steps in order of time; our own marks where there are any, else the profiler's.

    `base_ns` is added to all times. Also gives how many marks repeat the number of an earlier step that had ended.
    """
    matches = {code: found for code, name in enumerate(names) if (found := STEP.match(name))}
    rows = np.flatnonzero(np.isin(host.name, list(matches)))
    marks = {matches[int(host.name[row])]["by"] for row in rows.tolist()}
    by = "overlapscope.step" if "overlapscope.step" in marks else "ProfilerStep"
    rows = rows[[matches[int(host.name[row])]["by"] == by for row in rows.tolist()]] if rows.size else rows
    number = np.array([int(matches[int(host.name[row])]["number"]) for row in rows.tolist()], np.int64)
    order = np.lexsort((number, host.start_ns[rows]))
    rows, number = rows[order], number[order]
    # The same step marked on two threads is one step.
    first = np.unique(number, return_index=True)[1]
    keep = np.sort(first)
    ended = {int(number[at]): int(host.end_ns[rows[at]]) for at in keep.tolist()}
    repeated = sum(
        int(host.start_ns[rows[at]]) >= ended[int(number[at])]
        for at in np.delete(np.arange(number.size), keep).tolist()
    )
    steps = make(
        Steps,
        keep.size,
        recording=0,
        step=number[keep],
        start_ns=host.start_ns[rows[keep]] + base_ns,
        end_ns=host.end_ns[rows[keep]] + base_ns,
    )
    return steps, repeated


def repeated_steps(repeated: int) -> list[str]:
    """Give the warning about marks that `host_steps` left out, if there were any."""
    if not repeated:
        return []
    return [
        f"{repeated} step marks repeat the number of an earlier step and were left out; are several runs in one file?"
    ]


def step_at(steps: Steps, at_ns: Ints) -> Ints:
    """Give the number of the step whose annotation [start, end) holds each time; NONE outside all."""
    if size(steps) == 0:
        return np.full(at_ns.size, NONE, np.int64)
    row = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    inside = (row >= 0) & (at_ns < steps.end_ns[np.maximum(row, 0)])
    return np.where(inside, steps.step[np.maximum(row, 0)], NONE)
