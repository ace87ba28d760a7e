"""Replay a graph with its own lags or with changed ones: one forward scan."""

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.graph.model import OCCUPANCY, RUN_KIND, UNEXPLAINED, Graph, RankPart
from overlapscope.timeline.columns import Ints


def replay(graph: Graph, lag_ns: Ints | None = None, own_ns: Ints | None = None) -> Ints:
    """Return the time of each node, with the lag of each edge and the own time of each node.

    Without `own_ns`, own times are kept but those that no rule explains: a graph that lacks an edge then ends early.
    Nodes without predecessors stay at their recorded time.
    """
    return replay_part(graph, 0, graph.num_edges, lag_ns, own_ns)


def replay_part(graph: Graph, first: int, last: int, lag_ns: Ints | None = None, own_ns: Ints | None = None) -> Ints:
    """Return the time of each node; only those of the edges [first, last) are replayed, others are as recorded.

    Edges are in the order of the scan, so all that lies before stays as it was.
    """
    nodes, edges, part = graph.nodes, graph.edges, slice(first, last)
    node = edges.node[part]
    own = explained_own(graph) if own_ns is None else own_ns
    add = (edges.lag_ns if lag_ns is None else lag_ns)[part] + own[node]
    start = nodes.time_ns.copy()
    if graph.levels.size and part == slice(0, graph.num_edges):
        return _by_level(graph, start, add)
    start[node] = np.iinfo(np.int64).min
    found, number = np.unique(np.concatenate([edges.before[part], node]), return_inverse=True)
    value = start[found].tolist()
    for before, to, by in zip(number[: node.size].tolist(), number[node.size :].tolist(), add.tolist(), strict=True):
        then = value[before] + by
        if then > value[to]:  # noqa: PLR1730 - half the time of max()
            value[to] = then
    start[found] = value
    return start


def scans_of(graph: Graph, windows: Sequence[tuple[Ints, Ints]]) -> list[tuple[int, int]]:
    """Return for each window (first and last nodes) its first edge, and the edge after its last, in order of a scan."""
    place = np.empty(graph.num_nodes, np.int64)
    place[graph.order] = np.arange(graph.num_nodes)
    at = place[graph.edges.node]
    bounds = [(place[start].min(), place[end].max()) for start, end in windows]
    return [
        (int(np.searchsorted(at, first, "right")), int(np.searchsorted(at, last, "right"))) for first, last in bounds
    ]


def _by_level(graph: Graph, value: Ints, add: Ints) -> Ints:
    """Replay, in place, one level after the other."""
    before, node = graph.edges.before, graph.edges.node
    opens = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    bounds = np.searchsorted(opens, graph.levels).tolist()
    levels = graph.levels.tolist()
    for begin, end, low, high in zip(levels, levels[1:], bounds, bounds[1:], strict=False):
        arrived = value[before[begin:end]] + add[begin:end]
        value[node[opens[low:high]]] = np.maximum.reduceat(arrived, opens[low:high] - begin)
    return value


def explained_own(graph: Graph) -> Ints:
    """Return the own time of each node, 0 where no rule explains it."""
    nodes = graph.nodes
    return np.where(nodes.gap == UNEXPLAINED, 0, nodes.own_ns)


def run_edges(graph: Graph, part: RankPart) -> Ints:
    """Return for each span the edge that runs it."""
    ends = part.ends()
    runs = np.isin(graph.edges.kind, list(RUN_KIND.values()))
    edges = np.flatnonzero(runs & (graph.edges.node >= ends.start) & (graph.edges.node < ends.stop))
    found = np.empty(part.spans, np.int64)
    found[graph.edges.node[edges] - ends.start] = edges
    return found


def with_durations(graph: Graph, part: RankPart, run: Ints, duration_ns: Ints, lag_ns: Ints | None = None) -> Ints:
    """Return the lags of all edges where a rank's spans take these durations; waits for a last wave scale with its
    span. `lag_ns` are the lags otherwise; without it, the recorded ones."""
    lag = (graph.edges.lag_ns if lag_ns is None else lag_ns).copy()
    old = lag[run]
    lag[run] = duration_ns
    starts = part.starts()
    before = graph.edges.before
    waves = np.flatnonzero((graph.edges.kind == OCCUPANCY) & (before >= starts.start) & (before < starts.stop))
    holder = before[waves] - starts.start
    lag[waves] = np.rint(lag[waves] * (duration_ns[holder] / np.maximum(old[holder], 1))).astype(np.int64)
    return lag
