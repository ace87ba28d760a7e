"""Which kernel, call or host stretch to shorten first: what each on the critical path is worth, by replay."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.graph.bounds import Bounds
from overlapscope.analysis.graph.model import EDGE_KINDS, HOST_EDGES, OCCUPANCY, Graph
from overlapscope.analysis.graph.replay import replay, run_edges
from overlapscope.analysis.graph.walk import Path
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

SHORTER: Final = 0.1
MOST: Final = 10


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a window gains when all edges of a kind and name, on all ranks, take a tenth less."""

    kind: str
    """Kind of the edges (`EDGE_KINDS`)."""
    name: str | None
    """Of the kernel; of the call, or of the call that a host stretch leads to."""
    path_ns: int
    """Their time on the critical path."""
    gain_ns: int


def shortening_gains(
    graph: Graph, window: Bounds, path: Path, ranks: Mapping[int, RankTimeline], *, most: int = MOST
) -> tuple[Gain, ...]:
    """Return the gain of shortening each kind of work that takes most of a path by a tenth, the largest gain first."""
    names, label = _labels(graph, ranks)
    key = label * len(EDGE_KINDS) + graph.edges.kind
    key[label < 0] = -1
    on_path = path.edges[key[path.edges] >= 0]
    found, which = np.unique(key[on_path], return_inverse=True)
    taken = sum_by(which, graph.edges.lag_ns[on_path], found.size)
    recorded = window.length_ns(graph.nodes.time_ns)
    gains = []
    for at in np.argsort(-taken, kind="stable")[:most].tolist():
        chosen = key == found[at]
        lag = np.where(chosen, np.rint(graph.edges.lag_ns * (1 - SHORTER)).astype(np.int64), graph.edges.lag_ns)
        value = replay(graph, lag, graph.nodes.own_ns)
        gains.append(
            Gain(
                kind=EDGE_KINDS[found[at] % len(EDGE_KINDS)], name=names[found[at] // len(EDGE_KINDS)],
                path_ns=int(taken[at]), gain_ns=recorded - window.length_ns(value),
            )
        )  # fmt: skip
    return tuple(sorted(gains, key=lambda gain: -gain.gain_ns))


def _labels(graph: Graph, ranks: Mapping[int, RankTimeline]) -> tuple[list[str | None], Ints]:
    """Return names, and for each edge that is work the position of its name; -1 for other edges."""
    edges = graph.edges
    codes: dict[str | None, int] = {}
    label = np.full(graph.num_edges, -1, np.int64)
    for part in graph.ranks:
        timeline = ranks[part.rank]
        own = np.array([codes.setdefault(name, len(codes)) for name in (*timeline.names, None)], np.int64)
        label[run_edges(graph, part)] = own[timeline.spans.name[part.span_row]]
        if not part.calls or part.call_name[0] < 0:
            continue
        called = own[part.call_name]
        mine = np.flatnonzero((edges.node >= part.first) & (edges.node < part.starts().start))
        mine = mine[np.isin(edges.kind[mine], HOST_EDGES)]
        label[mine] = called[(edges.node[mine] - part.first) % part.calls]
    label[edges.kind == OCCUPANCY] = -1
    return list(codes), label
