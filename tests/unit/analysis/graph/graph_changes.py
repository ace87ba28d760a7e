"""Changes of a dependency graph that tests ask of it, and compare with a simulation of the changed program."""

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.model import LAUNCH, RUN_COMM, TRANSFER, Graph
from overlapscope.analysis.graph.scenarios import Change
from overlapscope.timeline.columns import Flags, Ints


def scaled_transfers(graph: Graph, factor: float) -> Change:
    """Return a change in which transfers take so many times as long; 0.5 is a link twice as fast.

    Without peers the whole call scales, the wait that it contains too: an upper bound of the effect.
    """
    return scaled_edges(graph, np.isin(graph.edges.kind, (TRANSFER, RUN_COMM)), factor)


def scaled_edges(graph: Graph, chosen: Flags, factor: float) -> Change:
    """Return a change in which the chosen edges take so many times as long: what a kernel or call is worth."""
    lag = graph.edges.lag_ns
    return replace(Change.none(graph), lag_ns=np.where(chosen, np.rint(lag * factor).astype(np.int64), lag))


def earlier_launches(graph: Graph, starts: Ints, by_ns: int) -> Change:
    """Return a change in which spans (nodes of their starts) are launched so much earlier.

    They still wait for their streams and events; a span that waits for nothing else keeps its launch.
    """
    edges = graph.edges
    others = np.zeros(graph.num_nodes, np.bool_)
    others[edges.node[edges.kind != LAUNCH]] = True
    chosen = np.zeros(graph.num_nodes, np.bool_)
    chosen[starts] = True
    moved = (edges.kind == LAUNCH) & chosen[edges.node] & others[edges.node]
    return replace(Change.none(graph), lag_ns=np.where(moved, edges.lag_ns - by_ns, edges.lag_ns))
