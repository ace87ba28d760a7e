"""Assign one cause to every exposed nanosecond of a rank, from that rank alone: what the next compute waited for.

Where the next compute waited for something else, taking the communication away would gain nothing.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final, Self

import msgspec
import numpy as np

from overlapscope.analysis.graph.model import (
    EDGE_KINDS,
    EVENT,
    HOST_EDGES,
    HOST_STRETCH,
    LAUNCH,
    NO_GAP,
    OCCUPANCY,
    ON_LANE,
    OWN_CALL,
    POLL,
    RUN_COMM,
    RUN_COMPUTE,
    RUN_COPY,
    SYNC,
    TRANSFER,
    Graph,
    RankPart,
)
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Columns, Ints, Small, concat, make, take
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, parts_inside, union
from overlapscope.timeline.rows import ascending, factorize_rows, is_one_of, sort_order, split_by, sum_by, values_in
from overlapscope.timeline.run import RankTimeline

EXPOSED_CAUSES: Final = (
    "late_launch", "queued", "dependency", "host_not_ready", "behind_copy", "behind_compute", "tail", "unknown"
)  # fmt: skip
"""`dependency`: the next compute waited for it, or follows it on its stream. Of that, `late_launch`: its data were
ready before it was launched, and `queued`: its stream was busy with communication of another operation or group.
`host_not_ready`: the next compute waited for its own launch. `behind_copy`, `behind_compute`: for another copy or
kernel. `tail`: no compute follows. `unknown`: no rule names it."""
LATE_LAUNCH, QUEUED, DEPENDENCY, HOST_NOT_READY, BEHIND_COPY, BEHIND_COMPUTE, TAIL, UNKNOWN = range(8)
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


def exposed_pieces(graph: Graph, part: RankPart, timeline: RankTimeline, binding: Ints) -> ExposedPieces:
    """Return the causes of all exposed communication of one rank of a graph.

    `binding` holds the edge that bound each node, as paths show it (`shown_binding`).
    """
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    comm, compute = np.flatnonzero(part.span_kind == COMM), np.flatnonzero(part.span_kind == COMPUTE)
    computing = union((start[compute], end[compute]))
    exposed = difference(union((start[comm], end[comm])), computing)
    owner, owned = _owners(comm, start, end)
    late, queued = _delays(graph, part, timeline, owner, BusyTime(computing))
    found = []
    cuts = (start[owner], start[owner] + late, start[owner] + late + queued, owned.ends)
    for cause, (begin, until) in zip((LATE_LAUNCH, QUEUED, NONE), pairwise(cuts), strict=True):
        begun, ends = np.maximum(begin, owned.starts), np.minimum(until, owned.ends)
        some = np.flatnonzero(ends > begun)
        pieces, which = parts_inside(Intervals(begun[some], ends[some]), exposed)
        follows = _next_compute(start, compute, pieces.starts)
        divided, pieces, causes, awaited = _by_what_bound(graph, binding, part, follows, pieces)
        follows, which = follows[divided], which[divided]
        # On one stream the next kernel cannot run beside the call, however early it is launched; on a thread it may
        # have run beside a message.
        lane_of_next = np.append(part.span_lane, NONE)[np.where(follows == NONE, -1, follows)]
        own = owner[some][which]
        in_order = part.on_device & (lane_of_next == part.span_lane[own])
        causes = np.where(in_order, DEPENDENCY, causes).astype(np.int8)
        # What would not have helped the next compute is no delay, as of another call than it waited for.
        if cause != NONE:
            delayed = (causes == DEPENDENCY) & (in_order | (awaited == own) | (awaited == NONE))
            causes = np.where(delayed, cause, causes).astype(np.int8)
        found.append(
            make(ExposedPieces, pieces.starts.size, start_ns=pieces.starts, end_ns=pieces.ends, cause=causes,
                 span=own, next=follows)
        )  # fmt: skip
    every = concat(found)
    return take(every, sort_order(every.start_ns, every.end_ns))


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
    graph: Graph, part: RankPart, timeline: RankTimeline, owner: Ints, computing: BusyTime
) -> tuple[Ints, Ints]:
    """Return how long each call was launched after its data were ready, and how long unlike calls held it after both.

    Data are ready when the compute and copies that were launched before had ended. Time in which other compute ran is
    no delay; nor is there one on the stream with the most compute, or where no compute ran beside the call: then none
    is known that could.
    """
    time = graph.nodes.time_ns
    start, end = time[part.starts()], time[part.ends()]
    launch = np.append(time[part.begins()], NONE)[part.launched_by]
    producers = np.flatnonzero((part.span_kind != COMM) & (launch != NONE))
    producers = producers[np.argsort(launch[producers], kind="stable")]
    done = np.append(NONE, np.maximum.accumulate(end[producers]))
    ready = done[np.searchsorted(launch[producers], launch[owner], side="left")]
    known = (launch[owner] != NONE) & (ready != NONE)
    on_compute = part.span_lane[owner] == _compute_lane(part, start, end)
    gap = launch[owner] - ready - computing.within(ready, launch[owner])
    beside = computing.within(start[owner], end[owner]) > 0
    late = np.where(known & ~on_compute & beside, np.maximum(gap, 0), 0)
    waits = start[owner] - np.maximum(launch[owner], ready)
    sends = np.flatnonzero(part.span_kind == COMM)
    queue = Queue.of(timeline, part.span_row[sends], (start[sends], end[sends]))
    held = queue.held_ns(np.searchsorted(sends, owner), np.maximum(launch[owner], ready))
    return late, np.where(known, np.clip(waits, 0, held), 0)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of a rank on its streams; one row for each span."""

    start_ns: Ints
    end_ns: Ints
    lane: Ints
    kind: Ints
    """Number of its stream, operation and group; of a span without a collective by its name."""

    @classmethod
    def of(cls, timeline: RankTimeline, rows: Ints, times: tuple[Ints, Ints]) -> Self:
        """Return the queue of these spans (rows), with their times."""
        spans, calls = timeline.spans, timeline.collectives
        lane, call = spans.lane[rows].astype(np.int64), spans.collective[rows]
        op, group = (np.append(each, NONE)[np.where(call == NONE, -1, call)] for each in (calls.op, calls.group))
        kind, _ = factorize_rows([lane, op, group, np.where(call == NONE, spans.name[rows], NONE)])
        return cls(start_ns=times[0], end_ns=times[1], lane=lane, kind=kind)

    def held_ns(self, asked: Ints, since_ns: Ints) -> Ints:
        """Return for how long, from a moment to the start of each of the `asked` spans, calls of another operation or
        group ran on its stream: after the last one like it, which has that delay already.

        A call behind its like waits for the link: on another stream both would share it.
        """
        held = np.zeros(asked.size, np.int64)
        for lane in values_in(self.lane[asked]).tolist():
            own = np.flatnonzero(self.lane[asked] == lane)
            held[own] = self._held_on(np.flatnonzero(self.lane == lane), asked[own], since_ns[own])
        return held

    def _held_on(self, rows: Ints, asked: Ints, since_ns: Ints) -> Ints:
        """Return the same for spans of one stream, which has these rows: for how long it was busy, less for how long
        with none but their like."""
        held = np.zeros(asked.size, np.int64)
        busy = BusyTime(union((self.start_ns[rows], self.end_ns[rows])))
        like = {int(self.kind[rows[each[0]]]): rows[each] for each in split_by(self.kind[rows])}
        running = [union((self.start_ns[each], self.end_ns[each])) for each in like.values()]
        alone = dict(zip(like, _alone(running), strict=True))
        for own in split_by(self.kind[asked]):
            kind, starts = int(self.kind[asked[own[0]]]), self.start_ns[asked[own]]
            ends = np.append(NONE, ascending(self.end_ns[like[kind]]))
            since = np.maximum(since_ns[own], ends[np.searchsorted(ends[1:], starts, side="right")])
            until = np.maximum(starts, since)
            held[own] = busy.within(since, until) - alone[kind].within(since, until)
        return held


def _alone(running: Sequence[Intervals]) -> list[BusyTime]:
    """Return of each of several activities when it ran and no other did."""
    number = np.repeat(np.arange(len(running)), [each.starts.size for each in running])
    times = np.concatenate([each.starts for each in running] + [each.ends for each in running])
    change = np.repeat([1, -1], number.size)
    order = np.argsort(times, kind="stable")
    at, many = times[order], np.cumsum(change[order])
    which = np.cumsum((change * np.tile(number, 2))[order])  # the sum of those that run: of one, its number
    one = np.flatnonzero((many[:-1] == 1) & (at[1:] > at[:-1]))
    one = one[np.argsort(which[one], kind="stable")]
    cuts = np.searchsorted(which[one], np.arange(len(running) + 1))
    return [BusyTime(Intervals(at[one[begin:end]], at[one[begin:end] + 1])) for begin, end in pairwise(cuts.tolist())]


def _compute_lane(part: RankPart, start: Ints, end: Ints) -> int:
    """Return the stream with the most compute; NONE without compute."""
    computes = part.span_kind == COMPUTE
    if not computes.any():
        return NONE
    return int(sum_by(part.span_lane[computes], (end - start)[computes], int(part.span_lane.max()) + 1).argmax())


def _awaited_by_host(graph: Graph, binding: Ints) -> Ints:
    """Return for each node the end of the span for which its host had last waited in a synchronisation, by doubling
    steps; -1 where the node leads back to none through what hosts did."""
    edges = graph.edges
    before, kind = np.append(edges.before, -1)[binding], np.append(edges.kind, -1)[binding]
    back = np.where(is_one_of(kind, _BY_HOST), before, np.arange(graph.num_nodes))
    while not np.array_equal(further := back[back], back):
        back = further
    return np.where(kind == SYNC, before, -1)[back].astype(np.int64)


def _next_compute(start: Ints, compute: Ints, moments: Ints) -> Ints:
    begins = start[compute]
    at = np.searchsorted(begins, moments, side="left")
    return np.append(compute, NONE)[np.minimum(at, compute.size)]


def _by_what_bound(
    graph: Graph, binding: Ints, part: RankPart, follows: Ints, pieces: Intervals
) -> tuple[Ints, Intervals, Small, Ints]:
    """Return (number of the piece, times, cause, awaited call) for exposed pieces, by what the compute that follows
    waited for; NONE where that is no communication of this rank (a position in its spans).

    A piece is cut where the compute had waited for communication that ended in it while other communication went on:
    until that end it depended on it. So it is where the host was in a synchronisation that ended with it, and where
    that communication began in the piece: until then it goes by what that had waited for.
    """
    nodes, edges = graph.nodes, graph.edges
    awaited = _awaited_by_host(graph, binding) if part.on_device else None
    until, ends = pieces.ends.copy(), part.ends()
    last, asking = np.flatnonzero(follows == NONE), np.flatnonzero(follows != NONE)
    node = part.starts().start + follows[asking]
    found = [(last, pieces.starts[last], until[last], np.full(last.size, TAIL, np.int8), np.full(last.size, NONE))]
    while asking.size:
        edge = binding[node]
        known = edge >= 0
        lost = asking[~known]
        nothing = np.full(lost.size, NONE)
        found.append((lost, pieces.starts[lost], until[lost], np.full(lost.size, UNKNOWN, np.int8), nothing))
        asking, node, edge = asking[known], node[known], edge[known]
        kind, before = edges.kind[edge], edges.before[edge]
        crosses = nodes.time_ns[before] < until[asking]
        opaque = (nodes.gap[node] != NO_GAP) & (nodes.time_ns[node] - nodes.own_ns[node] < until[asking])
        # The short lag of a stream or an event that follows a span belongs to the span.
        short = crosses & ~opaque & is_one_of(kind, (ON_LANE, EVENT))
        here = crosses & ~short
        if awaited is not None:  # a wait of the host, though it did more before the piece ended
            span = awaited[before]
            waits = here & is_one_of(kind, _BY_HOST) & (span >= 0) & (nodes.time_ns[span] > pieces.starts[asking])
            before, kind = np.where(waits, span, before), np.where(waits, SYNC, kind)
        # On a CPU a thread's own pause may follow the end of what it had waited for.
        waited = (kind == SYNC) | (kind == (RUN_COMM if part.on_device else HOST_STRETCH))
        cut = here & ~opaque & waited & (nodes.time_ns[before] > pieces.starts[asking])
        begin = np.where(cut, nodes.time_ns[before], pieces.starts[asking])[here]
        of = asking[here]
        runs = is_one_of(kind, (RUN_COMM, TRANSFER)) & (node >= ends.start) & (node < ends.stop)
        call = np.where(runs, node - ends.start, NONE)[here]
        found.append((of, begin, until[of], np.where(opaque, UNKNOWN, _CAUSE[kind])[here].astype(np.int8), call))
        until[asking[cut]] = nodes.time_ns[before[cut]]
        more = ~here | cut
        asking, node = asking[more], before[more]
    number, begin, end, cause, awaits = (np.concatenate(column) for column in zip(*found, strict=True))
    return number, Intervals(begin, end), cause, awaits
