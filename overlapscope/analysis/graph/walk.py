"""The critical path of a graph: the chain of binding edges that ends at a moment, and what it consists of.

Predecessors that arrive within `OWN_NS` of each other are ties: which of them bound is not known. So shares of a path
are a band over all ways to decide ties, not a figure.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.device_waits import NO_LAUNCH_BINDS_NS
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    EDGE_KINDS,
    EVENT,
    FIRST_OF_LANE,
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
    NodeNumbers,
    RankPart,
    in_parts,
    once_a_graph,
)
from overlapscope.timeline.columns import NONE, Flags, Ints, Small
from overlapscope.timeline.rows import sum_by, values_in

PARTS: Final = (
    "compute", "transfer", "communication", "copy", "launch", "host", "idle", "unknown", "before_recording", "late_end"
)  # fmt: skip
"""What a path consists of. `transfer`: communication after the arrival of its last member; `communication`: transfer
and wait, not separated. `launch`: latency of launches. `idle`: latency of streams and events, and jitter. `unknown`: no
rule names it. `late_end`: of what would be transfer, the time since another member's end; no edge has this part."""
(COMPUTE, MATCHED, UNMATCHED, COPY, LATENCY, HOST, IDLE, UNKNOWN, BEFORE_RECORDING, ENDED_LATE) = range(len(PARTS))
_PART: Final = np.array([
    {HOST_STRETCH: HOST, HAND_OVER: HOST, CALL: HOST, ALLOCATE: HOST, SYNC: HOST, POLL: HOST, OWN_CALL: HOST,
     LAUNCH: LATENCY, RUN_COMPUTE: COMPUTE, OCCUPANCY: COMPUTE, RUN_COMM: UNMATCHED, TRANSFER: MATCHED,
     RUN_COPY: COPY}.get(kind, IDLE)
    for kind in range(len(EDGE_KINDS))
], np.int8)  # fmt: skip
"""Part of a path that the lag of each kind of edge is; waking after a synchronisation is time of the host."""

LATE_NS: Final = 3_000_000
LATER: Final = 10
"""A host begins late that has called nothing for as long as a long pause and so many times as long as its peers. A
choice."""
_EARLY_BITS: Final = 50
"""Enough for the nanoseconds of thirteen days."""
RULE: Final = (SYNC, POLL, HAND_OVER, ON_LANE, LAUNCH, EVENT, OCCUPANCY, OWN_CALL, TRANSFER)
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


@once_a_graph
def begun_late_ns(graph: Graph) -> dict[int, int]:
    """Return by rank for how much longer than their peers hosts had called nothing when their recordings had begun:
    that is time of these hosts, and no time before their recordings.

    Only where the peers' first calls come soon after these begin: else profilers may take long to start; and where the
    first span of the device began as soon as it was launched: nothing of before was left to do.
    """
    silent = {part.rank: part.silent_ns for part in graph.ranks if part.calls}
    usual_ns = int(np.median([*silent.values(), 0]))
    return {
        part.rank: part.silent_ns - usual_ns
        for part in graph.ranks
        if len(silent) > 1 and part.silent_ns >= LATE_NS + LATER * usual_ns and _begins_at_once(graph, part)
    }


def _begins_at_once(graph: Graph, part: RankPart) -> bool:
    """Return whether the first span of a rank began as soon as it was launched."""
    if not part.spans or part.launched_by[0] < 0:
        return False
    launched = graph.nodes.time_ns[part.returns()][part.launched_by[0]]
    return bool(graph.nodes.time_ns[part.starts()][0] <= launched + NO_LAUNCH_BINDS_NS)


def until_first(graph: Graph, node: int, since_ns: int) -> tuple[int, int]:
    """Return how long before the first node of a chain, since a moment, is of before the recording, and how much of its
    host."""
    before_ns, part = max(int(graph.nodes.time_ns[node]) - since_ns, 0), graph.part_of(node)
    late_ns = min(begun_late_ns(graph).get(part.rank, 0) if part else 0, before_ns)
    return before_ns - late_ns, late_ns


@once_a_graph
def shown_binding(graph: Graph) -> Ints:
    """Return the edges that bound each node, as paths and chains show them: ties are decided by `RULE`."""
    return binding_edges(graph, tie_ns=OWN_NS)


@once_a_graph
def whole_path(graph: Graph) -> Path | None:
    """Return the path of the whole recording, without bands; None without spans."""
    window, time = whole_bounds(graph), graph.nodes.time_ns
    if window is None:
        return None
    return critical_path(graph, window.last(time), int(time[window.start].min()), with_bands=False)


def critical_path(graph: Graph, end: int, since_ns: int, *, with_bands: bool = True) -> Path:
    """Return the path that ends at the node `end`, back to a moment or to the first node of its chain.

    Without bands they are empty.
    """
    edges = chain(graph, shown_links(graph), end, since_ns)
    part, lag, rest_part, rest = _divided(graph, edges, since_ns)
    sums = sum_by(part, lag, len(PARTS)) + sum_by(rest_part, rest, len(PARTS))
    first = int(graph.edges.before[edges[-1]]) if edges.size else end
    sums[[BEFORE_RECORDING, HOST]] += until_first(graph, first, since_ns)
    return Path(
        start_ns=since_ns,
        end_ns=int(graph.nodes.time_ns[end]),
        parts=dict(zip(PARTS, sums.tolist(), strict=True)),
        bands=part_bands(graph, end, since_ns) if with_bands else {},
        edges=edges,
    )


def edge_parts(graph: Graph, edges: Ints, since_ns: int) -> Ints:
    """Return the time of each part (column) on each edge (row), cut at the begin of the path."""
    part, lag, rest_part, rest = _divided(graph, edges, since_ns)
    rows = np.arange(edges.size)
    parts = np.zeros((edges.size, len(PARTS)), np.int64)
    parts[rows, part] = lag
    parts[rows, rest_part] += rest
    return parts


def _divided(graph: Graph, edges: Ints, since_ns: int) -> tuple[Small, Ints, Small, Ints]:
    """Return the part of a path that each edge's lag is, and how long it is, and the same of the rest of its time."""
    nodes, table = graph.nodes, graph.edges
    node = table.node[edges]
    taken = nodes.time_ns[node] - np.maximum(nodes.time_ns[table.before[edges]], since_ns)
    lag = np.clip(table.lag_ns[edges], np.minimum(taken, 0), np.maximum(taken, 0))
    return parts_of(graph, edges), lag, parts_of_rest(graph, node), taken - lag


def parts_of_rest(graph: Graph, node: NodeNumbers) -> Small:
    """Return the part of a path that the time of their own of these nodes is."""
    part = np.where(graph.nodes.gap[node] == NO_GAP, np.int8(IDLE), np.int8(UNKNOWN))
    part[_behind_unrecorded(graph)[node]] = BEFORE_RECORDING
    return part


@once_a_graph
def _behind_unrecorded(graph: Graph) -> Flags:
    """Return the nodes whose time of their own was that of work launched before the recording: the first spans of their
    streams, up to the one that shows that this work had ended (`unrecorded_until_ns`), and those that begin later where
    most of the time in which nothing recorded is known to have held them lies before that: streams end such work one
    after the other."""
    found, time = np.zeros(graph.num_nodes, np.bool_), graph.nodes.time_ns
    for part in graph.ranks:
        starts, until = part.starts(), unrecorded_until_ns(graph, part)
        first, start = graph.nodes.gap[starts] == FIRST_OF_LANE, time[starts]
        if until == NONE or not part.spans:
            continue
        since = np.maximum(start - graph.nodes.own_ns[starts], start.min())
        found[starts] = first & (start - until <= until - since)
    return found


def unrecorded_until_ns(graph: Graph, part: RankPart) -> int:
    """Return until when the stream of a rank that computes most was busy with work launched before the recording; NONE
    where that is not known.

    Its first span had been launched in the recording, and nothing of that stream, no event and no call that may wait
    for the device ended between that launch and its start: it waited for work that is not recorded.
    """
    time, starts = graph.nodes.time_ns, part.starts()
    main = compute_lane(part.span_lane, part.span_kind, time[part.ends()] - time[starts])
    if not part.on_device or main == NONE:
        return NONE
    first = int(np.flatnonzero(part.span_lane == main)[0])
    call, start = int(part.launched_by[first]), int(time[starts][first])
    if graph.nodes.gap[starts][first] != FIRST_OF_LANE or call < 0:
        return NONE
    launched, returned = int(time[part.begins()][call]), time[part.returns()]
    by_launch = (
        start - int(graph.nodes.own_ns[starts][first]) <= max(launched, int(returned[call])) + NO_LAUNCH_BINDS_NS
    )
    waited = part.blocks & (returned > launched) & (returned <= start)
    return start if by_launch and not waited.any() else NONE


def launched_before(part: RankPart) -> Flags:
    """Return which spans were launched before the recording: those without a launch, before the first of their lane
    that has one."""
    early = np.zeros(part.spans, np.bool_)
    for lane in values_in(part.span_lane).tolist():
        on_lane = np.flatnonzero(part.span_lane == lane)
        launched = np.flatnonzero(part.launched_by[on_lane] >= 0)
        if launched.size:
            early[on_lane[: launched[0]]] = True
    return early


def parts_of(graph: Graph, edges: Ints) -> Small:
    """Return the part of a path (position in `PARTS`) that the lag of each of these edges is."""
    table, part = graph.edges, _PART[graph.edges.kind[edges]]
    if len(graph.ranks) > 1:  # the last member of a collective waited for itself alone
        joins = np.zeros(graph.num_nodes, np.bool_)
        joins[table.node[table.kind == TRANSFER]] = True
        part[(part == UNMATCHED) & joins[table.node[edges]]] = MATCHED
    return part


def part_bands(graph: Graph, end: int, since_ns: int) -> dict[str, tuple[int, int]]:
    """Return the least and the most time of each part over all walks along tied edges."""
    tied = _tied_edges(graph, end, since_ns)
    found, number = np.unique(
        np.concatenate([graph.edges.before[tied], graph.edges.node[tied], [end]]), return_inverse=True
    )
    before, node = number[: tied.size], number[tied.size : -1]
    weights = edge_parts(graph, tied, since_ns)
    ways = np.bincount(node, minlength=found.size)
    low = np.zeros((found.size, len(PARTS)), np.int64)
    for row in np.flatnonzero(ways == 0).tolist():
        low[row, [BEFORE_RECORDING, HOST]] = until_first(graph, int(found[row]), since_ns)
    high = low.copy()
    low[ways > 1], high[ways > 1] = _FAR, -_FAR
    # A chain of nodes to each of which one edge leads is one edge from its first node.
    alone = ways[node] == 1
    first, passed = np.arange(found.size), np.zeros_like(low)
    first[node[alone]], passed[node[alone]] = before[alone], weights[alone]
    while (first[first] != first).any():
        passed += passed[first]
        first = first[first]
    for edge in np.flatnonzero(~alone).tolist():
        at, to = before[edge], node[edge]
        taken = passed[at] + weights[edge]
        low[to] = np.minimum(low[to], low[first[at]] + taken)
        high[to] = np.maximum(high[to], high[first[at]] + taken)
    last = number[-1]
    least, most = (each[first[last]] + passed[last] for each in (low, high))
    return dict(zip(PARTS, zip(least.tolist(), most.tolist(), strict=True), strict=True))


_FAR: Final = int(np.iinfo(np.int64).max) // 2


def _tied_edges(graph: Graph, end: int, since_ns: int) -> Ints:
    """Return the edges, in the order of a scan, of all walks back from a node whose predecessors arrived at most a tie
    before the last."""
    time, edges = graph.nodes.time_ns, graph.edges
    to_end = np.flatnonzero(edges.node == end)
    if not to_end.size:
        return to_end
    # Not cut by the time of the end: what a node waited for may be recorded later than the node.
    near = np.flatnonzero(time[edges.node[: int(to_end[-1]) + 1]] > since_ns)
    before, node = edges.before[near], edges.node[near]
    near = near[time[node] - graph.nodes.own_ns[node] - time[before] - edges.lag_ns[near] <= OWN_NS]
    before, node = edges.before[near].tolist(), edges.node[near].tolist()
    wanted = {end}
    kept = []
    # Backwards each node comes after all that follow from it.
    for edge in range(len(node) - 1, -1, -1):
        if node[edge] in wanted:
            kept.append(edge)
            wanted.add(before[edge])
    return near[kept[::-1]]


def binding_edges(graph: Graph, *, tie_ns: int = 0) -> Ints:
    """Return for each node the edge that bound it; -1 for a node without predecessors.

    Of the edges whose predecessor arrived within `tie_ns` of the last, the first by `RULE` binds, then the latest.
    """
    nodes, edges = graph.nodes, graph.edges
    arrived = nodes.time_ns - nodes.own_ns
    rank = np.full(len(EDGE_KINDS), len(EDGE_KINDS), np.int64)
    rank[list(RULE)] = np.arange(len(RULE))
    binding = np.full(graph.num_nodes, -1, np.int64)
    least = np.full(graph.num_nodes, np.iinfo(np.int64).max)
    for some in in_parts(edges):  # with all edges that lead to their nodes
        node = edges.node[some]
        early = arrived.take(node) - nodes.time_ns.take(edges.before[some]) - edges.lag_ns[some]
        key = np.where(early <= tie_ns, rank.take(edges.kind[some]), 2 * len(EDGE_KINDS)) << _EARLY_BITS
        key += np.minimum(early, (1 << _EARLY_BITS) - 1)
        np.minimum.at(least, node, key)
        binds = np.flatnonzero(key == least.take(node))
        binding[node[binds]] = some.start + binds
    return binding


def chain(graph: Graph, links: "Links", end: int, since_ns: int) -> Ints:
    """Return the binding edges from a node back to a moment, the last first."""
    # A view of the memory hands out single numbers in a fraction of the time that an array takes.
    far, time = links.far.data, graph.nodes.time_ns.data
    stops = [end]
    while time[end] > since_ns and far[end] != end:
        end = far[end]
        stops.append(end)
    between = np.empty((LINKS_OF_A_JUMP, len(stops)), np.int32)
    between[0] = stops
    for at in range(1, LINKS_OF_A_JUMP):
        between[at] = links.before[between[at - 1]]
    edges = links.edge[between.T.ravel()]
    ended = edges < 0
    ended[~ended] = graph.nodes.time_ns[graph.edges.node[edges[~ended]]] <= since_ns
    return edges[: int(ended.argmax())] if ended.any() else edges


class Links(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """For each node the edge that bound it, and where that leads."""

    edge: Ints
    """Rows in `Edges`; -1 for a node without predecessors."""
    before: NodeNumbers
    """The node before; itself where there is none."""
    far: NodeNumbers
    """The node `LINKS_OF_A_JUMP` links before, or the first of its chain."""


def links_of(graph: Graph, binding: Ints) -> Links:
    """Return the links of a graph whose nodes these edges bound."""
    before = np.arange(binding.size, dtype=np.int32)
    bound = np.flatnonzero(binding >= 0)
    before[bound] = graph.edges.before[binding[bound]]
    far = before
    for _ in range(_DOUBLED):
        far = far.take(far)
    return Links(edge=binding, before=before, far=far)


@once_a_graph
def shown_links(graph: Graph) -> Links:
    """Return the links of `shown_binding`."""
    return links_of(graph, shown_binding(graph))


_DOUBLED: Final = 5
LINKS_OF_A_JUMP: Final = 1 << _DOUBLED
"""A chain is walked in jumps of so many links, of all of which the links between are then looked up at once."""
