"""Replay a graph with its own lags or with changed ones: one forward scan."""

import numpy as np

from overlapscope.analysis.graph.model import BEGINS, Graph, UNEXPLAINED
from overlapscope.timeline.columns import Flags, Ints


def replay(graph: Graph, lag_ns: Ints | None = None, own_ns: Ints | None = None) -> Ints:
    """Return the time of each node, with the lag of each edge and the own time of each node.

    Without `own_ns`, own times are kept but those that no rule explains: a graph that lacks an edge then ends early.
    Nodes without predecessors stay at their recorded time.
    """
    nodes, edges = graph.nodes, graph.edges
    own = explained_own(graph) if own_ns is None else own_ns
    add = (edges.lag_ns if lag_ns is None else lag_ns) + own[edges.node]
    value = np.where(nodes.gap == BEGINS, nodes.time_ns, np.iinfo(np.int64).min).tolist()
    for before, node, by in zip(edges.before.tolist(), edges.node.tolist(), add.tolist(), strict=True):
        then = value[before] + by
        if then > value[node]:
            value[node] = then
    return np.array(value, np.int64)


def explained_own(graph: Graph) -> Ints:
    """Return the own time of each node, 0 where no rule explains it."""
    nodes = graph.nodes
    return np.where(nodes.gap == UNEXPLAINED, 0, nodes.own_ns)
