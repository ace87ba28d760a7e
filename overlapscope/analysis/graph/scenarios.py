"""What a recording would have taken with changed work: the same graph, replayed with other lags.

A recording shows no dependency that never bound in it, so a scenario that shortens the binding chain is optimistic.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.bounds import Bounds
from overlapscope.analysis.graph.model import (
    ARRIVE,
    BEGINS,
    CALL,
    HAND_OVER,
    HOST_STRETCH,
    NO_GAP,
    RUN_COMM,
    TRANSFER,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.replay import replay, replay_part, scans_of
from overlapscope.analysis.graph.walk import begun_late_ns
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.rows import is_one_of

PAUSE_CAP_NS: Final = 3_000_000
"""Longest pause in the scenario of hosts that always have a core."""
LAGS: Final = 0.01
"""A device lags whose work from before its recording lasts for this share of it. A choice: less moves little."""
NEVER_BEGUN: Final = int(np.iinfo(np.int64).max)
NEVER: Final = int(np.iinfo(np.int64).min) // 4
"""Lag of an edge that does not hold."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Lags of all edges and own times of all nodes of a graph, and when nodes without predecessors begin."""

    lag_ns: Ints
    own_ns: Ints
    time_ns: Ints

    @classmethod
    def none(cls, graph: Graph) -> "Change":
        """Return the graph as recorded."""
        return cls(lag_ns=graph.edges.lag_ns, own_ns=graph.nodes.own_ns, time_ns=graph.nodes.time_ns)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a window under a change; nanoseconds."""

    recorded_ns: int
    kept_ns: int
    """With the time that no rule explains."""
    dropped_ns: int
    """Without it: where the two differ, the answer lies between."""

    @property
    def gain_ns(self) -> int:
        """How much shorter the window gets, with everything kept."""
        return self.recorded_ns - self.kept_ns


def outcome(graph: Graph, window: Bounds, change: Change) -> Outcome:
    """Replay a change and return what the window takes."""
    nodes = graph.nodes
    opaque = (nodes.gap != NO_GAP) & (nodes.gap != BEGINS)
    kept = changed_times(graph, change)
    dropped = changed_times(graph, replace(change, own_ns=np.where(opaque, 0, change.own_ns))) if opaque.any() else kept
    return Outcome(
        recorded_ns=window.length_ns(nodes.time_ns), kept_ns=window.length_ns(kept),
        dropped_ns=window.length_ns(dropped),
    )  # fmt: skip


def changed_times(graph: Graph, change: Change) -> Ints:
    """Return the time of each node under a change, replayed from the begin of the recording."""
    moved = replace(graph, nodes=replace(graph.nodes, time_ns=change.time_ns))
    return replay(moved, change.lag_ns, change.own_ns)


def without_communication(graph: Graph) -> Change:
    """Return a change in which communication takes no time and ranks do not wait for each other."""
    change = instant_transfers(graph)
    return replace(change, lag_ns=np.where(graph.edges.kind == ARRIVE, NEVER, change.lag_ns))


def instant_transfers(graph: Graph) -> Change:
    """Return a change in which transfers take no time; members still wait for each other."""
    edges = graph.edges
    transfers = (edges.kind == TRANSFER) | (edges.kind == RUN_COMM)
    own = graph.nodes.own_ns.copy()
    own[edges.node[transfers]] = 0  # jitter of the ends is no time of its own
    return replace(Change.none(graph), lag_ns=np.where(transfers, 0, edges.lag_ns), own_ns=own)


def capped_pauses(graph: Graph, cap_ns: int) -> Change:
    """Return a change in which no host stretch or call lasts longer; waits for the device are not capped."""
    edges = graph.edges
    host = is_one_of(edges.kind, (HOST_STRETCH, HAND_OVER, CALL))
    return replace(Change.none(graph), lag_ns=np.where(host, np.minimum(edges.lag_ns, cap_ns), edges.lag_ns))


def aligned_starts(graph: Graph) -> Change:
    """Return a change in which the recordings of all ranks begin together: profilers start apart, jobs do not.

    A device that lags has work left from before its recording. Then devices begin together what was launched in it: a
    host that is ahead begins to record earlier, and its device is no earlier for that. Else a host that had begun to
    record, and called nothing yet when its peers did, is late by that (`begun_late_ns`).
    """
    time = graph.nodes.time_ns.copy()
    parts = [part for part in graph.ranks if part.nodes]
    late = begun_late_ns(graph)
    first = [int(time[part.first : part.first + part.nodes].min()) - late.get(part.rank, 0) for part in parts]
    launched = [int(time[part.starts()][part.launched_by >= 0].min(initial=NEVER_BEGUN)) for part in parts]
    if NEVER_BEGUN not in launched and devices_lag(graph):
        first = launched
    for part, begin in zip(parts, first, strict=True):
        time[part.first : part.first + part.nodes] -= begin - min(first)
    return replace(Change.none(graph), time_ns=time)


def devices_lag(graph: Graph) -> bool:
    """Return whether any device has work from before its recording that lasts for much of it."""
    return any(_lags(graph, part) for part in graph.ranks if part.nodes)


def _lags(graph: Graph, part: RankPart) -> bool:
    """Return whether the device of a rank has work from before its recording that lasts for much of it."""
    time = graph.nodes.time_ns
    start, end, old = time[part.starts()], time[part.ends()], part.launched_by < 0
    if not part.spans or not old.any() or old.all():
        return False
    until = start[~old].min()
    busy = BusyTime(union((start[old], end[old]))).within(start[:1], np.array([until]))
    return bool(busy[0] >= LAGS * (end.max() - start.min()))


def own_chain_ends(graph: Graph, change: Change | None = None) -> dict[int, int]:
    """Return for each rank when its last span would end without waits for its peers; transfers take their time."""
    value = changed_times(graph, _alone(graph, change or Change.none(graph)))
    return {part.rank: int(value[part.ends()].max()) for part in graph.ranks if part.spans}


def own_chain_lengths(graph: Graph, window: Bounds, since_ns: int) -> dict[int, int]:
    """Return for each rank how long after a moment it would end a window if it did not wait for its peers in it.

    `window` has one end for each rank, or all nodes; what lies before it is as recorded.
    """
    alone = _alone(graph, Change.none(graph))
    (edges,) = scans_of(graph, [(window.start, window.end)])
    value = replay_part(graph, edges, alone.lag_ns, alone.own_ns)
    ranks = graph.part_index(window.end)
    return {
        part.rank: int(value[window.end[ranks == at]].max()) - since_ns
        for at, part in enumerate(graph.ranks)
        if (ranks == at).any()
    }


def _alone(graph: Graph, change: Change) -> Change:
    """Return a change in which no rank waits for another."""
    edges = graph.edges
    own = change.own_ns.copy()
    own[edges.node[edges.kind == TRANSFER]] = 0
    return replace(change, own_ns=own, lag_ns=np.where(edges.kind == ARRIVE, NEVER, change.lag_ns))


def slack_ns(graph: Graph, ends: Ints) -> Ints:
    """Return how much later each node could be without delaying the last of the nodes `ends`.

    One backward scan; NONE for nodes that lead to none of them.
    """
    nodes, edges = graph.nodes, graph.edges
    last = int(nodes.time_ns[ends].max())
    never = int(np.iinfo(np.int64).max)
    start = np.full(graph.num_nodes, never, np.int64)
    start[ends] = last
    latest = start.tolist()
    needed = (edges.lag_ns + nodes.own_ns[edges.node]).tolist()
    before, node = edges.before.tolist(), edges.node.tolist()
    for at in range(graph.num_edges - 1, -1, -1):
        then = latest[node[at]] - needed[at]
        if then <= last and then < latest[before[at]]:
            latest[before[at]] = then
    found = np.array(latest, np.int64)
    return np.where(found == never, NONE, found - nodes.time_ns)
