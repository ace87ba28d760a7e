"""The event-time dependency graph: nodes are points in time, work lies on edges.

A call of the host has a node for its begin and one for its end, a device span one for its start and one for its end,
a collective matched across ranks one for the arrival of its last member. In a replay,

    value(node) = max over its edges of (value(predecessor) + lag) + own(node)

and with the recorded lags and own times every value is the recorded time.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Final, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    COPY,
    NONE,
    Codes,
    Columns,
    Flags,
    Ints,
    Small,
    make,
    size,
    take,
)
from overlapscope.timeline.rows import sort_order

Answer = TypeVar("Answer")
NodeNumbers = Codes
"""Positions in `Nodes`: there are many edges, and 32 bits are enough."""

HOST_STRETCH, HAND_OVER, CALL, ALLOCATE, LAUNCH, OWN_CALL, ON_LANE, EVENT, OCCUPANCY, SYNC, POLL = range(11)
RUN_COMPUTE, RUN_COMM, RUN_COPY, ARRIVE, TRANSFER = range(11, 16)
EDGE_KINDS: Final = (
    "host", "hand", "call", "alloc", "launch", "owncall", "lane", "event", "occupancy", "sync", "poll",
    "compute", "comm", "copy", "arrive", "transfer",
)  # fmt: skip
"""`host`: between two calls of a thread. `hand`: from the call of one thread to the next, of another. `call`: inside a
call. `alloc`: inside a call that allocates or frees. `launch`: from a call to the span that it launched. `owncall`: the
same for a copy that its own call carries out. `lane`: between spans of a stream. `event`: from the end of a span on
another stream. `occupancy`: from the start of a span in whose last wave this one began. `sync`: from a span to the end
of the call that waited for it. `poll`: from a span to the call after a wait without synchronisation. `compute`, `comm`,
`copy`: a span itself. `arrive`, `transfer`: from a member of a collective to the last arrival, and on to its end."""
HOST_EDGES: Final = (HOST_STRETCH, HAND_OVER, CALL, ALLOCATE)
RUN_KIND: Final = {COMPUTE: RUN_COMPUTE, COMM: RUN_COMM, COPY: RUN_COPY}

RECORDED, ORDER, INFERRED = range(3)
KNOWN: Final = ("recorded", "order", "inferred")
"""How an edge is known: stated by the recording; by the order of calls on a thread or spans on a stream; from times."""

(NO_GAP, BEGINS, NOT_LAUNCHED, FIRST_OF_LANE, IN_GRAPH, OCCUPIED, UNEXPLAINED) = range(7)
GAPS: Final = ("none", "begins", "not_launched", "first_of_lane", "in_graph", "occupied", "unexplained")
"""Why a node has time of its own. `none`: at most `OWN_NS`, jitter. `begins`: without predecessors. `not_launched`: no
record of its launch. `first_of_lane`: what its stream did before is not recorded. `in_graph`: in or after a replayed
graph. `occupied`: other streams were busy, the holder is not known. The recording cannot hold the causes of these; but
`unexplained`, which no rule names, is left out of the replay that tests a graph."""

OWN_NS: Final = 20_000
"""Own time up to this is jitter; so are differences between two predecessors up to this (ties)."""

ENDS_APART_NS: Final = 50_000
"""The members of a collective end together within this: the error of aligned clocks."""


class Nodes(Columns, frozen=True, kw_only=True):
    """Points in time, on the aligned clock of the run."""

    time_ns: Ints
    own_ns: Ints
    """Time from the last predecessor's value, plus lag, to the node."""
    gap: Annotated[Small, GAPS]


class Edges(Columns, frozen=True, kw_only=True):
    """Dependencies: `node` is not earlier than `lag_ns` after `before`."""

    before: NodeNumbers
    node: NodeNumbers
    kind: Annotated[Small, EDGE_KINDS]
    known: Annotated[Small, KNOWN]
    lag_ns: Ints


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of a rank stand for: call begins, call ends, span starts, span ends, in this order, from `first`
    on."""

    rank: int
    recording: int
    first: int
    call_name: Codes
    """Name of each call, by thread and begin. In a CPU run a call is the moment at which a collective began, and has
    none."""
    call_lane: Ints
    call_process: Ints
    blocks: Flags
    awaited: Ints
    """For each call the span (position in `span_row`) that it waited for; -1 for none."""
    span_row: Ints
    """Row of each span in `Spans`, by start."""
    span_lane: Ints
    span_kind: Small
    span_end_ns: Ints
    """On the rank's own clock."""
    launched_by: Ints
    """For each span the call that launched it; -1 without a record."""
    collective: Ints
    """Row of each span in `Collectives`; NONE for all but communication."""
    may_wait: Flags | None = None
    """For each call whether the host may have waited before it for a copy to it; None in a CPU run."""
    prepares: Flags | None = None
    """For each span whether it only prepares communication, on a stream of its own; None in a CPU run."""
    finishes: Flags | None = None
    """The same of spans that only finish communication, as a cast of what was reduced."""
    asked_ns: Ints | None = None
    """When calls made streams wait for events, on the rank's own clock, ascending, but for what communication itself
    makes its streams wait for; None where the recording shows no such calls."""
    on_device: bool = True
    """False in a CPU run, whose spans are those of its host."""
    silent_ns: int = 0
    """For how long its host had called nothing when it made its first call, since its recording began."""
    early_launches: int = 0
    """Spans that begin before the call that launched them: the clock of the device is shifted."""

    @property
    def calls(self) -> int:
        """Number of host calls."""
        return self.call_name.size

    @property
    def spans(self) -> int:
        """Number of device spans."""
        return self.span_row.size

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return 2 * (self.calls + self.spans)

    def begins(self) -> slice:
        """Return the nodes of the calls' begins."""
        return slice(self.first, self.first + self.calls)

    def returns(self) -> slice:
        """Return the nodes of the calls' ends."""
        return slice(self.first + self.calls, self.first + 2 * self.calls)

    def starts(self) -> slice:
        """Return the nodes of the spans' starts."""
        at = self.first + 2 * self.calls
        return slice(at, at + self.spans)

    def ends(self) -> slice:
        """Return the nodes of the spans' ends."""
        at = self.first + 2 * self.calls + self.spans
        return slice(at, at + self.spans)


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True, eq=False):
    """The dependency graph of one rank, or of ranks joined at their collectives."""

    nodes: Nodes
    edges: Edges
    """Sorted by the position of their node in `order`, so that one forward scan replays them."""
    order: Ints
    """All nodes; each comes after its predecessors."""
    ranks: tuple[RankPart, ...]
    levels: Ints
    """Of a wide graph, where in `edges` each level begins, and their number: no node of a level depends on another of
    it. Empty for other graphs."""
    late_edges: int = 0
    """Edges left out because they would close a circle."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return size(self.nodes)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return size(self.edges)

    def part_index(self, node: Ints | NodeNumbers) -> Ints:
        """Return for each node the position of its rank in `ranks`; for an arrival that of the last."""
        firsts = np.array([part.first for part in self.ranks], np.int64)
        return np.searchsorted(firsts, node, side="right") - 1

    def part_of(self, node: int) -> RankPart | None:
        """Return the rank that a node belongs to; None for the arrival of a collective."""
        for part in self.ranks:
            if part.first <= node < part.first + part.nodes:
                return part
        return None


def once_a_graph(compute: Callable[[Graph], Answer]) -> Callable[[Graph], Answer]:
    """Return a function that keeps its result with the graph, which does not change: it is computed once."""

    @wraps(compute)
    def kept(graph: Graph) -> Answer:
        results = vars(graph)
        if compute.__name__ not in results:
            results[compute.__name__] = compute(graph)
        found: Answer = results[compute.__name__]
        return found

    return kept


def edges_of(before: Ints, node: Ints, kind: int | Small, known: int | Small, lag_ns: Ints | int) -> Edges:
    """Return a table of edges; `kind`, `known` and `lag_ns` may be one value for all."""
    return make(Edges, before.size, before=before, node=node, kind=kind, known=known, lag_ns=lag_ns)


def assemble(time_ns: Ints, gap: Small, edges: Edges, ranks: tuple[RankPart, ...]) -> Graph:
    """Return the graph of these nodes and edges: ordered, lags cut at the recorded time, own times filled in.

    `gap` names why a node may have time of its own that is more than jitter. Of a thousand ranks there are many edges:
    no more than one column of them is held twice.
    """
    lag = np.empty(size(edges), np.int64)
    for at in range(0, lag.size, _EDGES_AT_ONCE):
        some = slice(at, at + _EDGES_AT_ONCE)
        taken = time_ns.take(edges.node[some]) - time_ns.take(edges.before[some])
        lag[some] = np.minimum(edges.lag_ns[some], taken)
    edges, late = replace(edges, lag_ns=lag), 0
    del lag
    level = _levels(time_ns.size, edges) if len(ranks) >= WIDE_RANKS else None
    if level is None:
        order, kept = scan_order(time_ns, edges)
        late = int(np.count_nonzero(~kept))
        edges = take(edges, kept) if late else edges
        level = _levels(time_ns.size, edges) if len(ranks) >= WIDE_RANKS else None
    if level is not None:
        order = sort_order(level)
    place = np.empty(time_ns.size, np.int32)
    place[order] = np.arange(order.size, dtype=np.int32)
    rows = np.argsort(place[edges.node], kind="stable")
    del place
    columns = {name: getattr(edges, name) for name in Edges.__struct_fields__}
    del edges
    edges = Edges(**{name: columns.pop(name)[rows] for name in Edges.__struct_fields__})
    del rows
    levels = _level_bounds(level[edges.node]) if level is not None else np.empty(0, np.int64)
    arrived = np.full(time_ns.size, NONE)
    for some in in_parts(edges):
        np.maximum.at(arrived, edges.node[some], time_ns.take(edges.before[some]) + edges.lag_ns[some])
    has_edge = arrived != NONE
    own = np.where(has_edge, time_ns - arrived, 0)
    joins = np.zeros(time_ns.size, np.bool_)
    joins[edges.node[edges.kind == TRANSFER]] = True
    jitter = own <= np.where(joins, ENDS_APART_NS, OWN_NS)
    named = np.where(gap == NO_GAP, np.int8(UNEXPLAINED), gap)
    gap = np.where(~has_edge, np.int8(BEGINS), np.where(jitter, np.int8(NO_GAP), named))
    nodes = Nodes(time_ns=time_ns, own_ns=own, gap=gap)
    return Graph(nodes=nodes, edges=edges, order=order, ranks=ranks, levels=levels, late_edges=late)


_EDGES_AT_ONCE: Final = 1 << 20


def in_parts(edges: Edges) -> Iterator[slice]:
    """Yield slices of about a million edges, sorted by node, each with all the edges of its nodes."""
    count = size(edges)
    begin = 0
    while begin < count:
        end = min(begin + _EDGES_AT_ONCE, count)
        same = edges.node[end - 1]
        end += int(np.argmax(np.append(edges.node[end:] != same, True)))
        yield slice(begin, end)
        begin = end


WIDE_RANKS: Final = 32
"""With so many ranks a scan takes one level of the graph after the other, all ranks at once."""


def _levels(nodes: int, edges: Edges) -> Codes | None:
    """Return for each node the number of edges of the longest chain that leads to it; None if edges close a circle."""
    follower = edges.node[np.argsort(edges.before, kind="stable")]
    first = np.zeros(nodes + 1, np.int32)
    np.cumsum(np.bincount(edges.before, minlength=nodes), out=first[1:])
    missing = np.bincount(edges.node, minlength=nodes).astype(np.int32)
    level = np.full(nodes, -1, np.int32)
    reached, at = np.flatnonzero(missing == 0), 0
    while reached.size:
        level[reached] = at
        counts = first[reached + 1] - first[reached]
        leaving = np.repeat(first[reached] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        followers, edges_in = np.unique(follower[leaving], return_counts=True)
        missing[followers] -= edges_in
        reached, at = followers[missing[followers] == 0], at + 1
    return level if (level >= 0).all() else None


def _level_bounds(level: Codes) -> Ints:
    """Return where each level begins among edges sorted by it, and their number."""
    return np.append(np.flatnonzero(np.append(True, np.diff(level) != 0)[: level.size]), level.size)


MOST_ROUNDS: Final = 1_000
"""Longest chain of nodes at one moment; a longer one is a circle."""


def scan_order(time_ns: Ints, edges: Edges) -> tuple[Ints, Flags]:
    """Return the nodes so that each follows its predecessors, and which edges hold.

    Nodes are sorted by time. A predecessor recorded after its node (clocks that differ by microseconds, streams whose
    spans overlap) takes the node's time; nodes of one moment are sorted by the longest chain of edges to them. Edges
    that close a circle are left out: inferred ones that lead backwards in time, then all that do, then those between
    nodes of one moment.
    """
    ahead = time_ns.take(edges.node) - time_ns.take(edges.before)
    if not (ahead < 0).any():
        order = _deepest(time_ns, edges.before, edges.node, ahead == 0)
        if order is not None:
            return order, np.ones(ahead.size, np.bool_)
    kept = np.ones(ahead.size, np.bool_)
    order = _sorted(time_ns, edges.before, edges.node)
    if order is not None:
        return order, kept
    for doubtful in (
        (ahead < 0) & (edges.known == INFERRED),
        ahead < 0,
        (ahead == 0) & (edges.known == INFERRED),
    ):
        kept &= ~doubtful
        order = _sorted(time_ns, edges.before[kept], edges.node[kept])
        if order is not None:
            return order, kept
    kept &= ahead > 0  # what leads forward in time alone closes no circle
    return np.argsort(time_ns, kind="stable"), kept


def _sorted(time_ns: Ints, before: NodeNumbers, node: NodeNumbers) -> Ints | None:
    at = time_ns.copy()
    return _deepest(at, before, node, at.take(before) == at.take(node)) if _settled(at, before, node) else None


def _deepest(at: Ints, before: NodeNumbers, node: NodeNumbers, level: Flags) -> Ints | None:
    """Return the nodes by time, those of one moment by their depth; `level` edges join nodes of one moment."""
    depth = np.zeros(at.size, np.int64)
    return sort_order(at, depth) if _deepened(depth, before[level], node[level]) else None


def _settled(at: Ints, before: NodeNumbers, node: NodeNumbers) -> bool:
    """Lower the time of predecessors, in place, to that of their nodes; return False if that does not end."""
    late = np.flatnonzero(at.take(before) > at.take(node))
    for _ in range(MOST_ROUNDS):
        if not late.size:
            return True
        np.minimum.at(at, before[late], at[node[late]])
        # Only what leads to a node whose time has become earlier can be late now.
        moved = np.zeros(at.size, np.bool_)
        moved[before[late]] = True
        some = np.flatnonzero(moved.take(node))
        late = some[at[before[some]] > at[node[some]]]
    return False


def _deepened(depth: Ints, before: NodeNumbers, node: NodeNumbers) -> bool:
    """Raise the depth of nodes, in place, above that of their predecessors; return False if that does not end."""
    for _ in range(MOST_ROUNDS):
        low = np.flatnonzero(depth[before] >= depth[node])
        if not low.size:
            return True
        np.maximum.at(depth, node[low], depth[before[low]] + 1)
    return False
