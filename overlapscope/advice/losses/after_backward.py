"""Find gradients that are reduced once backward has ended: calls in a row, beside which nothing is computed."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.losses.exposed_calls import REDUCE
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, window_of
from overlapscope.analysis.per_rank.optimizers import follow_optimizer
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, FORWARD
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, sort_order, sum_by
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_ddp

FEWEST_CALLS: Final = 4
"""So many reductions of several sizes in a row are gradients, whatever else a step reduces. A choice: a step's losses
and norms are fewer, and activations are of one size, with compute between."""
BY_THEMSELVES: Final = frozenset({"fsdp2", "horovod"})
MANY_CALLS: Final = 10
SHORT_NS: Final = 100_000
"""A call of which no size is known is small if it takes less. A choice: some times NCCL's latency."""
MOSTLY: Final = 0.5
BESIDE: Final = 0.1
"""Largest share of their time in which compute runs that is beside nothing. A choice: the first may begin before the
last kernel of backward ends."""
BESIDE_COPIES: Final = 0.5
"""The same where phases are known: beside calls that backward did not launch gradients of others are flattened."""
AFTER_BACKWARD: Final = (
    "# gradients are reduced after backward, beside nothing: reduce them during backward, in buckets "
    "(DistributedDataParallel, or hooks on parameters; DeepSpeed: overlap_comm=true)"
)
FLATTEN: Final = "; many small calls in a row: at least flatten gradients into a few"


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Reductions in a row, one row for each such row: calls of a group with less compute between than they take."""

    calls: Ints
    small: Ints
    """Those below `LARGE_BYTES`; of unknown sizes, the short ones."""
    exposed_ns: Ints
    of_gradients: Flags
    """Whether they are of several sizes (where these are not known, some take twice as long as others), or, where it is
    known what backward launched, large and the only row of their group in a step; and beside nothing."""


def of_gradients_after_backward(given: RuleInput) -> str | None:
    """Return what to do where most exposed time is of gradients that are reduced after backward; None elsewhere, and
    with DDP, FSDP and Horovod, which reduce in backward by themselves."""
    if not BY_THEMSELVES.isdisjoint(given.job.frameworks) or shows_ddp(given.run):
        return None
    every = own = 0
    many_small = False
    for timeline, windows in given.some_at_hand():
        cover = given.coverage[timeline.rank]
        exposed = BusyTime(difference(cover.comm, cover.compute))
        begin, end = np.array(windows, np.int64).reshape(-1, 2).T
        every += int(exposed.within(begin, end).sum())
        rows = _rows(timeline, windows, BusyTime(cover.compute), exposed, marked=given.per == "step")
        own += int(rows.exposed_ns[rows.of_gradients].sum())
        many = (rows.calls >= MANY_CALLS) & (rows.small > MOSTLY * rows.calls)
        many_small |= bool(many[rows.of_gradients].any())
    if not every or own <= MOSTLY * every:
        return None
    return AFTER_BACKWARD + FLATTEN * many_small


def _rows(timeline: RankTimeline, windows: Windows, compute: BusyTime, exposed: BusyTime, *, marked: bool) -> _Rows:
    """Return the rows of reductions of a rank that no forward or backward launches, nor anything after the optimizer of
    their step: these are no gradients of it. `marked` tells whether each window is a step."""
    calls, names = timeline.collectives, timeline.names
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    elsewhere = rows_named(calls.phase, names, lambda phase: phase in (FORWARD, BACKWARD)) | follow_optimizer(timeline)
    own = np.flatnonzero(timed & rows_named(calls.op, names, REDUCE.__contains__) & ~elsewhere)
    window = window_of(windows, calls.start_ns[own])
    own, window = own[window != NONE], window[window != NONE]
    group, _ = factorize_rows([calls.group[own], window])
    order = sort_order(group, calls.start_ns[own])
    own, group = own[order], group[order]
    start, end, sizes = calls.start_ns[own], calls.end_ns[own], calls.bytes[own]
    took, known = end - start, calls.bytes[own] != NONE
    between = compute.within(end[:-1], np.maximum(start[1:], end[:-1]))
    ends = (group[1:] != group[:-1]) | (between > took[1:] + took[:-1])
    row = np.append(0, np.cumsum(ends))[: own.size]
    count = int(row.max(initial=-1)) + 1
    number, first = np.bincount(row, minlength=count), np.searchsorted(row, np.arange(count))
    doubled = np.floor(np.log2(np.maximum(took, 1))).astype(np.int64)
    _, of_kind = factorize_rows([row, np.where(known, sizes, NONE + doubled)])
    kinds = np.bincount(row[of_kind], minlength=count)
    alone = np.bincount(group[first], minlength=int(group.max(initial=-1)) + 1)[group[first]] == 1
    large = sum_by(row, np.maximum(sizes, 0), count) >= LARGE_BYTES
    small = np.where(known, sizes < LARGE_BYTES, took < SHORT_NS)
    phased = BACKWARD in names
    most = BESIDE_COPIES if phased else BESIDE
    beside = sum_by(row, compute.within(start, end), count) > most * sum_by(row, took, count)
    return _Rows(
        calls=number,
        small=sum_by(row, small.astype(np.int64), count),
        exposed_ns=sum_by(row, exposed.within(start, end), count),
        of_gradients=~beside & (((number >= FEWEST_CALLS) & (kinds > 1)) | (marked & phased & alone & large)),
    )
