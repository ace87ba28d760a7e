"""Changes of a recorded run's dependency graph that give its transfers other times."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.job_replay import JobReplay, MakeChange, StepRun
from overlapscope.analysis.graph.model import TRANSFER, Graph, RankPart
from overlapscope.analysis.graph.replay import run_edges
from overlapscope.analysis.graph.scenarios import Change
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.replay.graph import P2P, CallShape

CallTimes = Callable[[CallShape, Floats], Floats]
"""New times in ns of calls of one shape, for their recorded ones."""


def retimed(ranks: Mapping[int, RankTimeline], took: CallTimes, *, transfer_share: float = 1.0) -> MakeChange:
    """Return the change in which transfers take other times; waits between ranks stay.

    `transfer_share` is the share of a recorded time that is transfer: the rest is waiting for members not recorded. A
    message without its other end moves data for at most as long as the second-shortest such one of its size (of all
    without a known size) took, and waits for its peer for the rest.
    """

    def changed(graph: Graph) -> Change:
        lag = graph.edges.lag_ns.copy()
        joined = np.zeros(graph.num_nodes, np.bool_)
        joined[graph.edges.node[graph.edges.kind == TRANSFER]] = True
        for part in graph.ranks:
            for shape, edges in _edges_by_shape(graph, part, ranks[part.rank]):
                old = lag[edges].astype(np.float64)
                moved = transfer_share * _moved(shape, old, ~joined[graph.edges.node[edges]])
                lag[edges] = np.rint(old - moved + took(shape, moved)).astype(np.int64)
        return replace(Change.none(graph), lag_ns=lag)

    return changed


def _moved(shape: CallShape, took_ns: Floats, alone: Flags) -> Floats:
    """Return how long calls of one shape move data at most: all of it but for messages that are `alone`, without their
    other end."""
    if shape.op != "message" or np.count_nonzero(alone) < 2:
        return took_ns
    return np.where(alone, np.minimum(took_ns, np.partition(took_ns[alone], 1)[1]), took_ns)


def computing_share(job: JobReplay, change: MakeChange) -> float:
    """Return what the stream that computes most in its rank's steps computes under a change, relative to what the steps
    took."""
    made = {id(graph): change(graph).lag_ns for graph in job.graphs}
    most = sum(_most_computed(run, made[id(run.graph)]) for run in job.runs)
    return min(most / job.recorded_ns, 1.0)


def _most_computed(run: StepRun, lag_ns: Ints) -> int:
    """Return how long the stream computes that computes most in the window of its rank, with these lags of edges."""
    graph, time, most = run.graph, run.graph.nodes.time_ns, 0
    first, last = (graph.part_index(nodes) for nodes in (run.window.start, run.window.end))
    for at, part in enumerate(graph.ranks):
        starts, ends = time[run.window.start[first == at]], time[run.window.end[last == at]]
        if not starts.size or not ends.size or not part.spans:
            continue
        inside = (time[part.starts()] >= starts.min()) & (time[part.ends()] <= ends.max())
        rows = np.flatnonzero(inside & (part.span_kind == COMPUTE))
        took = sum_by(part.span_lane[rows], lag_ns[run_edges(graph, part)[rows]], int(part.span_lane.max()) + 1)
        most = max(most, int(took.max()))
    return most


def relieved(ranks: Mapping[int, RankTimeline], change: MakeChange, slowdown: float) -> MakeChange:
    """Return a change in which compute is also slowed by so much less, or more, as transfers beside it take less time.

    `slowdown` is how many times as long compute takes beside a transfer.
    """

    def changed(graph: Graph) -> Change:
        made = change(graph)
        lag = made.lag_ns.copy()
        time = graph.nodes.time_ns
        for part in graph.ranks:
            run = run_edges(graph, part)
            comm, compute = (np.flatnonzero(part.span_kind == kind) for kind in (COMM, COMPUTE))
            alone = graph.edges.lag_ns[run[comm]]
            if not alone.sum():
                continue
            factor = float(made.lag_ns[run[comm]].sum() / alone.sum())
            start, end = time[part.starts()][compute], time[part.ends()][compute]
            ended = time[part.ends()][comm]
            beside = BusyTime(union((ended - alone, ended))).within(start, end) / np.maximum(end - start, 1)
            more = np.clip(beside * (factor - 1), -beside, 1 - beside) * (1 - 1 / slowdown)
            lag[run[compute]] = np.rint(lag[run[compute]] * (1 + more)).astype(np.int64)
        return replace(made, lag_ns=lag)

    return changed


def moving(job: JobReplay, rank: int) -> Intervals:
    """Return when a rank's collectives moved data, on its own clock."""
    found = []
    for graph in job.graphs:
        for part in graph.ranks:
            if part.rank == rank:
                comm = np.flatnonzero(part.span_kind == COMM)
                ended = part.span_end_ns[comm]
                found.append((ended - graph.edges.lag_ns[run_edges(graph, part)[comm]], ended))
    return union(*found)


def transfer_times(job: JobReplay, ranks: Mapping[int, RankTimeline]) -> list[tuple[CallShape, Floats]]:
    """Return the recorded times in ns of the calls of each shape; one entry a rank and recording."""
    return [
        (shape, graph.edges.lag_ns[edges].astype(np.float64))
        for graph in job.graphs
        for part in graph.ranks
        for shape, edges in _edges_by_shape(graph, part, ranks[part.rank])
    ]


def _edges_by_shape(graph: Graph, part: RankPart, timeline: RankTimeline) -> Iterator[tuple[CallShape, Ints]]:
    """Yield the edges that hold the transfer times of a rank, for each shape of its calls."""
    comm = np.flatnonzero(part.span_kind == COMM)
    ends = part.ends()
    transfers = np.flatnonzero(
        (graph.edges.kind == TRANSFER) & (graph.edges.node >= ends.start) & (graph.edges.node < ends.stop)
    )
    spans = np.concatenate([comm, graph.edges.node[transfers] - ends.start])
    edges = np.concatenate([run_edges(graph, part)[comm], transfers])
    calls, rows = timeline.collectives, part.collective[spans]
    at = np.where(rows == NONE, -1, rows)  # communication whose call was not recorded has the row beyond the last
    columns = np.stack(
        [np.append(each, np.int64(NONE))[at] for each in (calls.op, calls.bytes, calls.dtype, calls.group_size)]
    )
    shapes, which = np.unique(columns, axis=1, return_inverse=True)
    which = which.reshape(-1)
    for number, (op, size_bytes, dtype, group_size) in enumerate(shapes.T.tolist()):
        name = timeline.name(op)
        shape = CallShape(
            op="message" if name in P2P else name or "", bytes=max(size_bytes, 0), dtype=timeline.name(dtype),
            group_size=max(group_size, 0),
        )  # fmt: skip
        yield shape, edges[which == number]
