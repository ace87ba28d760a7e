"""Replay a graph with its own lags or with changed ones: one forward scan."""

import numpy as np

from overlapscope.analysis.graph.model import UNEXPLAINED, Graph
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
    nodes, part = graph.nodes, slice(first, last)
    node = graph.edges.node[part]
    own = explained_own(graph) if own_ns is None else own_ns
    add = (graph.edges.lag_ns if lag_ns is None else lag_ns)[part] + own[node]
    start = nodes.time_ns.copy()
    start[node] = np.iinfo(np.int64).min
    value = start.tolist()
    for before, to, by in zip(graph.edges.before[part].tolist(), node.tolist(), add.tolist(), strict=True):
        then = value[before] + by
        value[to] = max(value[to], then)
    return np.array(value, np.int64)


def explained_own(graph: Graph) -> Ints:
    """Return the own time of each node, 0 where no rule explains it."""
    nodes = graph.nodes
    return np.where(nodes.gap == UNEXPLAINED, 0, nodes.own_ns)
