"""What a step of a chain is worth: how much earlier a recording would have ended without it.

Only what lies between the changed edges in the order of the graph is replayed. Every path from there to the end crosses
one cut behind them, and how long each path takes from its edge on is known from one backward scan, that of slack.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.model import ARRIVE, BEGINS, POLL, RUN_COMM, SYNC, TRANSFER, Graph, once_a_graph
from overlapscope.analysis.graph.replay import replay_part
from overlapscope.analysis.graph.scenarios import NEVER, slack_ns
from overlapscope.timeline.columns import NONE, Codes, Ints
from overlapscope.timeline.rows import is_one_of

MOST_EDGES: Final = 400_000
"""Edges that are replayed for all steps of one question together, so that a click is answered within half a second."""
_WAITS: Final = (SYNC, POLL, ARRIVE)
"""Kinds of edges that are waits: without one its node does not wait. Others take no time instead."""


@once_a_graph
def whole_slack(graph: Graph) -> Ints:
    """Return how much later each node could be without delaying the end of the recording; NONE where it leads to
    nothing."""
    whole = whole_bounds(graph)
    assert whole is not None
    return slack_ns(graph, whole.end)


def shortening_gains(graph: Graph, steps: Sequence[Ints], most_edges: int = MOST_EDGES) -> list[int | None]:
    """Return for each step (rows in `Edges`) how much earlier the recording would have ended without it, in ns.

    Work takes no time, a wait ends at once; all else takes as long as recorded. None for an empty step, and from where
    more than `most_edges` would have to be replayed. Other dependencies than recorded ones do not bind: an upper bound.
    """
    found: list[int | None] = []
    left = most_edges
    for rows in steps:
        region = _region(graph, _with_members(graph, rows)) if rows.size else slice(0, 0)
        left -= region.stop - region.start
        found.append(_gain_ns(graph, _with_members(graph, rows), region) if rows.size and left >= 0 else None)
    return found


def _with_members(graph: Graph, rows: Ints) -> Ints:
    """Return edges with those of the other members: a transfer is one for all members of its collective."""
    edges = graph.edges
    transfers = rows[edges.kind[rows] == TRANSFER]
    if not transfers.size:
        return rows
    same = np.flatnonzero((edges.kind == TRANSFER) & np.isin(edges.before, edges.before[transfers]))
    runs = np.flatnonzero((edges.kind == RUN_COMM) & np.isin(edges.node, edges.node[same]))
    return np.union1d(rows, np.concatenate([same, runs]))


class _Cuts(NamedTuple):
    """Where the edges of a graph lie in the order of its nodes."""

    before: Codes
    """For each edge the place of the node that it leads from."""
    node: Codes
    """For each edge the place of its own node; ascending."""
    ends: Codes
    """Places of the last nodes of the recording."""
    starts: Codes
    """Places of nodes without predecessors from which the end is reached, ascending ..."""
    start_ends_ns: Ints
    """... and when each would end the recording."""
    last_ns: int
    """When the recording ends."""


@once_a_graph
def _cuts(graph: Graph) -> _Cuts:
    nodes, edges = graph.nodes, graph.edges
    whole = whole_bounds(graph)
    assert whole is not None
    place = np.empty(graph.num_nodes, np.int32)
    place[graph.order] = np.arange(graph.num_nodes, dtype=np.int32)
    slack = whole_slack(graph)
    opens = slack != NONE
    opens[edges.node] = False
    starts = graph.order[opens[graph.order]]
    last_ns = int(nodes.time_ns[whole.end].max())
    return _Cuts(
        before=place[edges.before], node=place[edges.node], ends=place[whole.end], starts=place[starts],
        start_ends_ns=last_ns - slack[starts], last_ns=last_ns,
    )  # fmt: skip


def _region(graph: Graph, rows: Ints) -> slice:
    """Return all edges between the first and the last node of some edges, in the order of a scan."""
    place = _cuts(graph).node
    first, last = place[rows].min(), place[rows].max()
    return slice(int(np.searchsorted(place, first, "left")), int(np.searchsorted(place, last, "right")))


def _gain_ns(graph: Graph, rows: Ints, region: slice) -> int:
    nodes, edges = graph.nodes, graph.edges
    lag, own = edges.lag_ns.copy(), nodes.own_ns.copy()
    node = edges.node[rows]
    waits = is_one_of(edges.kind[rows], _WAITS)
    alone = np.array([int((edges.node[region] == each).sum()) == 1 for each in node[waits].tolist()], np.bool_)
    lag[rows] = 0
    lag[rows[waits][~alone]] = NEVER
    own[node[nodes.gap[node] != BEGINS]] = 0
    scan = np.arange(region.start, region.stop, dtype=np.int32) if graph.levels.size else region
    return max(_cuts(graph).last_ns - _end_ns(graph, replay_part(graph, scan, lag, own), region.stop), 0)


def _end_ns(graph: Graph, value_ns: Ints, first: int) -> int:
    """Return when the recording ends, where nodes before a cut have these times; `first` is the first edge behind."""
    nodes, edges, cuts, slack = graph.nodes, graph.edges, _cuts(graph), whole_slack(graph)
    cut = int(cuts.node[first - 1])
    crossing = first + np.flatnonzero(cuts.before[first:] <= cut)
    crossing = crossing[slack[edges.node[crossing]] != NONE]
    node = edges.node[crossing]
    # From a node on, the longest path takes what is left of the recording but for its slack.
    rest_ns = cuts.last_ns - nodes.time_ns[node] - slack[node]
    through = value_ns[edges.before[crossing]] + edges.lag_ns[crossing] + nodes.own_ns[node] + rest_ns
    whole = whole_bounds(graph)
    assert whole is not None
    before_cut = value_ns[whole.end[cuts.ends <= cut]]
    begun_later = cuts.start_ends_ns[np.searchsorted(cuts.starts, cut, "right") :]
    return int(max(each.max(initial=NEVER) for each in (through, before_cut, begun_later)))
