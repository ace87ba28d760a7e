"""Find hosts of CPU runs that are held up in calls which only begin a collective: perhaps the threads that carry it
out, of their own process, take the core."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.host_operations import EnqueuingCalls
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.display import list_some
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import Run

USUAL_NS: Final = 200_000
"""Such a call takes 0.03 to 0.2 ms where its thread keeps its core."""
WORTH: Final = 0.03
"""Least share of a step, as a mean over ranks, that is worth a finding."""
MOST_NAMED: Final = 3


def slow_enqueue(
    run: Run,
    calls: Mapping[int, EnqueuingCalls],
    windows: Mapping[int, Sequence[StepWindow]],
    step_ns: float | None,
) -> list[Finding]:
    """Return at most one finding: for how long, beyond what is usual, hosts stood in calls that begin collectives.

    That is what each call lasts beyond USUAL_NS, without copies and other operations in it, in the mean of a rank's
    complete steps; one takes `step_ns`.
    """
    stood = {
        rank: _in_steps(own, steps)
        for rank, own in calls.items()
        if (steps := [each.window for each in windows[rank] if each.complete and each.window])
    }
    if not stood or not step_ns:
        return []
    lost_ns = {rank: float(each.mean()) for rank, each in stood.items()}
    mean_ns = fmean(lost_ns.values())
    if mean_ns < WORTH * step_ns:
        return []
    most = max(lost_ns, key=lost_ns.__getitem__)
    names = _by_lost_time(run, {rank: calls[rank] for rank in lost_ns})
    shown = list_some(names, MOST_NAMED)
    return [
        Finding(
            id="slow_enqueue",
            severity="warning",
            title=f"hosts stand in calls that only begin a collective ({shown}): {format_ms(mean_ns)} of a step in the "
            f"mean, {format_ms(lost_ns[most])} on rank {most}, beyond 0.2 ms a call; perhaps the threads that transfer "
            "take their core",
            evidence={
                "lost_ns": {str(rank): round(ns) for rank, ns in lost_ns.items()},
                "calls": names,
            },
            known_from="trace",
        )
    ]


def _by_lost_time(run: Run, calls: Mapping[int, EnqueuingCalls]) -> list[str]:
    """Return the names of the calls that lasted beyond what is usual, that with the most such time first."""
    lost: Counter[str] = Counter()
    for rank, own in calls.items():
        codes, at = np.unique(own.name, return_inverse=True)
        sums = sum_by(at.ravel(), np.maximum(own.own_ns - USUAL_NS, 0), codes.size)
        lost.update({run.ranks[rank].names[code]: ns for code, ns in zip(codes.tolist(), sums.tolist(), strict=True)})
    return [name for name, ns in lost.most_common() if ns]


def _in_steps(calls: EnqueuingCalls, steps: Sequence[tuple[int, int]]) -> Ints:
    """Return by step how long its calls lasted beyond what is usual."""
    begin, end = np.array(sorted(steps), np.int64).T
    at = np.searchsorted(begin, calls.start_ns, side="right") - 1
    inside = (at >= 0) & (calls.start_ns < end[at])
    beyond = np.maximum(calls.own_ns - USUAL_NS, 0)
    return sum_by(at[inside], beyond[inside], begin.size)
