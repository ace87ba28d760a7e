"""What a moment waited for, as a chain that a person can read: the binding edges back from what ran next."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import COLLECTS_GARBAGE, LOADS_DATA, marked_times
from overlapscope.analysis.graph.model import (
    ARRIVE,
    BEGINS,
    EDGE_KINDS,
    EVENT,
    GAPS,
    HOST_EDGES,
    KNOWN,
    LAUNCH,
    NO_GAP,
    OCCUPANCY,
    ON_LANE,
    OWN_CALL,
    POLL,
    SYNC,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.walk import shown_binding
from overlapscope.timeline.columns import COMM, COMPUTE, HostSpans
from overlapscope.timeline.intervals import clip, length, union
from overlapscope.timeline.run import RankTimeline

MOST_LINKS: Final = 20
BEGIN: Final = int(np.iinfo(np.int64).min)
_WAITS: Final = (LAUNCH, OWN_CALL, ON_LANE, EVENT, OCCUPANCY, SYNC, POLL, ARRIVE)


def chain_of_span(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, *, most: int = MOST_LINKS,
    since_ns: int = BEGIN,
) -> tuple[Link, ...]:  # fmt: skip
    """Return what the start of a span (row in the rank's `Spans`) waited for; empty where it is not in the graph.

    `most` is the largest number of links. The link of a host that reaches back beyond `since_ns`, on the graph's clock,
    counts calls and pauses after it alone.
    """
    return tuple(each.link for each in placed_chain(graph, ranks, rank, row, most=most, since_ns=since_ns))


class PlacedLink(NamedTuple):
    """A link and the nodes of the graph between which it leads: from the later `node` back to `before`."""

    link: Link
    node: int
    before: int
    pause_ns: tuple[int, int]
    """Begin and end, on the graph's clock, of the time in or between calls that takes most of what is explained."""


def placed_chain(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, *, most: int = MOST_LINKS,
    since_ns: int = BEGIN, explains_since_ns: int = BEGIN,
) -> tuple[PlacedLink, ...]:  # fmt: skip
    """Return the links of `chain_of_span` with their nodes, which say on which stream or thread each lies.

    What is explained begins at `explains_since_ns`.
    """
    part = _part(graph, rank)
    at = np.flatnonzero(part.span_row == row) if part else np.empty(0, np.int64)
    if part is None or not at.size:
        return ()
    links = _each_link(graph, ranks, part.starts().start + int(at[0]))
    found = _links(links, most, since_ns, explains_since_ns)
    marks: Marks = {}
    return tuple(
        each._replace(link=_said(graph, ranks, each.link, max(since_ns, each.link.start_ns), marks)) for each in found
    )


Marks = dict[tuple[int, re.Pattern[str]], HostSpans | None]
"""Ranges of data loading and garbage collection by rank: to find them, a host's table is looked through once."""


def lane_of_node(graph: Graph, node: int) -> tuple[int, int] | None:
    """Return the rank of a node and the row in its `Lanes` of its stream or thread, NONE where that is not known.

    None for the arrival of a collective, which lies on no rank.
    """
    part = graph.part_of(node)
    if part is None:
        return None
    at = node - part.first
    if at < 2 * part.calls:
        return part.rank, int(part.call_lane[at % part.calls])
    return part.rank, int(part.span_lane[(at - 2 * part.calls) % part.spans])


def span_of_moment(graph: Graph, rank: int, moment_ns: int) -> int | None:
    """Return the span (row in the rank's `Spans`) whose start says what a rank waited for at a moment.

    That is the compute that ran; with communication alone, the next compute; while the device was idle, the next span.
    None after the last.
    """
    part = _part(graph, rank)
    if part is None:
        return None
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    runs = (start <= moment_ns) & (end > moment_ns)
    computing = np.flatnonzero(runs & (part.span_kind == COMPUTE))
    exposed = bool((runs & (part.span_kind == COMM)).any())
    later = start > moment_ns
    following = np.flatnonzero(later & (part.span_kind == COMPUTE)) if exposed else np.flatnonzero(runs | later)
    found = computing if computing.size else following
    return int(part.span_row[found[0]]) if found.size else None


def _part(graph: Graph, rank: int) -> RankPart | None:
    return next((part for part in graph.ranks if part.rank == rank), None)


def _links(links: Iterator[PlacedLink], most: int, since_ns: int, explains_since_ns: int) -> tuple[PlacedLink, ...]:
    found: list[PlacedLink] = []
    for placed in links:
        each, last = placed.link, found[-1].link if found else None
        if last and last.kind == each.kind == "host" and last.rank == each.rank and last.start_ns > since_ns:
            pause = max(found[-1].pause_ns, placed.pause_ns, key=lambda own: own[1] - max(own[0], explains_since_ns))
            found[-1] = PlacedLink(_joined(last, _after(each, since_ns)), found[-1].node, placed.before, pause)
        elif len(found) == most:
            break
        else:
            found.append(placed._replace(link=_after(each, since_ns)))
    return tuple(found)


def _said(graph: Graph, ranks: Mapping[int, RankTimeline], link: Link, since_ns: int, found: Marks) -> Link:
    """Return a link of a host with the range of data loading or garbage collection in which most of its time lay."""
    part = _part(graph, link.rank)
    if link.kind != "host" or link.longest_ns < SILENCE_NS or part is None or not part.spans:
        return link
    timeline = ranks[link.rank]
    shift = int(graph.nodes.time_ns[part.starts().start]) - int(timeline.spans.start_ns[part.span_row[0]])
    for name in (LOADS_DATA, COLLECTS_GARBAGE):
        if (link.rank, name) not in found:
            found[link.rank, name] = marked_times(timeline, name)
        marks = found[link.rank, name]
        if marks is None:
            continue
        start, end = marks.start_ns + shift, marks.end_ns + shift
        covered = length(clip(union((start, end)), since_ns, link.end_ns))
        if 2 * covered >= link.end_ns - since_ns:
            inside = np.minimum(end, link.end_ns) - np.maximum(start, since_ns)
            return msgspec.structs.replace(link, during=timeline.name(int(marks.name[inside.argmax()])))
    return link


def _after(each: Link, since_ns: int) -> Link:
    """Return a link whose pause counts from a moment on, where it ends after it."""
    pause_ns = each.end_ns - since_ns
    return msgspec.structs.replace(each, longest_ns=pause_ns) if 0 < pause_ns < each.longest_ns else each


def _joined(later: Link, earlier: Link) -> Link:
    """Return two links of a host that follow each other as one."""
    longest = max((later, earlier), key=lambda each: each.longest_ns)
    return msgspec.structs.replace(
        later, start_ns=earlier.start_ns, calls=later.calls + earlier.calls,
        longest_ns=longest.longest_ns, before=longest.before,
        unexplained_ns=later.unexplained_ns + earlier.unexplained_ns,
        gap=earlier.gap if earlier.unexplained_ns else later.gap,
    )  # fmt: skip


def _each_link(graph: Graph, ranks: Mapping[int, RankTimeline], node: int) -> Iterator[PlacedLink]:
    nodes, edges, binding = graph.nodes, graph.edges, shown_binding(graph)
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
        of_host, gap = kind in HOST_EDGES, int(nodes.gap[node])
        what, op = (_name(its, ranks, named), _operation(its, ranks, named)) if its else (None, None)
        link = Link(
            rank=its.rank if its else rank, kind="host" if of_host else EDGE_KINDS[kind],
            known=KNOWN[int(edges.known[edge])], what=what,
            start_ns=int(nodes.time_ns[before]), end_ns=int(nodes.time_ns[node]),
            calls=int(of_host and calls.start <= node < calls.stop),
            longest_ns=int(nodes.time_ns[node] - nodes.time_ns[before]) if of_host else 0,
            before=(op or what) if of_host else None, op=op, span=_row(its, named) if its else None,
            unexplained_ns=0 if gap in (NO_GAP, BEGINS) else int(nodes.own_ns[node]), gap=GAPS[gap],
        )  # fmt: skip
        yield PlacedLink(link, node, before, (link.start_ns, link.end_ns))
        node = before


def _name(part: RankPart, ranks: Mapping[int, RankTimeline], node: int) -> str | None:
    timeline, at = ranks[part.rank], node - part.first
    if at < 2 * part.calls:
        return timeline.name(int(part.call_name[at % part.calls]))
    return timeline.name(int(timeline.spans.name[part.span_row[(at - 2 * part.calls) % part.spans]]))


def _row(part: RankPart, node: int) -> int | None:
    at = node - part.first - 2 * part.calls
    return int(part.span_row[at % part.spans]) if at >= 0 else None


def _operation(part: RankPart, ranks: Mapping[int, RankTimeline], node: int) -> str | None:
    """Return the operation that launched a span, or the first span that a call launched."""
    timeline, row = ranks[part.rank], _row(part, node)
    if row is None and part.calls:
        launched = np.flatnonzero(part.launched_by == (node - part.first) % part.calls)
        row = int(part.span_row[launched[0]]) if launched.size else None
    return None if row is None else timeline.name(int(timeline.spans.host_op[row]))
