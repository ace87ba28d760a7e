"""A critical path as segments in order of time: what ran, on which rank, under which name."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.graph.model import (
    HOST_EDGES,
    LAUNCH,
    OCCUPANCY,
    POLL,
    RUN_COMM,
    RUN_COMPUTE,
    RUN_COPY,
    SYNC,
    TRANSFER,
    Edges,
    Graph,
    RankPart,
    once_a_graph,
)
from overlapscope.analysis.graph.walk import (
    BEFORE_RECORDING,
    HOST,
    PARTS,
    Path,
    parts_of,
    parts_of_rest,
    until_first,
)
from overlapscope.timeline.columns import NONE, Codes, Columns, Flags, Ints, Small, make, take
from overlapscope.timeline.rows import is_one_of, values_in
from overlapscope.timeline.run import RankTimeline

_RUNS = (RUN_COMPUTE, RUN_COMM, RUN_COPY, TRANSFER, OCCUPANCY, LAUNCH)
_OF_HOST = (*HOST_EDGES, SYNC, POLL)


class Segments(Columns, frozen=True, kw_only=True):
    """The segments of a path, in order of time: each begins where the one before it ends, on the aligned clock."""

    part: Annotated[Small, PARTS]
    rank: Ints
    row: Ints
    """Row in the rank's `Spans` of the span that ran, or that the host was about to launch; NONE for none."""
    name: Codes
    """As a code of the rank's names: of a collective its operation, of host time the operation that was about to be
    launched, else the name of the span or call; -1 for none."""
    start_ns: Ints
    end_ns: Ints


def segments_of(graph: Graph, ranks: Mapping[int, RankTimeline], path: Path, last: int, end_ns: int) -> Segments:
    """Return the segments of a path that ends at the node `last`, up to `end_ns`; the rest is host time."""
    edges = path.edges[::-1]
    nodes, table = graph.nodes, graph.edges
    node = table.node[edges]
    # Clocks are not exact: a predecessor that seems later takes the time of what follows it.
    moments = np.append(nodes.time_ns[table.before[edges[:1]]], nodes.time_ns[node]) if edges.size else path.end_ns
    moments = np.minimum.accumulate(np.atleast_1d(moments)[::-1])[::-1]
    moments = np.maximum(np.minimum(moments, path.end_ns), path.start_ns)
    lag = np.clip(table.lag_ns[edges], 0, np.diff(moments))
    at = graph.part_index(np.append(node, last))
    joins = node >= graph.ranks[-1].first + graph.ranks[-1].nodes
    at[:-1][joins] = graph.part_index(table.before[edges[joins]])
    rank = np.array([part.rank for part in graph.ranks])[at]
    row, name = np.full(edges.size, NONE), np.full(edges.size, -1, np.int32)
    for which in values_in(at[:-1]).tolist():
        mine = np.flatnonzero((at[:-1] == which) & ~joins)
        part = graph.ranks[which]
        row[mine], name[mine] = _named(
            part,
            ranks[part.rank],
            _first_spans(graph)[which],
            _of_node(part, table, edges[mine]) - part.first,
            table.kind[edges[mine]],
        )
    first = rank[0]
    unrecorded_ns, late_ns = until_first(graph, int(table.before[edges[0]]) if edges.size else last, path.start_ns)
    begins = HOST if late_ns > unrecorded_ns else BEFORE_RECORDING
    pieces = make(
        Segments, 2 * edges.size + 2,
        part=_between(begins, parts_of(graph, edges), parts_of_rest(graph, node), HOST),
        rank=_between(int(first), rank[:-1], rank[:-1], int(rank[-1])),
        row=_between(NONE, row, np.full(edges.size, NONE), NONE),
        name=_between(-1, name, np.full(edges.size, -1), -1),
        start_ns=_between(path.start_ns, moments[:-1], moments[:-1] + lag, path.end_ns),
        end_ns=_between(int(moments[0]), moments[:-1] + lag, moments[1:], end_ns),
    )  # fmt: skip
    return take(pieces, pieces.end_ns > pieces.start_ns)


def _between(first: int, one: npt.NDArray[Any], other: npt.NDArray[Any], last: int) -> npt.NDArray[Any]:
    """Return two columns alternately, between a first value and a last."""
    return np.concatenate([[first], np.stack([one, other], axis=1).ravel(), [last]])


def _of_node(part: RankPart, table: Edges, edges: Ints) -> Ints:
    """Return the node that each edge is named after: that it leads to; of an operation in which something is begun, its
    own start."""
    node = table.node[edges]
    inside = (table.kind[edges] == RUN_COMPUTE) & (node - part.first < 2 * part.calls)
    return np.where(inside, table.before[edges], node)


def _named(part: RankPart, timeline: RankTimeline, launches: Ints, node: Ints, kind: Small) -> tuple[Ints, Codes]:
    """Return the row and the name of each edge to these nodes of a rank; `launches` is its `_first_spans`."""
    spans = timeline.spans
    of_host = is_one_of(kind, _OF_HOST)
    is_call = node < 2 * part.calls
    call = np.where(is_call, node % max(part.calls, 1), part.calls)
    span = np.where(is_call, launches[call], (node - 2 * part.calls) % max(part.spans, 1))
    known = (span >= 0) & (of_host | is_one_of(kind, _RUNS))
    row = np.where(known, part.span_row[span], NONE) if part.spans else np.full(node.size, NONE)
    at = np.maximum(row, 0)
    name = np.where(of_host & (spans.host_op[at] >= 0), spans.host_op[at], spans.name[at])
    name = _operations(timeline, row, name, known & ~of_host & (kind != LAUNCH))
    of_call = np.append(part.call_name, np.int32(-1))[call]
    return row, np.where(known, name, np.where(of_host, of_call, -1)).astype(np.int32)


@once_a_graph
def _first_spans(graph: Graph) -> tuple[Ints, ...]:
    """Return for each rank's calls, and last for none, the first span that each launched; -1 for none."""
    found = []
    for part in graph.ranks:
        span = np.full(part.calls + 1, -1, np.int64)
        span[part.launched_by[::-1]] = np.arange(part.spans)[::-1]  # the first assigned last stays
        span[-1] = -1
        found.append(span)
    return tuple(found)


def _operations(timeline: RankTimeline, row: Ints, name: Codes, runs: Flags) -> Codes:
    """Return the names, with the operation instead of the kernel for collectives that ran."""
    op = np.append(timeline.collectives.op, np.int32(-1))
    call = timeline.spans.collective[np.maximum(row, 0)]
    of_call = op[np.where(runs & (call != NONE), call, -1)]
    unknown = timeline.names.index("unknown") if "unknown" in timeline.names else -1
    return np.where((of_call >= 0) & (of_call != unknown), of_call, name).astype(np.int32)
