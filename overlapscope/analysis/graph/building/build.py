"""Build the dependency graph of one rank, and join ranks at their collectives."""

from collections.abc import Iterator, MutableMapping, Sequence, Set
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.wait_transfer import counts_from
from overlapscope.analysis.graph.building.cpu_waits import cpu_waits
from overlapscope.analysis.graph.building.device_waits import device_waits
from overlapscope.analysis.graph.building.host_calls import host_calls, program_order
from overlapscope.analysis.graph.building.host_waits import host_waits, polled_spans
from overlapscope.analysis.graph.model import (
    ARRIVE,
    INFERRED,
    NO_GAP,
    POLL,
    RECORDED,
    RUN_KIND,
    SYNC,
    TRANSFER,
    Edges,
    Graph,
    RankPart,
    assemble,
    edges_of,
)
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import NONE, RUNTIME, HostSpans, Ints, Small, Spans, concat, make, size, take
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.rows import is_one_of, largest_by, sort_order
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.timeline.store.read_ahead import read_ahead


class RankNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes and edges of one rank, before they are ordered; node numbers begin at 0, times are the rank's own."""

    time_ns: Ints
    gap: Small
    edges: Edges
    part: RankPart


def rank_graph(timeline: RankTimeline, recording: int = 0) -> Graph:
    """Return the graph of one recording of a rank; its times are the rank's own. May raise HostEventsError."""
    return alone(rank_nodes(timeline, recording))


def alone(own: RankNodes) -> Graph:
    """Return the graph of a rank without others."""
    return assemble(own.time_ns, own.gap, own.edges, (own.part,))


def rank_nodes(timeline: RankTimeline, recording: int = 0) -> RankNodes:
    """Return the nodes and edges of one recording of a rank. May raise HostEventsError."""
    rows = np.flatnonzero(timeline.spans.recording == recording)
    rows = rows[sort_order(timeline.spans.start_ns[rows], timeline.spans.end_ns[rows])]
    spans = take(timeline.spans, rows)
    if not timeline.has_device:
        return _of_cpu_rank(timeline, recording, spans, rows)
    host, syncs = select_host_spans(timeline.host, (RUNTIME,)), timeline.syncs
    if size(timeline.recordings) > 1:
        host, syncs = take(host, host.recording == recording), take(syncs, syncs.recording == recording)
    calls = host_calls(timeline, spans, host)
    awaited, depends = host_waits(spans, calls, host, syncs)
    polled, may_wait = polled_spans(spans, calls, timeline.names)
    waits = device_waits(spans, calls, host, syncs, timeline.names)
    num_calls, num_spans = calls.row.size, rows.size
    first_start = 2 * num_calls
    at = np.arange(num_spans)
    run = np.array([RUN_KIND[kind] for kind in range(3)], np.int8)[spans.kind]
    woken = np.where(awaited[depends.call] == depends.span, calls.end_ns[depends.call] - spans.end_ns[depends.span], 0)
    resumed = np.flatnonzero(polled >= 0)
    edges = [
        *program_order(calls, awaited, polled),
        edges_of(first_start + at, first_start + num_spans + at, run, RECORDED, spans.end_ns - spans.start_ns),
        edges_of(
            first_start + num_spans + depends.span,
            num_calls + depends.call,
            SYNC,
            np.where(depends.recorded, RECORDED, INFERRED).astype(np.int8),
            woken,
        ),
        edges_of(
            first_start + num_spans + polled[resumed],
            resumed,
            POLL,
            INFERRED,
            calls.begin_ns[resumed] - spans.end_ns[polled[resumed]],
        ),
        *waits.edges,
    ]
    time = np.concatenate([calls.begin_ns, calls.end_ns, spans.start_ns, spans.end_ns])
    gap = np.full(time.size, NO_GAP, np.int8)
    gap[first_start : first_start + num_spans] = waits.gap
    part = RankPart(
        rank=timeline.rank, recording=recording, first=0, call_name=calls.name, call_lane=calls.lane,
        call_process=calls.process, blocks=calls.blocks, awaited=awaited, span_row=rows, span_lane=spans.lane,
        span_kind=spans.kind, span_end_ns=spans.end_ns, launched_by=calls.launched_by, collective=spans.collective,
        silent_ns=max(int(calls.begin_ns.min() - timeline.recordings.start_ns[recording]), 0) if num_calls else 0,
        early_launches=waits.early_launches,
        may_wait=may_wait, prepares=waits.serving.prepares, finishes=waits.serving.finishes,
        asked_ns=waits.asked_ns,
    )  # fmt: skip
    return RankNodes(time_ns=time, gap=gap, edges=concat(edges), part=part)


def _of_cpu_rank(timeline: RankTimeline, recording: int, spans: Spans, rows: Ints) -> RankNodes:
    waits = cpu_waits(spans)
    calls, at = waits.begun_ns.size, np.arange(rows.size)
    none = np.full(calls, NONE, np.int64)
    run = np.array([RUN_KIND[kind] for kind in range(3)], np.int8)[spans.kind]
    runs = edges_of(2 * calls + at, 2 * calls + rows.size + at, run, RECORDED, spans.end_ns - spans.start_ns)
    part = RankPart(
        rank=timeline.rank, recording=recording, first=0, call_name=np.full(calls, -1, np.int32), call_lane=none,
        call_process=none, blocks=np.zeros(calls, np.bool_), awaited=np.full(calls, -1, np.int64), span_row=rows,
        span_lane=spans.lane, span_kind=spans.kind, span_end_ns=spans.end_ns, launched_by=waits.launched_by,
        collective=spans.collective, on_device=False,
    )  # fmt: skip
    return RankNodes(
        time_ns=np.concatenate([waits.begun_ns, waits.begun_ns, spans.start_ns, spans.end_ns]),
        gap=np.concatenate([np.full(2 * calls, NO_GAP, np.int8), waits.gap, np.full(rows.size, NO_GAP, np.int8)]),
        edges=concat([runs, *waits.edges]),
        part=part,
    )


MOST_NODES: Final = 6_500_000
"""Of the graph of a run: it takes up to 170 bytes a node while it is built and tested, so this many take 1.1 GiB."""


def graph_too_large(run: Run) -> str | None:
    """Return in a sentence why the graph of all ranks is not built; None where it is small enough. Reads no table."""
    nodes = sum((4 if each.has_host_events else 2) * each.num_spans for each in run.ranks.values())
    if nodes <= MOST_NODES or len(run.ranks) == 1:
        return None
    spans = sum(each.num_spans for each in run.ranks.values())
    return (
        f"the dependency graph of {spans:,} spans on {len(run.ranks)} ranks would not fit into memory: what depends on "
        "several ranks is not answered; analyze fewer ranks or steps"
    )


def run_graph(
    run: Run, cross_rank: CrossRank, recording: int = 0, built: MutableMapping[tuple[int, int], RankNodes] | None = None
) -> Graph:
    """Return the graph of all recorded ranks, joined at their matched collectives, on the aligned clock.

    Every member of a matched collective ends its transfer time after the last member arrived; one node a call stands
    for that arrival. Of an exchange of different sizes, each member ends so long after the arrival as recorded. All of
    it is in memory at once: ask `graph_too_large` first. `built` holds nodes by rank and recording; those used
    are taken out.
    """
    if len(run.ranks) == 1:
        return rank_graph(next(iter(run.ranks.values())).at_hand(), recording)
    each_rank, times, parts = [], [], []
    first, clocks = 0, cross_rank.clocks
    hosts, nodes = _with_ends_of_sends(run, cross_rank), {} if built is None else built
    for rank in hosts:
        nodes.pop((rank, recording), None)
    for rank, own in _each_rank(replace(run, ranks={**run.ranks, **hosts}), recording, nodes):
        each_rank.append(own)
        times.append(clocks.aligned_ns(rank, own.time_ns))
        parts.append(replace(own.part, first=first))
        first += own.part.nodes
    time = np.concatenate(times)
    del times, own
    on_cpu = {rank for rank, timeline in run.ranks.items() if not timeline.has_device}
    members = _members(parts, cross_rank, time, on_cpu)
    calls, number = np.unique(members.call, return_inverse=True)
    arrived = largest_by(number, time[members.start], calls.size)
    waits = members.end >= 0
    node, end = (first + number)[waits], members.end[waits]
    transfer = np.where(members.transfer_ns == NONE, time[members.end] - arrived[number], members.transfer_ns)[waits]
    # On its own a member takes the transfer time, not the wait that its duration contains.
    alone = np.full(first, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(alone, end, transfer)
    between = [
        edges_of(members.start, first + number, ARRIVE, RECORDED, 0),
        edges_of(node, end, TRANSFER, RECORDED, transfer),
    ]
    gap = np.concatenate([*(own.gap for own in each_rank), np.full(calls.size, NO_GAP, np.int8)])
    time = np.concatenate([time, arrived])
    return assemble(time, gap, _joined(each_rank, parts, between, alone), tuple(parts))


def _joined(each_rank: list[RankNodes], parts: Sequence[RankPart], between: Sequence[Edges], alone_ns: Ints) -> Edges:
    """Return all edges: those of the ranks, which are taken from the list one by one, and those between ranks.

    `alone_ns` is for each node the longest time that its span takes on its own.
    """
    count = sum(size(own.edges) for own in each_rank)
    edges = make(Edges, count + sum(map(size, between)), before=0, node=0, kind=0, known=0, lag_ns=0)
    at = 0
    each_rank.reverse()
    for part in parts:
        own = each_rank.pop().edges
        runs = is_one_of(own.kind, RUN_KIND.values())
        alone = np.minimum(alone_ns[part.first + own.node], own.lag_ns)
        lag = np.where(runs, alone, own.lag_ns)
        at = _put(edges, at, replace(own, before=own.before + part.first, node=own.node + part.first, lag_ns=lag))
    for each in between:
        at = _put(edges, at, each)
    return edges


def _put(edges: Edges, at: int, some: Edges) -> int:
    """Write rows into a table from a row on; return the row after them."""
    after = at + size(some)
    for name in Edges.__struct_fields__:
        getattr(edges, name)[at:after] = getattr(some, name)
    return after


def _with_ends_of_sends(run: Run, cross_rank: CrossRank) -> dict[int, RankTimeline]:
    """Return hosts with sends that last longer than their receives, by rank: with sends that end with these.

    gloo marks the end of a send where its host waits for it, long after the message was received: nothing waited for
    such an end.
    """
    ended: dict[int, tuple[list[Ints], list[Ints]]] = {}
    clocks = cross_rank.clocks
    later_than = counts_from(clocks)
    for pair in cross_rank.pairs.pairs:
        if not run.ranks.keys() >= {pair.sender, pair.receiver}:
            continue
        sender, receiver = run.ranks[pair.sender], run.ranks[pair.receiver]
        if pair.both_ways or sender.has_device or not clocks.comparable((pair.sender, pair.receiver)):
            continue
        received = clocks.aligned_ns(pair.receiver, receiver.collectives.end_ns[pair.recv_rows])
        received = clocks.own_ns(pair.sender, received)
        calls = sender.collectives
        late = np.flatnonzero(
            (calls.end_ns[pair.send_rows] - received > later_than) & (received > calls.start_ns[pair.send_rows])
        )
        rows, times = ended.setdefault(pair.sender, ([], []))
        rows.append(pair.send_rows[late])
        times.append(received[late])
    return {
        rank: _ending(run.ranks[rank], np.concatenate(rows), np.concatenate(times))
        for rank, (rows, times) in ended.items()
        if any(each.size for each in rows)
    }


def _ending(timeline: RankTimeline, rows: Ints, end_ns: Ints) -> RankTimeline:
    """Return a rank of which the spans of some collectives end at other times."""
    timeline = timeline.at_hand()  # a stored one cannot be changed in part
    ends = np.full(timeline.collectives.op.size + 1, NONE, np.int64)
    ends[rows] = end_ns
    spans = timeline.spans
    until = ends[np.where(spans.collective == NONE, -1, spans.collective)]
    moved = (until != NONE) & (until > spans.start_ns)
    return replace(timeline, spans=replace(spans, end_ns=np.where(moved, until, spans.end_ns)))


def _each_rank(
    run: Run, recording: int, built: MutableMapping[tuple[int, int], RankNodes]
) -> Iterator[tuple[int, RankNodes]]:
    """Yield the nodes of each rank; only ranks whose nodes are not built already are read."""
    missing = read_ahead({rank: each for rank, each in run.ranks.items() if (rank, recording) not in built})
    for rank in run.ranks:
        own = built.pop((rank, recording), None)
        if own is None:
            _, timeline = next(missing)
            try:
                own = rank_nodes(timeline, recording)
            except HostEventsError:  # as if none had been recorded
                own = rank_nodes(replace(timeline.at_hand(), host=make(HostSpans, 0)), recording)
        yield rank, own


class _Members(msgspec.Struct, frozen=True, kw_only=True):
    """Members of joined collectives: number of the call, nodes of start and end, and the call's transfer time."""

    call: Ints
    start: Ints
    end: Ints
    """-1 for a send that ended before its receiver arrived: it waited for nobody."""
    transfer_ns: Ints
    """NONE where each member has its own: in an exchange of different sizes, for messages, and on CPUs, whose threads
    are scheduled apart."""


def _members(parts: Sequence[RankPart], cross_rank: CrossRank, time_ns: Ints, on_cpu: Set[int]) -> _Members:
    """Return the members of all calls that two or more ranks of the graph made; a message has two."""
    spans = {part.rank: _spans_of_calls(part) for part in parts}
    found = [(np.empty(0, np.int64),) * 4]
    begun = 0

    def add(rank: int, rows: Ints, transfer_ns: Ints) -> None:
        if rank not in spans:  # it shares no collective with the ranks of this graph
            return
        starts, ends = spans[rank]
        there = np.flatnonzero(starts[np.minimum(rows, starts.size - 1)] >= 0)
        found.append((begun + there, starts[rows[there]], ends[rows[there]], transfer_ns[there]))

    for split in (*cross_rank.splits, *cross_rank.uneven):
        block = split.block
        for rank, rows in zip(block.ranks, block.rows, strict=True):
            known = block.even and rank not in on_cpu
            add(rank, rows, split.transfer_ns if known else np.full(block.calls, NONE))
        begun += block.calls
    messages_from = begun
    for pair in cross_rank.pairs.pairs:
        unknown = np.full(pair.send_rows.size, NONE)
        add(pair.sender, pair.send_rows, unknown)
        add(pair.receiver, pair.recv_rows, unknown)
        begun += pair.send_rows.size
    call, start, end, transfer = (np.concatenate(each) for each in zip(*found, strict=True))
    joins = np.bincount(call, minlength=begun)[call] > 1
    call, start, end, transfer = call[joins], start[joins], end[joins], transfer[joins]
    last = largest_by(call, time_ns[start], begun)[call]
    end = np.where((call >= messages_from) & (time_ns[end] < last), -1, end)
    return _Members(call=call, start=start, end=end, transfer_ns=transfer)


def _spans_of_calls(part: RankPart) -> tuple[Ints, Ints]:
    """Return for each row of `Collectives` the nodes of its first start and its last end; -1 without spans."""
    with_call = np.flatnonzero(part.collective != NONE)
    rows = part.collective[with_call]
    size = int(rows.max()) + 1 if rows.size else 0
    starts, ends = np.full(size + 1, -1, np.int64), np.full(size + 1, -1, np.int64)
    starts[rows[::-1]] = (part.starts().start + with_call)[::-1]  # spans are by start: the first assigned last stays
    order = np.argsort(part.span_end_ns[with_call], kind="stable")
    ends[rows[order]] = (part.ends().start + with_call)[order]
    return starts, ends
