"""What a moment waited for, as a chain that a person can read: the binding edges back from what ran next."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.graph.model import (
    ARRIVE,
    EDGE_KINDS,
    EVENT,
    HOST_EDGES,
    KNOWN,
    LAUNCH,
    OCCUPANCY,
    ON_LANE,
    OWN_CALL,
    POLL,
    SYNC,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.walk import shown_binding
from overlapscope.timeline.columns import COMM, COMPUTE, Ints
from overlapscope.timeline.run import RankTimeline

MOST_LINKS: Final = 20
_WAITS: Final = (LAUNCH, OWN_CALL, ON_LANE, EVENT, OCCUPANCY, SYNC, POLL, ARRIVE)


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a chain, the latest first; times as in the graph."""

    rank: int
    kind: str
    """Kind of the edge (`EDGE_KINDS`); `host` stands for all of a thread's calls and the time between them."""
    known: str
    what: str | None
    """Name of the span, or of the last call of the host."""
    start_ns: int
    end_ns: int
    calls: int = 0
    """Number of calls that a `host` link stands for."""


def chain_of_span(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, *, binding: Ints | None = None,
    most: int = MOST_LINKS,
) -> tuple[Link, ...]:  # fmt: skip
    """Return what the start of a span (row in the rank's `Spans`) waited for; empty where it is not in the graph.

    `binding` holds the edges that bound each node (`shown_binding`), where the caller has them already; `most` is the
    largest number of links.
    """
    part = _part(graph, rank)
    at = np.flatnonzero(part.span_row == row) if part else np.empty(0, np.int64)
    if part is None or not at.size:
        return ()
    binding = shown_binding(graph) if binding is None else binding
    return _links(graph, ranks, part.starts().start + int(at[0]), binding, most)


def chain_of_moment(graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, moment_ns: int) -> tuple[Link, ...]:
    """Return what a rank waited for at a moment (on the graph's clock).

    That is what the compute that ran had waited for; with communication alone, what the next compute waited for; while
    the device was idle, what the next span waited for. Empty after the last span.
    """
    part = _part(graph, rank)
    if part is None:
        return ()
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    runs = (start <= moment_ns) & (end > moment_ns)
    computing = np.flatnonzero(runs & (part.span_kind == COMPUTE))
    exposed = bool((runs & (part.span_kind == COMM)).any())
    later = start > moment_ns
    following = np.flatnonzero(later & (part.span_kind == COMPUTE)) if exposed else np.flatnonzero(runs | later)
    found = computing if computing.size else following
    node = part.starts().start + found[:1]
    return _links(graph, ranks, int(node[0]), shown_binding(graph), MOST_LINKS) if found.size else ()


def _part(graph: Graph, rank: int) -> RankPart | None:
    return next((part for part in graph.ranks if part.rank == rank), None)


def _links(graph: Graph, ranks: Mapping[int, RankTimeline], node: int, binding: Ints, most: int) -> tuple[Link, ...]:
    found: list[Link] = []
    for each in _each_link(graph, ranks, binding, node):
        last = found[-1] if found else None
        if last and last.kind == each.kind == "host" and last.rank == each.rank:
            found[-1] = msgspec.structs.replace(last, start_ns=each.start_ns, calls=last.calls + each.calls)
        elif len(found) == most:
            break
        else:
            found.append(each)
    return tuple(found)


def _each_link(graph: Graph, ranks: Mapping[int, RankTimeline], binding: Ints, node: int) -> Iterator[Link]:
    nodes, edges = graph.nodes, graph.edges
    rank = -1
    while (edge := int(binding[node])) >= 0:
        before, kind = int(edges.before[edge]), int(edges.kind[edge])
        part = graph.part_of(node) or graph.part_of(before)
        if part is not None:
            rank = part.rank
        # A wait is named by what it waited for, everything else by what it is.
        named = before if kind in _WAITS else node
        its = graph.part_of(named)
        calls = its.returns() if its else range(0)
        of_host = kind in HOST_EDGES
        yield Link(
            rank=its.rank if its else rank, kind="host" if of_host else EDGE_KINDS[kind],
            known=KNOWN[int(edges.known[edge])], what=_name(its, ranks, named) if its else None,
            start_ns=int(nodes.time_ns[before]), end_ns=int(nodes.time_ns[node]),
            calls=int(of_host and calls.start <= node < calls.stop),
        )  # fmt: skip
        node = before


def _name(part: RankPart, ranks: Mapping[int, RankTimeline], node: int) -> str | None:
    timeline, at = ranks[part.rank], node - part.first
    if at < 2 * part.calls:
        return timeline.name(int(part.call_name[at % part.calls]))
    return timeline.name(int(timeline.spans.name[part.span_row[(at - 2 * part.calls) % part.spans]]))
