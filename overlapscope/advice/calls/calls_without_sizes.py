"""What all-reduces are of which no size was recorded, by their types, and by how many and how long ones an optimizer
follows: the one of all gradients, or those of layers over ranks."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.advice.calls.savings import transferring
from overlapscope.advice.rule_input import NOTHING, RuleInput, Windows, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.longer_than_like import LONGER
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import smallest_by
from overlapscope.timeline.run import RankTimeline

FEWEST: Final = 2
"""Least steps in which they are as many, and last alike: of one nobody knows whether it waits."""
LONG_NS: Final = 1_000_000
"""A call that transfers for as long may hold all gradients. A choice: many times NCCL's latency."""
LARGE_NS: Final = 100_000
"""One of a layer is large from here on. A choice: some times NCCL's latency."""
LAYERS: Final = 4
"""Least calls in forward, and in backward, of what may be layers over ranks. A choice: two a layer."""
LITTLE: Final = 0.05
"""Largest share of a step's compute that may lie between the end of backward and the optimizer. A choice: gradients are
scaled, or clipped."""


def all_gradients_at_once(given: RuleInput) -> list[CollectiveRow]:
    """Return the all-reduces of unknown size of which backward makes one in each step, the only one of its type: beside
    nothing, of one duration, with little but the optimizer computed after them."""
    reduces = _reductions(given, (None, DATA))
    backward = [row for row in reduces if row.phase == BACKWARD]
    types = Counter(row.dtype for row in backward)
    alone = [row for row in backward if types[row.dtype] == 1]
    ranks = [(timeline, _steps(given, timeline.rank)) for timeline, _ in given.some_at_hand()] if alone else []
    return [row for row in alone if ranks and all(_ends_backward(given, *rank, row) for rank in ranks)]


def layers_over_ranks(given: RuleInput) -> list[CollectiveRow]:
    """Return the all-reduces of unknown size and dimension of types of which each step has as many before its first
    call of backward as in it, of one duration: gradients are not reduced in forward."""
    reduces = _reductions(given, (None,))
    found = []
    ranks = [(timeline, _steps(given, timeline.rank)) for timeline, _ in given.some_ranks()] if reduces else []
    for dtype in {row.dtype for row in reduces}:
        rows = [row for row in reduces if row.dtype == dtype]
        if ranks and all(_in_both_passes(given, *rank, rows) for rank in ranks):
            found += rows
    return found


def _reductions(given: RuleInput, dimensions: Sequence[str | None]) -> list[CollectiveRow]:
    return [
        row
        for row in given.analysis.collectives
        if row.op == "all_reduce" and row.bytes is None and row.dtype is not None and row.dimension in dimensions
    ]


def _steps(given: RuleInput, rank: int) -> Windows:
    """Return the steps of a rank; where none are marked, the cycles of its optimizer."""
    return given.windows[rank] if given.per == "step" else given.optimizer_cycles.get(rank, ())


def _ends_backward(given: RuleInput, timeline: RankTimeline, steps: Windows, row: CollectiveRow) -> bool:
    """Return whether each step of a rank has one call of this row, which ends backward, and is beside nothing."""
    calls, compute = timeline.collectives, BusyTime(given.coverage[timeline.rank].compute)
    own, step = _in_steps(timeline, steps, given.calls_of(timeline, [row]))
    if len(steps) < FEWEST or step.size != len(steps) or np.unique(step).size != step.size:
        return False
    start, end, took = calls.start_ns[own], calls.end_ns[own], _transfer_ns(given, timeline, own)
    beside = compute.within(start, end)
    if took.min() < LONG_NS or took.max() > LONGER * took.min() or beside.sum() > NOTHING * (end - start).sum():
        return False
    begin, until = np.array(sorted(steps), np.int64)[step].T
    rest = compute.within(end, until) - _optimizer(timeline).within(end, until)
    return bool((rest <= LITTLE * compute.within(begin, until)).all())


def _optimizer(timeline: RankTimeline) -> BusyTime:
    """Return when kernels of a rank's optimizer ran."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    rows = rows[in_optimizer(timeline, rows)]
    return BusyTime(union((spans.start_ns[rows], spans.end_ns[rows])))


def _in_both_passes(given: RuleInput, timeline: RankTimeline, steps: Windows, rows: Sequence[CollectiveRow]) -> bool:
    """Return whether each step of a rank has as many calls of these rows before its first one of backward as in it."""
    calls = timeline.collectives
    own, step = _in_steps(timeline, steps, given.calls_of(timeline, rows))
    if len(steps) < FEWEST or not own.size:
        return False
    backward = rows_named(calls.phase, timeline.names, BACKWARD.__eq__)
    every, in_step = _in_steps(timeline, steps, backward)
    first = smallest_by(in_step, calls.start_ns[every], len(steps))
    own_backward = backward[own]
    before = ~own_backward & (calls.start_ns[own] < first[step])
    counts = [np.bincount(step[part], minlength=len(steps)) for part in (own_backward, before)]
    low, middle, high = np.quantile(_transfer_ns(given, timeline, own), (0.1, 0.5, 0.9))
    alike = middle >= LARGE_NS and high <= LONGER * low
    as_many = (counts[0] == counts[1]) & (counts[0] >= LAYERS)
    return bool(alike and as_many.all() and (own_backward | before).all())


def _in_steps(timeline: RankTimeline, steps: Windows, asked: Flags) -> tuple[Ints, Ints]:
    """Return the asked calls with times that begin in a step, and the place of that step."""
    calls = timeline.collectives
    own = np.flatnonzero(asked & (calls.start_ns != NONE) & (calls.end_ns != NONE))
    step = window_of(steps, calls.start_ns[own]) if steps else np.full(own.size, NONE)
    return own[step != NONE], step[step != NONE]


def _transfer_ns(given: RuleInput, timeline: RankTimeline, rows: Ints) -> Ints:
    """Return for how long these calls transfer, at most: since the last recorded member came."""
    return timeline.collectives.end_ns[rows] - transferring(given, timeline).since_ns[rows]
