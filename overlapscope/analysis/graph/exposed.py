"""Assign one cause to every exposed nanosecond of a rank, from that rank alone: what the next compute waited for.

Where the next compute waited for something else, taking the communication away would gain nothing.
"""

from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import START_OF_RECORDING
from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.graph.building.device_waits import before_on_lane
from overlapscope.analysis.graph.call_queue import Queue
from overlapscope.analysis.graph.model import (
    EDGE_KINDS,
    EVENT,
    HOST_EDGES,
    HOST_STRETCH,
    INFERRED,
    LAUNCH,
    NO_GAP,
    OCCUPANCY,
    ON_LANE,
    OWN_CALL,
    OWN_NS,
    POLL,
    RUN_COMM,
    RUN_COMPUTE,
    RUN_COPY,
    SYNC,
    TRANSFER,
    Graph,
    NodeNumbers,
    RankPart,
)
from overlapscope.analysis.graph.walk import launched_before, unrecorded_until_ns
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Columns, Flags, Ints, Small, concat, make, take
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, parts_inside, union
from overlapscope.timeline.rows import is_one_of, sort_order
from overlapscope.timeline.run import RankTimeline

EXPOSED_CAUSES: Final = (
    "late_launch", "queued", "ahead", "dependency", "host_waited", "host_not_ready", "behind_copy", "behind_compute",
    "tail", "unknown", START_OF_RECORDING,
)  # fmt: skip
"""`dependency`: the next compute waited for it, or follows it on its stream. Of that, `late_launch`: its data were
ready before it was launched, and `queued`: its stream was busy with communication of another operation or group.
`ahead`: the next compute waited for a later call, of another operation or group, that was held by it on its stream.
`host_waited`: the next compute waited for its own launch alone, and its host had waited for the call before that.
`host_not_ready`: the next compute waited for its own launch. `behind_copy`, `behind_compute`: for another copy or
kernel. `tail`: no compute follows. `unknown`: no rule names it. `start_of_recording`: the next compute was
launched before the recording, or waited for what was: what the device computed beside the call is not recorded."""
(
    LATE_LAUNCH, QUEUED, AHEAD, DEPENDENCY, HOST_WAITED, HOST_NOT_READY, BEHIND_COPY, BEHIND_COMPUTE, TAIL, UNKNOWN,
    UNRECORDED,
) = range(len(EXPOSED_CAUSES))  # fmt: skip
_CAUSE: Final = np.full(len(EDGE_KINDS), DEPENDENCY, np.int8)
_CAUSE[[*HOST_EDGES, LAUNCH, OWN_CALL, SYNC, POLL]] = HOST_NOT_READY
_CAUSE[RUN_COPY], _CAUSE[RUN_COMPUTE], _CAUSE[OCCUPANCY] = BEHIND_COPY, BEHIND_COMPUTE, BEHIND_COMPUTE
_CAUSE[[RUN_COMM, TRANSFER]] = DEPENDENCY


_BY_HOST: Final = (*HOST_EDGES, LAUNCH, OWN_CALL)
"""What a host does, up to a launch."""


class ExposedPieces(Columns, frozen=True, kw_only=True):
    """Disjoint pieces that cover the exposed time exactly, each with one cause; times as in the graph."""

    start_ns: Ints
    end_ns: Ints
    cause: Annotated[Small, EXPOSED_CAUSES]
    span: Ints
    """The communication that owns it: of several that run, the one that ends last (position in the rank's spans)."""
    next: Ints
    """The compute span that follows (position in the rank's spans); NONE if none does."""
    needed: Ints
    """Of `ahead` the call that this compute waited for (position in the rank's spans); else NONE."""
    call: Ints
    """Of `host_waited` the call of the host in which that had waited (position in the rank's calls); else NONE."""


class _Bound(Columns, frozen=True, kw_only=True):
    """What the compute that follows exposed pieces waited for, in parts of these."""

    piece: Ints
    """Number of the piece."""
    start_ns: Ints
    end_ns: Ints
    cause: Annotated[Small, EXPOSED_CAUSES]
    awaited: Ints
    """The call that it waited for (position in the rank's spans); NONE where that is no communication of this rank."""
    needed: Ints
    """The call from whose end on it could begin, where that had waited for `awaited`, if for anything, on its stream
    alone; else NONE."""
    call: Ints
    """The call of the host in which that had waited for `awaited`, or for what followed it; NONE where it had not."""


class _Delays(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of a rank's communication; one row for each span."""

    late_ns: Ints
    queued_ns: Ints
    since_ns: Ints
    """When it was launched and its data were ready; NONE where that is not known."""


def exposed_pieces(graph: Graph, part: RankPart, timeline: RankTimeline, binding: Ints) -> ExposedPieces:
    """Return the causes of all exposed communication of one rank of a graph.

    `binding` holds the edge that bound each node, the predecessor that arrived last (`binding_edges`).
    """
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    comm, compute = np.flatnonzero(part.span_kind == COMM), np.flatnonzero(part.span_kind == COMPUTE)
    computing = union((start[compute], end[compute]))
    exposed = difference(union((start[comm], end[comm])), computing)
    owner, owned = _owners(comm, start, end)
    pieces, which = parts_inside(owned, exposed)
    loses = compute if part.prepares is None else compute[~(part.prepares | _finishes(part))[compute]]
    follows = _next_compute(start, loses, pieces.starts)
    awaited = _awaited_by_host(graph, part, binding) if part.on_device else None
    bound = _by_what_bound(graph, binding, part, follows, pieces, awaited)
    own, follows = owner[which][bound.piece], follows[bound.piece]
    # On one stream the next kernel cannot run beside the call, however early it is launched; on a thread it may
    # have run beside a message.
    lane_of_next = np.append(part.span_lane, NONE)[np.where(follows == NONE, -1, follows)]
    in_order = part.on_device & (lane_of_next == part.span_lane[own])
    causes = np.where(in_order, DEPENDENCY, bound.cause).astype(np.int8)
    by_host = (causes == DEPENDENCY) & ~in_order & _only_by_host(graph, part, own, bound, follows)
    causes[by_host] = HOST_WAITED
    early = np.append(launched_before(part), False)[np.where(follows == NONE, -1, follows)] & (causes == UNKNOWN)
    causes[early | (bound.end_ns <= unrecorded_until_ns(graph, part))] = UNRECORDED
    queue = Queue.of(timeline, part.span_row[comm], (start[comm], end[comm]))
    needed = np.full(own.size, NONE)
    if part.on_device:
        behind = np.flatnonzero((causes == DEPENDENCY) & ~in_order & (bound.awaited == own))
        needed[behind] = _needed_behind(graph, part, queue, comm, own[behind], bound.needed[behind], follows[behind])
    found = make(ExposedPieces, own.size, start_ns=bound.start_ns, end_ns=bound.end_ns, cause=causes, span=own,
                 next=follows, needed=needed, call=np.where(causes == HOST_WAITED, bound.call, NONE))  # fmt: skip
    # What would not have helped the next compute is no delay, as of another call than it waited for.
    delayed = (causes == DEPENDENCY) & (in_order | (bound.awaited == own) | (bound.awaited == NONE))
    delays = _delays(graph, part, queue, comm, BusyTime(computing), None if awaited is None else awaited[0])
    every = concat(_by_delay(found, delayed, comm, queue, delays))
    return take(every, sort_order(every.start_ns, every.end_ns))


def _asked_between(graph: Graph, part: RankPart, since_ns: Ints, until_ns: Ints) -> Flags:
    """Return whether a call made a stream wait for an event between two moments, but for communication's own; False
    where the recording shows no such calls."""
    if part.asked_ns is None or not part.spans:
        return np.zeros(since_ns.size, np.bool_)
    shift = graph.nodes.time_ns[part.ends()][0] - part.span_end_ns[0]
    first, after = (np.searchsorted(part.asked_ns + shift, each, side="right") for each in (since_ns, until_ns))
    return np.asarray(after > first, np.bool_)


def _only_by_host(graph: Graph, part: RankPart, own: Ints, bound: _Bound, follows: Ints) -> Flags:
    """Return for parts of pieces of these calls whether the compute that follows waited for them only as its host had:
    from their launch until that wait returned no call made another stream wait for an event. What is asked for later
    delays nothing, as the calls have ended. If a recorded (not inferred) event shows that the compute waits for one of
    these calls, it needs that call in any case. Not where no such call was recorded."""
    found = np.zeros(own.size, np.bool_)
    rows = np.flatnonzero((bound.call != NONE) & (bound.awaited != NONE) & (follows != NONE))
    if part.asked_ns is None or not rows.size:
        return found
    launch = np.append(graph.nodes.time_ns[part.begins()], NONE)[part.launched_by]
    calls, next_span = (own[rows], bound.awaited[rows]), follows[rows]
    since = np.minimum(*(launch[each] for each in calls))
    asked = _asked_between(graph, part, since, graph.nodes.time_ns[part.returns()][bound.call[rows]] - 1)
    apart = np.logical_and(*(part.span_lane[each] != part.span_lane[next_span] for each in calls))
    known = graph.edges.known != INFERRED
    needs = np.logical_or(*(_by_event(graph, part, each, next_span, known) for each in calls))
    found[rows] = apart & (since != NONE) & ~asked & ~needs
    return found


def _by_event(graph: Graph, part: RankPart, spans: Ints, follows: Ints, among: Flags | bool = True) -> Flags:
    """Return whether each of these spans is one that the span which follows it waited for by an event, by edges `among`
    those of the graph, or that it waited for through a span which finishes this one."""
    edges, nodes = graph.edges, graph.num_nodes
    events = np.flatnonzero((edges.kind == EVENT) & among)
    before, node = edges.before[events].astype(np.int64), edges.node[events].astype(np.int64)
    finishing = np.flatnonzero(_finishes(part))
    into = np.flatnonzero(np.isin(node, part.starts().start + finishing))
    call = np.full(part.spans, NONE)
    call[node[into] - part.starts().start] = before[into]
    out = np.flatnonzero(np.isin(before, part.ends().start + finishing))
    through = call[before[out] - part.ends().start]
    waits = np.concatenate([before * nodes + node, through * nodes + node[out]])
    return np.isin((part.ends().start + spans) * nodes + part.starts().start + follows, waits)


def _finishes(part: RankPart) -> Flags:
    """Return which spans only finish communication (`RankPart.finishes`); none in a CPU run."""
    return np.zeros(part.spans, np.bool_) if part.finishes is None else part.finishes


def _needed_behind(
    graph: Graph, part: RankPart, queue: Queue, comm: Ints, own: Ints, needed: Ints, follows: Ints
) -> Ints:
    """Return the `needed` calls that were held by these unlike ones on their stream, before compute that waited for
    these calls only because of that; NONE of others. A message may wait for its peer: it holds nothing. Where a call
    made a stream wait for an event between both launches, compute may have waited for the first as well."""
    end, launch = part.ends(), np.append(graph.nodes.time_ns[part.begins()], NONE)
    rows = np.flatnonzero((needed != NONE) & (needed != own))
    ahead, behind = np.searchsorted(comm, own[rows]), np.searchsorted(comm, needed[rows])
    unlike = (queue.lane[ahead] == queue.lane[behind]) & (queue.kind[ahead] != queue.kind[behind])
    rows = rows[unlike & ~queue.is_message[ahead]]
    launched = launch[part.launched_by[follows[rows]]]
    # A host that launches it in between had perhaps waited for the call ahead.
    in_time = launched < graph.nodes.time_ns[end][own[rows]]
    rows = rows[in_time | (launched >= graph.nodes.time_ns[end][needed[rows]])]
    rows = rows[~_by_event(graph, part, own[rows], follows[rows])]
    launches = launch[part.launched_by[own[rows]]], launch[part.launched_by[needed[rows]]]
    rows = rows[~_asked_between(graph, part, *launches)]
    found = np.full(own.size, NONE)
    found[rows] = needed[rows]
    return found


def _by_delay(
    found: ExposedPieces, delayed: Flags, comm: Ints, queue: Queue, delays: _Delays
) -> tuple[ExposedPieces, ...]:
    """Return the pieces divided into late launch, queueing, what ran ahead of a needed call, and the rest.

    Time that has the cause `ahead` is no queueing of the calls behind it as well.
    """
    own, is_ahead = np.searchsorted(comm, found.span), found.needed != NONE
    held_since = delays.since_ns[np.searchsorted(comm, np.where(is_ahead, found.needed, found.span))]
    is_ahead &= held_since != NONE
    late_until = queue.start_ns[own] + delays.late_ns[own]
    ahead_from = np.where(is_ahead, np.maximum(held_since, late_until), found.end_ns)
    ahead = _within(found, ahead_from, found.end_ns, np.full_like(found.cause, AHEAD))
    times, lanes = Intervals(ahead.start_ns, ahead.end_ns), queue.lane[np.searchsorted(comm, ahead.span)]
    twice_ns = queue.held_in_ns(times, lanes, np.arange(comm.size), delays.since_ns)
    queued_until = late_until + np.maximum(delays.queued_ns - twice_ns, 0)[own]
    late, queued = (np.where(delayed, cause, found.cause).astype(np.int8) for cause in (LATE_LAUNCH, QUEUED))
    found = replace(found, needed=np.full_like(found.needed, NONE))
    return (
        ahead,
        _within(found, found.start_ns, np.minimum(late_until, ahead_from), late),
        _within(found, late_until, np.minimum(queued_until, ahead_from), queued),
        _within(found, queued_until, ahead_from, found.cause),
    )


def _within(pieces: ExposedPieces, begin: Ints, until: Ints, cause: Small) -> ExposedPieces:
    """Return the part of each piece that lies in a window of its own, with a cause; none where that is empty."""
    starts, ends = np.maximum(pieces.start_ns, begin), np.minimum(pieces.end_ns, until)
    return take(replace(pieces, start_ns=starts, end_ns=ends, cause=cause), np.flatnonzero(ends > starts))


def _owners(comm: Ints, start: Ints, end: Ints) -> tuple[Ints, Intervals]:
    """Return the spans that own time of their own, by begin, and the time that each owns.

    Of spans that run at once the one that ends last owns the moment; of equals, the one that began first.
    """
    order = comm[sort_order(-end[comm], start[comm])]
    earliest = np.minimum.accumulate(start[order])
    until = np.minimum(end[order], np.append(np.iinfo(np.int64).max, earliest)[: order.size])
    owns = until > start[order]
    order, until = order[owns], until[owns]
    by_begin = np.argsort(start[order], kind="stable")
    return order[by_begin], Intervals(start[order][by_begin], until[by_begin])


def _delays(
    graph: Graph, part: RankPart, queue: Queue, comm: Ints, computing: BusyTime, awaited: Ints | None
) -> _Delays:
    """Return how long each call was launched after its data were ready, and how long unlike calls held it after both.

    Data are ready when what is known to be needed had ended (`_known_ready`), else when the compute and copies that
    were launched before had, but for what only finishes calls: time in which other compute ran is no delay then. Nor is
    there one on the stream with the most compute, or where no compute ran beside the call, or could have: then none is
    known that could.
    """
    time = graph.nodes.time_ns
    start, end = time[part.starts()], time[part.ends()]
    launch = np.append(time[part.begins()], NONE)[part.launched_by]
    producers = np.flatnonzero((part.span_kind != COMM) & (launch != NONE) & ~_finishes(part))
    producers = producers[np.argsort(launch[producers], kind="stable")]
    done = np.append(NONE, np.maximum.accumulate(end[producers]))
    ready = done[np.searchsorted(launch[producers], launch[comm], side="left")]
    by_order = _known_ready(graph, part, comm, launch, awaited)
    busy = np.where(by_order == NONE, computing.within(ready, launch[comm]), 0)
    ready = np.where(by_order == NONE, ready, by_order)
    known = (launch[comm] != NONE) & (ready != NONE)
    on_compute = part.span_lane[comm] == compute_lane(part.span_lane, part.span_kind, end - start)
    since = np.maximum(launch[comm], ready)
    beside = computing.within(np.where(by_order == NONE, start[comm], np.minimum(ready, start[comm])), end[comm]) > 0
    held = queue.held_ns(np.arange(comm.size), since)
    return _Delays(
        late_ns=np.where(known & ~on_compute & beside, np.maximum(launch[comm] - ready - busy, 0), 0),
        queued_ns=np.where(known, np.clip(start[comm] - since, 0, held), 0),
        since_ns=np.where(known, since, NONE),
    )


def _known_ready(graph: Graph, part: RankPart, comm: Ints, launch: Ints, awaited: Ints | None) -> Ints:
    """Return when the data and the stream of each call that began at its launch were ready; NONE of others, and where
    no events are known but by times.

    A kernel that prepares a call, itself begun at its launch, could have ended earlier, too. What a host waited for in
    a synchronisation before the launch, the call may have needed.
    """
    time, edges = graph.nodes.time_ns, graph.edges
    start, end, first = time[part.starts()], time[part.ends()], part.starts().start
    to_span = (edges.node >= first) & (edges.node < part.ends().start)
    launches = np.flatnonzero((edges.kind == LAUNCH) & to_span)
    at_launch = np.zeros(part.spans, np.bool_)
    arrived = time[edges.before[launches]] + edges.lag_ns[launches]
    at_launch[edges.node[launches] - first] = time[edges.node[launches]] - arrived <= OWN_NS
    events = np.flatnonzero((edges.kind == EVENT) & (edges.known != INFERRED) & to_span)
    before, span = edges.before[events] - part.ends().start, edges.node[events] - first
    on_lane = before_on_lane(part.span_lane)
    free = np.append(end, NONE)[on_lane]
    prepares = np.zeros(part.spans, np.bool_) if part.prepares is None else part.prepares
    done, lasted = end, end - start
    # First of what prepares calls, then of the calls, which need it.
    for _ in range(2):
        data = np.full(part.spans, NONE)
        np.maximum.at(data, span, done[before])
        ready = np.maximum(data, free)
        done = np.where(prepares & at_launch & (ready != NONE), np.minimum(ready + lasted, end), end)
    if awaited is not None and part.calls:
        asked = awaited[part.begins()][part.launched_by]
        ready = np.maximum(ready, np.where((asked >= 0) & (part.launched_by >= 0), time[asked], NONE))
    return np.where(at_launch & (data != NONE) & (launch != NONE), ready, NONE)[comm]


def _awaited_by_host(graph: Graph, part: RankPart, binding: Ints) -> tuple[Ints, Ints]:
    """Return for each node the end of the span for which its host had last waited in a synchronisation, -1 where the
    node leads back to none through what hosts did, and the number of that call; by doubling steps."""
    edges = graph.edges
    before, kind = np.append(edges.before, -1)[binding], np.append(edges.kind, -1)[binding]
    back = np.where(is_one_of(kind, _BY_HOST), before, np.arange(graph.num_nodes))
    while not np.array_equal(further := back[back], back):
        back = further
    return np.where(kind == SYNC, before, -1)[back].astype(np.int64), back - part.returns().start


def _next_compute(start: Ints, compute: Ints, moments: Ints) -> Ints:
    begins = start[compute]
    at = np.searchsorted(begins, moments, side="left")
    return np.append(compute, NONE)[np.minimum(at, compute.size)]


def _by_what_bound(
    graph: Graph, binding: Ints, part: RankPart, follows: Ints, pieces: Intervals, awaited: tuple[Ints, Ints] | None
) -> _Bound:
    """Return the causes of exposed pieces by what the compute that follows waited for.

    A piece is cut where the compute had waited for communication that ended in it while other communication went on:
    until that end it depended on it. So it is where the host was in a synchronisation that ended with it, and where
    that communication began in the piece: until then it goes by what that had waited for.
    """
    nodes, edges = graph.nodes, graph.edges
    until, ends = pieces.ends.copy(), part.ends()
    last, asking = np.flatnonzero(follows == NONE), np.flatnonzero(follows != NONE)
    node, needed = part.starts().start + follows[asking], np.full(follows.size, NONE)
    on_lane, waits_in = np.ones(follows.size, np.bool_), np.full(follows.size, NONE)
    found = [_bound_by(last, pieces.starts[last], until[last], TAIL)]
    while asking.size:
        edge = binding[node]
        known = edge >= 0
        lost = asking[~known]
        found.append(_bound_by(lost, pieces.starts[lost], until[lost], UNKNOWN))
        asking, node, edge = asking[known], node[known], edge[known]
        kind, before = edges.kind[edge], edges.before[edge]
        on_lane[asking] &= (needed[asking] == NONE) | is_one_of(kind, (RUN_COMM, ON_LANE))
        sends = (needed[asking] == NONE) & (kind == RUN_COMM) & (node >= ends.start) & (node < ends.stop)
        needed[asking[sends]] = node[sends] - ends.start
        crosses = nodes.time_ns[before] < until[asking]
        opaque = (nodes.gap[node] != NO_GAP) & (nodes.time_ns[node] - nodes.own_ns[node] < until[asking])
        by = np.where((kind == SYNC) & (needed[asking] == NONE), node - part.returns().start, NONE)
        # The short lag of a stream or an event that follows a span belongs to the span.
        short = crosses & ~opaque & is_one_of(kind, (ON_LANE, EVENT))
        here = crosses & ~short
        if awaited is not None:
            before, kind, by = _or_waited_before(graph, awaited, before, kind, by, here, pieces.starts[asking])
        waits_in[asking] = np.where(by != NONE, by, waits_in[asking])
        # On a CPU a thread's own pause may follow the end of what it had waited for.
        waited = (kind == SYNC) | (kind == (RUN_COMM if part.on_device else HOST_STRETCH))
        cut = here & ~opaque & waited & (nodes.time_ns[before] > pieces.starts[asking])
        begin = np.where(cut, nodes.time_ns[before], pieces.starts[asking])[here]
        of = asking[here]
        runs = is_one_of(kind, (RUN_COMM, TRANSFER)) & (node >= ends.start) & (node < ends.stop)
        call = np.where(runs, node - ends.start, NONE)[here]
        cause = np.where(opaque, UNKNOWN, _CAUSE[kind])[here]
        held = np.where(on_lane[of], needed[of], NONE)
        found.append(_bound_by(of, begin, until[of], cause, call, held, waits_in[of]))
        until[asking[cut]] = nodes.time_ns[before[cut]]
        more = ~here | cut
        asking, node = asking[more], before[more]
    return concat(found)


def _or_waited_before(
    graph: Graph, awaited: tuple[Ints, Ints], before: NodeNumbers, kind: Small, call: Ints, here: Flags, since_ns: Ints
) -> tuple[Ints, Small, Ints]:
    """Return predecessors, kinds and calls of edges: where (`here`) the host had waited until after `since_ns`, though
    it did more after that, those of the wait."""
    span = awaited[0][before]
    waits = here & is_one_of(kind, _BY_HOST) & (span >= 0) & (graph.nodes.time_ns[span] > since_ns)
    found = np.where(waits, span, before), np.where(waits, SYNC, kind).astype(np.int8)
    return *found, np.where(waits, awaited[1][before], call)


def _bound_by(
    piece: Ints, start_ns: Ints, end_ns: Ints, cause: Small | int, awaited: Ints | int = NONE,
    needed: Ints | int = NONE, call: Ints | int = NONE,
) -> _Bound:  # fmt: skip
    return make(_Bound, piece.size, piece=piece, start_ns=start_ns, end_ns=end_ns, cause=cause, awaited=awaited,
                needed=needed, call=call)  # fmt: skip
