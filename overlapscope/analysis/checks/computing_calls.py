"""Find collectives of a CPU run whose own threads compute much of what they expose, as gloo's that add up sparse
gradients: a faster link would not shorten that."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_operations import OperationPieces
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.display import list_some
from overlapscope.timeline.columns import COMM, Codes, size
from overlapscope.timeline.intervals import BusyTime, difference, intersection, union
from overlapscope.timeline.rows import sort_order, sum_by, values_in
from overlapscope.timeline.run import RankTimeline, Run

WORTH: Final = 0.05
"""Least share of a step that is worth a finding."""
MOST_NAMED: Final = 3


def computing_calls(
    run: Run,
    in_calls: Mapping[int, OperationPieces],
    coverage: Mapping[int, Coverage],
    windows: Mapping[int, Sequence[StepWindow]],
    step_ns: float | None,
) -> list[Finding]:
    """Return at most one finding; `in_calls` are the operations in calls by rank, `step_ns` is the length of a step.

    Only what is exposed counts, in the median complete step of a rank, as a mean over ranks.
    """
    in_steps = [_exposed_ns(pieces, coverage[rank], windows[rank]) for rank, pieces in in_calls.items() if size(pieces)]
    if not in_steps or not step_ns:
        return []
    computed_ns = sum(in_steps) / len(run.ranks)
    if computed_ns < WORTH * step_ns:
        return []
    calls, operations = (
        _longest(by_name)
        for by_name in (
            [_in_calls_ns(run.ranks[rank], pieces) for rank, pieces in in_calls.items()],
            [_in_operations_ns(run.ranks[rank], pieces) for rank, pieces in in_calls.items()],
        )
    )
    return [
        Finding(
            id="computing_calls",
            severity="warning",
            title=f"threads of {list_some(calls, MOST_NAMED)} compute for {format_ms(computed_ns)} of a step beside "
            f"which nothing else computes ({list_some(operations, MOST_NAMED)}): it counts as transfer, and a faster "
            "link would not shorten it",
            evidence={"calls": calls, "operations": operations, "computed_ns": round(computed_ns)},
            known_from="trace",
        )
    ]


def _exposed_ns(pieces: OperationPieces, cover: Coverage, windows: Sequence[StepWindow]) -> float:
    """Return how long the median complete step computes inside of exposed calls; 0 without such steps."""
    steps = [each.window for each in windows if each.complete and each.window]
    if not steps:
        return 0.0
    exposed = difference(cover.comm, cover.compute)
    computing = BusyTime(intersection(union((pieces.start_ns, pieces.end_ns)), exposed))
    return float(np.median(computing.within(*np.array(steps, np.int64).T)))


def _in_operations_ns(timeline: RankTimeline, pieces: OperationPieces) -> dict[str, int]:
    return _sums(timeline, pieces.name, pieces)


def _in_calls_ns(timeline: RankTimeline, pieces: OperationPieces) -> dict[str, int]:
    """Return how long the calls of each name computed: a thread makes one call at a time."""
    spans, name = timeline.spans, np.zeros_like(pieces.name)
    for lane in values_in(pieces.lane).tolist():
        rows = np.flatnonzero((spans.kind == COMM) & (spans.lane == lane))
        rows = rows[sort_order(spans.start_ns[rows])]
        own = pieces.lane == lane
        name[own] = spans.name[rows[np.searchsorted(spans.start_ns[rows], pieces.start_ns[own], side="right") - 1]]
    return _sums(timeline, name, pieces)


def _sums(timeline: RankTimeline, name: Codes, pieces: OperationPieces) -> dict[str, int]:
    codes, row = np.unique(name, return_inverse=True)
    sums = sum_by(row.ravel(), pieces.end_ns - pieces.start_ns, codes.size)
    return {timeline.names[code]: ns for code, ns in zip(codes.tolist(), sums.tolist(), strict=True)}


def _longest(ranks: Sequence[Mapping[str, int]]) -> list[str]:
    """Return all names, that with the longest sum over ranks first."""
    names = set().union(*ranks)
    return sorted(names, key=lambda name: (-sum(own.get(name, 0) for own in ranks), name))
