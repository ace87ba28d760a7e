"""What a rank loses to its own host, of its idle and exposed time: by kind and call, with the longest piece's chain."""

from collections.abc import Callable, Sequence
from typing import Final, get_args

import numpy as np

from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.building.host_calls import ALLOCATES, SILENCE_NS
from overlapscope.analysis.graph.chains import chain_of_span
from overlapscope.analysis.graph.exposed import HOST_WAITED, ExposedPieces
from overlapscope.analysis.graph.found_causes import HostLoss, LossKind
from overlapscope.analysis.graph.idle import (
    BLOCKED_HOST,
    BY_POLL,
    DATA_LOADING,
    DRAINED,
    GARBAGE,
    LAUNCH_BOUND,
    LAUNCH_LATENCY,
    LONG_PAUSE,
    LONG_PAUSE_NS,
    RATE,
    IdlePieces,
)
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.ingest.build.host_ranges import innermost_range
from overlapscope.timeline.columns import NONE, OPERATION, Flags, HostSpans, Ints, take
from overlapscope.timeline.intervals import union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import Codes, rows_named
from overlapscope.timeline.rows import is_one_of, sum_by, values_in
from overlapscope.timeline.run import RankTimeline

KINDS: Final[tuple[LossKind, ...]] = get_args(LossKind)
NO_LOSS: Final = -1
LAUNCH_RATE, PAUSE, LONG, LOADING, GARBAGE_COLLECTION, ALLOCATION, BLOCKING_CALL, POLL, AWAITED = range(len(KINDS))
MOST_CALLS: Final = 8
"""Calls of a kind that are kept apart by name, the costliest; the others are left out."""
MOST_LINKS: Final = 8
NO_NAME: Final = -1
SCALAR: Final = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
"""Operations that hand one number to Python."""
SIZED: Final = ("aten::nonzero", "aten::unique", "aten::_unique2", "aten::masked_select", "aten::index")
"""Operations whose result has a size that only the device knows."""


def host_losses(graph: Graph, part: RankPart, timeline: RankTimeline, idle: IdlePieces) -> tuple[HostLoss, ...]:
    """Return what a rank loses to its host; `idle` are its idle pieces."""
    kind, name = _kinds(graph, part, timeline, idle)
    lost_to = []
    for each in values_in(kind[kind != NO_LOSS]).tolist():
        of_kind = np.flatnonzero(kind == each)
        names = values_in(name[of_kind].astype(np.int64))
        lost = sum_by(np.searchsorted(names, name[of_kind]), (idle.end_ns - idle.start_ns)[of_kind], names.size)
        for code in names[np.argsort(-lost, kind="stable")[:MOST_CALLS]].tolist():
            lost_to.append((KINDS[each], timeline.name(code), take(idle, of_kind[name[of_kind] == code])))
    ops = _ops_around(graph, part, timeline, [_longest_call(own) for *_, own in lost_to])
    return tuple(
        _loss(graph, part, timeline, own, each, call, op) for (each, call, own), op in zip(lost_to, ops, strict=True)
    )


def awaited_communication(
    graph: Graph, part: RankPart, timeline: RankTimeline, exposed: ExposedPieces
) -> tuple[HostLoss, ...]:
    """Return the exposed time of a rank that compute passed only because its host waited for the communication before
    it launched that, by call of the host, but for calls that allocate or free."""
    rows = np.flatnonzero(exposed.cause == HOST_WAITED)
    name = part.call_name[exposed.call[rows]]
    found = []
    for code in values_in(name.astype(np.int64)).tolist():
        if ALLOCATES.search(timeline.names[code]):
            continue
        own = take(exposed, rows[name == code])
        longest = int((own.end_ns - own.start_ns).argmax())
        (op,) = _ops_around(graph, part, timeline, [int(own.call[longest])])
        found.append(
            HostLoss(
                kind=KINDS[AWAITED], call=timeline.name(code), op=op, when=union((own.start_ns, own.end_ns)),
                longest=(int(own.start_ns[longest]), int(own.end_ns[longest])),
                chain=_chain(graph, part, timeline, int(own.next[longest])),
            )
        )  # fmt: skip
    return tuple(found)


def _chain(graph: Graph, part: RankPart, timeline: RankTimeline, span: int) -> tuple[Link, ...]:
    """Return what a span (position in the rank's spans) waited for, the latest first."""
    return chain_of_span(graph, {part.rank: timeline}, part.rank, int(part.span_row[span]), most=MOST_LINKS)


def _kinds(graph: Graph, part: RankPart, timeline: RankTimeline, idle: IdlePieces) -> tuple[Ints, Codes]:
    """Return the kind of each piece (-1 where the host did not decide), and the name of its call (-1 without one)."""
    cause, by = idle.cause, idle.blocker
    name = np.append(part.call_name, np.int32(NO_NAME))[np.where(idle.call == NONE, -1, idle.call)]
    marked = is_one_of(by, (DATA_LOADING, GARBAGE))
    blocked = is_one_of(cause, (BLOCKED_HOST, DRAINED)) & ~marked

    def calls(fits: Callable[[str], object]) -> Flags:
        return blocked & rows_named(name, timeline.names, fits)

    kind = np.full(cause.size, NO_LOSS, np.int64)
    kind[is_one_of(cause, (LAUNCH_BOUND, LAUNCH_LATENCY))] = LAUNCH_RATE
    kind[(cause == LAUNCH_BOUND) & (idle.stretch > RATE)] = PAUSE
    kind[(cause == LAUNCH_BOUND) & (idle.stretch == LONG_PAUSE)] = LONG
    kind[blocked] = BLOCKING_CALL
    woken_ns = np.where(blocked, _woken_late_ns(graph, part)[np.where(idle.call == NONE, -1, idle.call)], 0)
    kind[woken_ns >= SILENCE_NS], kind[woken_ns >= LONG_PAUSE_NS] = PAUSE, LONG
    kind[calls(ALLOCATES.search)] = ALLOCATION
    kind[calls(lambda called: "Launch" in called)] = LAUNCH_RATE
    kind[blocked & (by == BY_POLL)] = POLL
    kind[marked & (by == DATA_LOADING)] = LOADING
    kind[marked & (by == GARBAGE)] = GARBAGE_COLLECTION
    return kind, np.where(is_one_of(kind, (ALLOCATION, BLOCKING_CALL)), name, np.int32(NO_NAME))


def _woken_late_ns(graph: Graph, part: RankPart) -> Ints:
    """Return for each call, and last for none, how long after what it waited for had ended it returned.

    If long, its thread had no core; without the call it would not have had one either.
    """
    time = graph.nodes.time_ns
    ended = time[part.ends()][part.awaited] if part.spans else np.empty(0, np.int64)
    return np.append(np.where(part.awaited >= 0, time[part.returns()] - ended, 0), 0)


def _longest(own: IdlePieces) -> int:
    return int((own.end_ns - own.start_ns).argmax())


def _longest_call(own: IdlePieces) -> int:
    """Return the call that the longest piece waited for; NONE for none."""
    return int(own.call[_longest(own)])


def _loss(
    graph: Graph, part: RankPart, timeline: RankTimeline, own: IdlePieces, kind: LossKind, call: str | None,
    op: str | None,
) -> HostLoss:  # fmt: skip
    longest, after = _longest(own), own.cause == DRAINED
    return HostLoss(
        kind=kind, call=call, op=op,
        when=union((own.start_ns, own.end_ns)),
        longest=(int(own.start_ns[longest]), int(own.end_ns[longest])),
        chain=_chain(graph, part, timeline, int(own.span[longest])),
        after=union((own.start_ns[after], own.end_ns[after])) if after.any() else None,
    )  # fmt: skip


def _ops_around(graph: Graph, part: RankPart, timeline: RankTimeline, calls: Sequence[int]) -> list[str | None]:
    """Return for each call the operation that makes it (`calling_operation`); None without one, and for NONE.

    The graph is that of the rank alone.
    """
    time = graph.nodes.time_ns
    begin, end = time[part.begins()], time[part.returns()]
    known = np.array([call for call in calls if call != NONE], np.int64)
    if not known.size:
        return [None] * len(calls)
    times = list(zip(begin[known].tolist(), end[known].tolist(), strict=True))
    operations = select_host_spans(timeline.host, (OPERATION,), around=times)
    found = calling_operation(timeline, operations, part.call_lane[known], begin[known])
    names = dict(zip(known.tolist(), map(timeline.name, found.tolist()), strict=True))
    return [names.get(call) for call in calls]


def calling_operation(timeline: RankTimeline, operations: HostSpans, lane: Ints, moment_ns: Ints) -> Codes:
    """Return the name of the operation that makes a call on a thread at each moment of the rank's own clock: the
    innermost one. Where that reads a number, and one in `SIZED` is around it, that number is a size: the name is that
    one's. -1 without an operation."""
    names = np.append(operations.name, np.int32(NO_NAME))
    found: Codes = names[innermost_range(operations, lane, moment_ns)]
    reads = np.flatnonzero(rows_named(found, timeline.names, SCALAR.count))
    sized = rows_named(operations.name, timeline.names, SIZED.count)
    around = names[innermost_range(operations, lane[reads], moment_ns[reads], sized)]
    found[reads] = np.where(around == NO_NAME, found[reads], around)
    return found
