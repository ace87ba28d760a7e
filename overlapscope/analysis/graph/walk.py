"""The critical path of a graph: the chain of binding edges that ends at a moment, and what it consists of.

Predecessors that arrive within `OWN_NS` of each other are ties: which of them bound is not known. So shares of a path
are a band over all ways to decide ties, not a figure.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    EDGE_KINDS,
    EVENT,
    HAND_OVER,
    HOST_STRETCH,
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
)
from overlapscope.timeline.columns import Ints

PARTS: Final = ("host", "compute", "comm", "copy", "idle", "unknown", "before_recording")
"""What a path consists of. `idle`: latency of launches, streams and events, and jitter. `unknown`: no rule names it."""
HOST, COMPUTE, COMM, COPY, IDLE, UNKNOWN, BEFORE_RECORDING = range(7)
_PART: Final = np.array([
    {HOST_STRETCH: HOST, HAND_OVER: HOST, CALL: HOST, ALLOCATE: HOST, SYNC: HOST, POLL: HOST, OWN_CALL: HOST,
     RUN_COMPUTE: COMPUTE, OCCUPANCY: COMPUTE, RUN_COMM: COMM, TRANSFER: COMM, RUN_COPY: COPY}.get(kind, IDLE)
    for kind in range(len(EDGE_KINDS))
], np.int8)  # fmt: skip
"""Part of a path that the lag of each kind of edge is; waking after a synchronisation is time of the host."""

_EARLY_BITS: Final = 50
"""Enough for the nanoseconds of thirteen days."""
RULE: Final = (SYNC, POLL, HAND_OVER, ON_LANE, LAUNCH, EVENT, OCCUPANCY, OWN_CALL)
"""Which of tied predecessors the path that is shown follows: recorded before inferred, the synchronisation before the
host, the stream before the launch; then the one that arrived last."""


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """A critical path; nanoseconds."""

    start_ns: int
    end_ns: int
    parts: Mapping[str, int]
    """By name in `PARTS`; they sum to the length."""
    bands: Mapping[str, tuple[int, int]]
    """Smallest and largest time of each part over all ways to decide ties."""
    edges: Ints
    """Rows in `Edges`, from the path's end back to its first node."""

    @property
    def length_ns(self) -> int:
        """Length of the path's window."""
        return self.end_ns - self.start_ns


def shown_binding(graph: Graph) -> Ints:
    """Return the edges that bound each node, as paths and chains show them: ties are decided by `RULE`."""
    return binding_edges(graph, tie_ns=OWN_NS)


def critical_path(graph: Graph, end: int, since_ns: int) -> Path:
    """Return the path that ends at the node `end`, back to a moment or to the first node of its chain."""
    edges = chain(graph, shown_binding(graph), end, since_ns)
    sums = _path_parts(graph, edges, since_ns).sum(axis=0)
    first = int(graph.edges.before[edges[-1]]) if edges.size else end
    sums[BEFORE_RECORDING] += max(int(graph.nodes.time_ns[first]) - since_ns, 0)
    return Path(
        start_ns=since_ns,
        end_ns=int(graph.nodes.time_ns[end]),
        parts=dict(zip(PARTS, sums.tolist(), strict=True)),
        bands=_bands(graph, end, since_ns),
        edges=edges,
    )


def _path_parts(graph: Graph, edges: Ints, since_ns: int) -> Ints:
    """Return the time of each part (column) on each edge (row), cut at the begin of the path."""
    nodes, table = graph.nodes, graph.edges
    node, rows = table.node[edges], np.arange(edges.size)
    taken = nodes.time_ns[node] - np.maximum(nodes.time_ns[table.before[edges]], since_ns)
    lag = np.clip(table.lag_ns[edges], np.minimum(taken, 0), np.maximum(taken, 0))
    parts = np.zeros((edges.size, len(PARTS)), np.int64)
    parts[rows, _PART[table.kind[edges]]] = lag
    parts[rows, np.where(nodes.gap[node] == NO_GAP, IDLE, UNKNOWN)] += taken - lag
    return parts


def unknown_ns(graph: Graph, edges: Ints, since_ns: int) -> Ints:
    """Return what no rule explains of each edge of a path that has such time, cut at the begin of the path."""
    opaque = edges[graph.nodes.gap[graph.edges.node[edges]] != NO_GAP]
    return _path_parts(graph, opaque, since_ns)[:, UNKNOWN]


def _bands(graph: Graph, end: int, since_ns: int) -> dict[str, tuple[int, int]]:
    """Return the least and the most time of each part over all walks along tied edges."""
    tied = _tied_edges(graph, end, since_ns)
    time, before, node = graph.nodes.time_ns, graph.edges.before[tied].tolist(), graph.edges.node[tied].tolist()
    weights = _path_parts(graph, tied, since_ns)
    found = {}
    for part, name in enumerate(PARTS):
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        for at, to, by in zip(before, node, weights[:, part].tolist(), strict=True):
            if at not in low:  # the path begins here
                low[at] = high[at] = max(int(time[at]) - since_ns, 0) if part == BEFORE_RECORDING else 0
            least, most = low[at] + by, high[at] + by
            if to not in low:
                low[to], high[to] = least, most
            else:
                low[to], high[to] = min(low[to], least), max(high[to], most)
        found[name] = (low.get(end, 0), high.get(end, 0))
    return found


def _tied_edges(graph: Graph, end: int, since_ns: int) -> Ints:
    """Return the edges, in the order of a scan, of all walks back from a node whose predecessors arrived at most a tie
    before the last."""
    time, edges = graph.nodes.time_ns, graph.edges
    early = time[edges.node] - graph.nodes.own_ns[edges.node] - time[edges.before] - edges.lag_ns
    tied = (early <= OWN_NS) & (time[edges.node] > since_ns)
    opens = np.flatnonzero(np.append(True, np.diff(edges.node) != 0))
    first, last = np.zeros(graph.num_nodes, np.int64), np.zeros(graph.num_nodes, np.int64)
    first[edges.node[opens]], last[edges.node[opens]] = opens, np.append(opens[1:], edges.node.size)
    wanted, kept, reached = {end}, [], [end]
    while reached:
        node = reached.pop()
        for edge in range(int(first[node]), int(last[node])):
            if tied[edge]:
                kept.append(edge)
                before = int(edges.before[edge])
                if before not in wanted:
                    wanted.add(before)
                    reached.append(before)
    return np.array(sorted(kept), np.int64)


def binding_edges(graph: Graph, *, tie_ns: int = 0) -> Ints:
    """Return for each node the edge that bound it; -1 for a node without predecessors.

    Of the edges whose predecessor arrived within `tie_ns` of the last, the first by `RULE` binds, then the latest.
    """
    nodes, edges = graph.nodes, graph.edges
    binding = np.full(graph.num_nodes, -1, np.int64)
    if not edges.node.size:
        return binding
    opens = np.append(True, edges.node[1:] != edges.node[:-1])  # edges are grouped by node
    alone = opens & np.append(opens[1:], True)
    only, several = np.flatnonzero(alone), np.flatnonzero(~alone)
    binding[edges.node[only]] = only
    if not several.size:
        return binding
    node = edges.node[several]
    arrived = nodes.time_ns[node] - nodes.own_ns[node]
    early = arrived - nodes.time_ns[edges.before[several]] - edges.lag_ns[several]
    rank = np.full(len(EDGE_KINDS), len(EDGE_KINDS), np.int64)
    rank[list(RULE)] = np.arange(len(RULE))
    key = np.where(early <= tie_ns, rank[edges.kind[several]], 2 * len(EDGE_KINDS)) << _EARLY_BITS
    key += np.minimum(early, (1 << _EARLY_BITS) - 1)
    opens = opens[several]
    least = np.minimum.reduceat(key, np.flatnonzero(opens))
    binds = key == least[np.cumsum(opens) - 1]
    binding[node[binds]] = several[binds]
    return binding


def chain(graph: Graph, binding: Ints, end: int, since_ns: int) -> Ints:
    """Return the binding edges from a node back to a moment, the last first."""
    if not graph.num_edges:
        return np.empty(0, np.int64)
    bound = (binding >= 0) & (graph.nodes.time_ns > since_ns)
    # A list hands out single numbers in a fraction of the time that an array takes.
    before = np.where(bound, graph.edges.before[binding], -1).tolist()
    found, node = [end], end
    while (node := before[node]) >= 0:
        found.append(node)
    return binding[np.array(found[:-1], np.int64)]
