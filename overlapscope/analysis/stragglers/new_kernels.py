"""Find kernels that one rank alone ran, and what a rank launched for the first time: before that a host compiles, tunes
or loads a kernel, once for each shape."""

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any, Final

import numpy as np

from overlapscope.analysis.stragglers.host_cause import SharedInterval
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints, size
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order, unique
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""Kernels that one rank alone ran are its work if they took more than this share of what it computed longer."""
NEAR: Final = 2
"""A pause is before the first run of a kernel if that is one of so many that are launched next: what it is given may be
filled first. A choice."""


def kernels_alone(rank: int, run: Run, met: Sequence[SharedInterval], computed_ns: int) -> dict[str, Any]:
    """Return how many kernels of names that no other rank ran a rank ran before its late calls, how long these took,
    and the name of the longest; empty where that is not MOST of what it computed longer, `computed_ns`."""
    timeline = run.ranks[rank]
    spans = timeline.spans
    own = ((each, each.ranks.index(rank)) for each in met)
    within = union(*((each.begin_ns[row], np.maximum(each.begin_ns[row], each.end_ns[row])) for each, row in own))
    begun = BusyTime(within).within(spans.start_ns, spans.start_ns + 1) > 0
    rows = np.flatnonzero(_are_of(kernels_of_one_rank(run), timeline) & begun)
    taken = spans.end_ns[rows] - spans.start_ns[rows]
    total_ns = int(taken.sum())
    if total_ns <= MOST * computed_ns or not rows.size:
        return {}
    return {
        "kernels_alone": rows.size, "kernels_alone_ns": total_ns,
        "kernels_alone_op": timeline.names[int(spans.name[rows[taken.argmax()]])],
    }  # fmt: skip


def before_first_runs(timeline: RankTimeline, alone: Set[str], moments_ns: Ints) -> list[str | None]:
    """Return for each of these moments of a rank's host the name of a kernel that it launches for the first time just
    after it; None where there is none.

    What was launched before a recording is not known: in its first step, and without marks of steps, kernels count that
    no other rank ran, which are in `alone`.
    """
    spans, steps = timeline.spans, timeline.steps
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.launch_ns != NONE) & (spans.name >= 0))
    rows = rows[sort_order(spans.launch_ns[rows])]
    later = (spans.step[rows] > steps.step.min()) & (spans.step[rows] != NONE) if size(steps) else False
    is_first = np.zeros(rows.size + NEAR, np.bool_)
    is_first[np.unique(spans.name[rows], return_index=True)[1]] = True
    is_first[: rows.size] &= _are_of(alone, timeline)[rows] | later
    next_one = np.searchsorted(spans.launch_ns[rows], moments_ns)
    found = []
    for at in next_one.tolist():
        near = at + np.flatnonzero(is_first[at : at + NEAR])
        found.append(timeline.names[int(spans.name[rows[near[0]]])] if near.size else None)
    return found


def kernels_of_one_rank(run: Run) -> frozenset[str]:
    """Return the names of kernels that one rank alone ran; none where no other ran any."""
    by_rank = [names for timeline in run.ranks.values() if (names := _kernel_names(timeline))]
    ran = Counter(name for names in by_rank for name in names) if len(by_rank) > 1 else Counter[str]()
    return frozenset(name for name, ranks in ran.items() if ranks == 1)


def _are_of(names: Set[str], timeline: RankTimeline) -> Flags:
    """Return which spans of a rank are kernels of these names."""
    spans = timeline.spans
    return np.asarray((spans.kind == COMPUTE) & rows_named(spans.name, timeline.names, names.__contains__), np.bool_)


def _kernel_names(timeline: RankTimeline) -> set[str]:
    codes = unique(timeline.spans.name[timeline.spans.kind == COMPUTE])
    return {timeline.names[code] for code in codes.tolist() if code >= 0}
