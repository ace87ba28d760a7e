"""Replay a graph with its own lags or with changed ones: one forward scan."""

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.graph.model import (
    OCCUPANCY,
    RUN_KIND,
    UNEXPLAINED,
    Graph,
    NodeNumbers,
    RankPart,
    once_a_graph,
)
from overlapscope.timeline.columns import Codes, Ints
from overlapscope.timeline.rows import is_one_of


def replay(graph: Graph, lag_ns: Ints | None = None, own_ns: Ints | None = None) -> Ints:
    """Return the time of each node, with the lag of each edge and the own time of each node.

    Without `own_ns`, own times are kept but those that no rule explains: a graph that lacks an edge then ends early.
    Nodes without predecessors stay at their recorded time.
    """
    return replay_part(graph, slice(0, graph.num_edges), lag_ns, own_ns)


Scan = slice | Codes
"""Edges in the order of a scan, with every edge of each node that they lead to."""


def replay_part(graph: Graph, edges: Scan, lag_ns: Ints | None = None, own_ns: Ints | None = None) -> Ints:
    """Return the time of each node; only those that `edges` lead to are replayed, others are as recorded."""
    nodes, node = graph.nodes, graph.edges.node[edges]
    own = explained_own(graph) if own_ns is None else own_ns
    add = (graph.edges.lag_ns if lag_ns is None else lag_ns)[edges] + own[node]
    start = nodes.time_ns.copy()
    if graph.levels.size:
        levels = graph.levels if isinstance(edges, slice) else np.searchsorted(edges, graph.levels.astype(np.int32))
        return _by_level(start, graph.edges.before[edges], node, add, levels)
    start[node] = np.iinfo(np.int64).min
    before_each = graph.edges.before[edges]
    there = np.zeros(start.size, np.bool_)
    there[before_each] = there[node] = True
    found = np.flatnonzero(there)
    place = np.empty(start.size, np.int32)
    place[found] = np.arange(found.size, dtype=np.int32)
    value = start[found].tolist()
    for before, to, by in zip(place[before_each].tolist(), place[node].tolist(), add.tolist(), strict=True):
        then = value[before] + by
        if then > value[to]:  # noqa: PLR1730 - half the time of max()
            value[to] = then
    start[found] = value
    return start


def scans_of(graph: Graph, windows: Sequence[tuple[Ints, Ints]]) -> list[Scan]:
    """Return for each window (first and last nodes) the edges to its nodes, from after the first to the last."""
    time, node = graph.nodes.time_ns, graph.edges.node
    if graph.levels.size:  # a wide graph is sorted by level, not by time
        ends = time[node]
        return [
            np.flatnonzero((ends > time[start].min()) & (ends <= time[end].max())).astype(np.int32)
            for start, end in windows
        ]
    place = np.empty(graph.num_nodes, np.int64)
    place[graph.order] = np.arange(graph.num_nodes)
    at = place[node]
    bounds = [(place[start].min(), place[end].max()) for start, end in windows]
    return [slice(*np.searchsorted(at, each, "right").tolist()) for each in bounds]


def _by_level(value: Ints, before: NodeNumbers, node: NodeNumbers, add: Ints, levels: Ints) -> Ints:
    """Replay, in place, one level after the other."""
    opens = np.flatnonzero(np.append(True, node[1:] != node[:-1])[: node.size])
    bounds = np.searchsorted(opens, levels).tolist()
    for begin, end, low, high in zip(levels.tolist(), levels[1:].tolist(), bounds, bounds[1:], strict=False):
        if end > begin:
            arrived = value[before[begin:end]] + add[begin:end]
            value[node[opens[low:high]]] = np.maximum.reduceat(arrived, opens[low:high] - begin)
    return value


def explained_own(graph: Graph) -> Ints:
    """Return the own time of each node, 0 where no rule explains it."""
    nodes = graph.nodes
    return np.where(nodes.gap == UNEXPLAINED, 0, nodes.own_ns)


def run_edges(graph: Graph, part: RankPart) -> Ints:
    """Return for each span of a rank the edge that runs it."""
    return edge_to_end(graph)[part.ends()].astype(np.int64)


@once_a_graph
def edge_to_end(graph: Graph) -> Codes:
    """Return for each node that is the end of a span the edge that runs it; -1 for others."""
    found = np.full(graph.num_nodes, -1, np.int32)
    runs = np.flatnonzero(is_one_of(graph.edges.kind, RUN_KIND.values()))
    found[graph.edges.node[runs]] = runs
    return found


@once_a_graph
def _last_waves(graph: Graph) -> tuple[Ints, Ints]:
    """Return the `occupancy` edges, and for each the end of the span in whose last wave its own began."""
    waves = np.flatnonzero(graph.edges.kind == OCCUPANCY)
    start = graph.edges.before[waves].astype(np.int64)
    return waves, start + np.array([part.spans for part in graph.ranks], np.int64)[graph.part_index(start)]


def with_durations(graph: Graph, ends: Ints, duration_ns: Ints, lag_ns: Ints) -> Ints:
    """Return the lags of all edges where spans (nodes of their ends) take these durations, and otherwise `lag_ns`.

    Waits for a last wave scale with its span.
    """
    lag = lag_ns.copy()
    run = edge_to_end(graph)[ends]
    lag[run] = duration_ns
    waves, holders = _last_waves(graph)
    of_holder = edge_to_end(graph)[holders]
    changed = np.isin(holders, ends)
    waves, of_holder = waves[changed], of_holder[changed]
    lag[waves] = np.rint(lag[waves] * (lag[of_holder] / np.maximum(lag_ns[of_holder], 1))).astype(np.int64)
    return lag
