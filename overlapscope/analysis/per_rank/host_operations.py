"""Find in which operation each thread of a CPU run was while it computed: the innermost one at each moment.

The compute spans of such a run are unions of operations, which have no common name.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    NONE,
    OPERATION,
    Codes,
    Columns,
    Floats,
    HostSpans,
    Ints,
    concat,
    make,
    take,
)
from overlapscope.timeline.intervals import BusyTime, Intervals, parts_inside, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import AUTOGRAD_NODE
from overlapscope.timeline.rows import sort_order, sum_by, unique, values_in
from overlapscope.timeline.run import SHAPES, RankTimeline, Run

_ENQUEUES: Final = re.compile(r"c10d::(?!(?:monitored_)?barrier)")
"""A barrier may block."""


class OperationPieces(Columns, frozen=True, kw_only=True):
    """Stretches of computation in one operation each, by lane and then in order of time; on the rank's own clock."""

    lane: Ints
    name: Codes
    """Of the innermost operation, as a code of the rank's names."""
    start_ns: Ints
    end_ns: Ints


class StepOperations(msgspec.Struct, frozen=True, kw_only=True):
    """What each complete step of a rank spent in each operation, without those that it encloses."""

    steps: tuple[int, ...]
    names: tuple[str, ...]
    own_ns: Ints
    """By name and step."""
    calls: Ints
    """How many of each name began in each step."""
    piece_ns: Floats
    """The median length of its pieces, which a few long ones leave as it is; NaN without any."""


def operation_pieces(timeline: RankTimeline, around: tuple[int, int] | None = None) -> OperationPieces | None:
    """Return in which operation each thread was while it computed; None with a device, and without host events.

    With `around`, a begin and an end, at least the pieces between them. Raises HostEventsError.
    """
    if timeline.has_device or not timeline.has_host_events:
        return None
    spans = timeline.spans
    computes = spans.kind == COMPUTE
    host = select_host_spans(timeline.host, (OPERATION,))
    if around is not None:
        begin, end = around
        computes &= (spans.start_ns < end) & (spans.end_ns > begin)
        host = take(host, (host.start_ns < end) & (host.end_ns > begin))
    found = []
    for lane in values_in(spans.lane[computes]).tolist():
        own = computes & (spans.lane == lane)
        found.append(_innermost(lane, host, union((spans.start_ns[own], spans.end_ns[own]))))
    return concat(found) if found else None


def operations_in_calls(timeline: RankTimeline) -> OperationPieces | None:
    """Return in which operation the threads of communication alone were during their calls, as gloo's are that add up
    sparse gradients; None with a device, and without host events. Raises HostEventsError.

    A message is a span of the thread that sends it, which computes beside it."""
    if timeline.has_device or not timeline.has_host_events:
        return None
    spans, host = timeline.spans, select_host_spans(timeline.host, (OPERATION,))
    calls = spans.kind == COMM
    found = []
    for lane in np.setdiff1d(host.lane, spans.lane[spans.kind == COMPUTE]).tolist():
        own = calls & (spans.lane == lane)
        if own.any():
            found.append(_innermost(lane, host, union((spans.start_ns[own], spans.end_ns[own]))))
    return concat(found) if found else None


class EnqueuingCalls(Columns, frozen=True, kw_only=True):
    """The operations in which threads of a CPU run began collectives, by lane and start; on the rank's own clock."""

    lane: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    own_ns: Ints
    """How long each lasted without other operations in it, such as copies of its input."""


def enqueuing_calls(timeline: RankTimeline) -> EnqueuingCalls | None:
    """Return the operations in which a rank's threads began collectives, which return as soon as these are enqueued;
    None with a device, and without host events. Raises HostEventsError."""
    if timeline.has_device or not timeline.has_host_events:
        return None
    host = select_host_spans(timeline.host, (OPERATION,))
    enqueues = rows_named(host.name, timeline.names, _ENQUEUES.match)
    rows = np.flatnonzero(enqueues)
    rows = rows[sort_order(host.lane[rows], host.start_ns[rows])]
    inside = np.zeros(rows.size, np.int64)
    for lane in values_in(host.lane[rows]).tolist():
        own, others = host.lane[rows] == lane, (host.lane == lane) & ~enqueues
        busy = BusyTime(union((host.start_ns[others], host.end_ns[others])))
        calls = rows[own]
        # What lies around a call is no part of it: a call in another operation has none inside that is not its own.
        around = busy.within(host.start_ns[calls] - 1, host.start_ns[calls]) > 0
        inside[own] = np.where(around, 0, busy.within(host.start_ns[calls], host.end_ns[calls]))
    start, end = host.start_ns[rows], host.end_ns[rows]
    return make(
        EnqueuingCalls, rows.size, lane=host.lane[rows], name=host.name[rows], start_ns=start, end_ns=end,
        own_ns=end - start - inside,
    )  # fmt: skip


def pieces_within(pieces: OperationPieces, lane: Ints, start_ns: Ints, end_ns: Ints) -> OperationPieces:
    """Return the parts of the pieces that lie inside intervals, each on a lane; those of one lane do not overlap."""
    found = []
    for each in values_in(lane).tolist():
        mine, own = lane == each, take(pieces, pieces.lane == each)
        inside = union((start_ns[mine], end_ns[mine]))
        parts, piece = parts_inside(Intervals(own.start_ns, own.end_ns), inside)
        found.append(_pieces(each, own.name[piece], parts))
    return concat(found) if found else take(pieces, np.zeros(0, np.int64))


def operation_times(timeline: RankTimeline, pieces: OperationPieces) -> dict[str, int]:
    """Return how long a host computed in the operations of each name in the whole recording, in nanoseconds, without
    those inside them."""
    codes, row = np.unique(pieces.name, return_inverse=True)
    sums = sum_by(row.ravel(), pieces.end_ns - pieces.start_ns, codes.size)
    return {timeline.names[code]: ns for code, ns in zip(codes.tolist(), sums.tolist(), strict=True)}


def step_operations(
    timeline: RankTimeline, pieces: OperationPieces, windows: Sequence[StepWindow]
) -> StepOperations | None:
    """Return what the complete steps of a rank spent in each operation; None without such steps.

    A step counts with what computed inside its window. Raises HostEventsError.
    """
    complete = sorted((each.window, each.step) for each in windows if each.complete and each.window)
    if not complete:
        return None
    begin, end = np.array([window for window, _ in complete], np.int64).T
    parts, piece = parts_inside(Intervals(pieces.start_ns, pieces.end_ns), Intervals(begin, end))
    step = np.searchsorted(begin, parts.starts, side="right") - 1
    codes, name = np.unique(pieces.name[piece], return_inverse=True)
    at = name.ravel() * begin.size + step
    own_ns = sum_by(at, parts.ends - parts.starts, codes.size * begin.size)
    return StepOperations(
        steps=tuple(number for _, number in complete),
        names=tuple(timeline.names[code] for code in codes.tolist()),
        own_ns=own_ns.reshape(codes.size, begin.size),
        calls=_calls(timeline, codes, begin, end),
        piece_ns=_medians(at, parts.ends - parts.starts, codes.size * begin.size).reshape(codes.size, begin.size),
    )


def empty_ranges_ns(operations: StepOperations | None) -> int | None:
    """Return how long the median step was in ranges in which autograd runs a node and its hooks while no operation ran
    in them: Python of hooks, or a thread that wakes up. None where that is not known."""
    if operations is None or not operations.steps:
        return None
    rows = [row for row, name in enumerate(operations.names) if name.startswith(AUTOGRAD_NODE)]
    return int(np.median(operations.own_ns[rows].sum(axis=0)))


def same_inputs(timeline: RankTimeline) -> bool:
    """Return whether the operations of all complete steps are known to be the same, with inputs of the same shapes, so
    that they had the same to do."""
    shapes = timeline.steps.input_shapes[~timeline.steps.cut]
    return bool(shapes.size > 1 and shapes[0] != NONE and (shapes == shapes[0]).all())


def other_inputs(timeline: RankTimeline) -> bool:
    """Return whether the operations of some complete steps are known to have had inputs of other shapes than others."""
    shapes = timeline.steps.input_shapes[~timeline.steps.cut]
    return bool(unique(shapes[shapes != NONE]).size > 1)


def _medians(key: Ints, values: Ints, keys: int) -> Floats:
    """Return the median of each key's values, the lower of two; NaN of a key without any."""
    order = np.lexsort((values, key))
    many = np.bincount(key, minlength=keys)
    first = np.cumsum(many) - many
    found: Floats = np.full(keys, np.nan)
    there = many > 0
    found[there] = values[order[(first + (many - 1) // 2)[there]]]
    return found


def _calls(timeline: RankTimeline, codes: Codes, begin: Ints, end: Ints) -> Ints:
    """Return how many operations of these names began in each window."""
    if not codes.size:
        return np.zeros((0, begin.size), np.int64)
    host = select_host_spans(timeline.host, (OPERATION,))
    step = np.searchsorted(begin, host.start_ns, side="right") - 1
    name = np.minimum(np.searchsorted(codes, host.name), codes.size - 1)
    counted = (step >= 0) & (host.start_ns < end[step]) & (codes[name] == host.name)
    at = name[counted] * begin.size + step[counted]
    return np.bincount(at, minlength=codes.size * begin.size).astype(np.int64).reshape(codes.size, begin.size)


def _innermost(lane: int, host: HostSpans, when: Intervals) -> OperationPieces:
    """Return the pieces of a lane's time in its innermost operations."""
    calls = host.lane == lane
    moments = unique(np.concatenate([host.start_ns[calls], host.end_ns[calls]]))
    row = innermost_range(host, np.full(moments.size, lane, np.int64), moments, calls)
    at = np.flatnonzero(row[:-1] != NOWHERE)
    parts, piece = parts_inside(Intervals(moments[at], moments[at + 1]), when)
    return _pieces(lane, host.name[row[at[piece]]], parts)


def _pieces(lane: int, name: Codes, when: Intervals) -> OperationPieces:
    return make(OperationPieces, name.size, lane=lane, name=name, start_ns=when.starts, end_ns=when.ends)


def has_shapes(run: Run) -> bool:
    """Return whether the inputs of operations were recorded with their shapes, as its source states, or those of a step
    or of a gradient show."""
    every = run.ranks.values()
    return any(each.recorded.get(SHAPES) for each in every) or any(
        bool((each.steps.input_elements != NONE).any() or (each.gradients.elements > 0).any()) for each in every
    )
