"""What a moment waited for, as a chain that a person can read: the binding edges back from what ran next."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Final, NamedTuple, get_args

import msgspec
import numpy as np

from overlapscope.analysis.common.user_ranges import range_of_pause
from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import Mark, marked_times
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    ARRIVE,
    BEGINS,
    CALL,
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
from overlapscope.timeline.columns import COMM, COMPUTE, Ints
from overlapscope.timeline.intervals import clip, length, union
from overlapscope.timeline.readings import COLLECTOR
from overlapscope.timeline.rows import Column, is_one_of, sum_by
from overlapscope.timeline.run import RankTimeline

MOST_LINKS: Final = 20
MOST_READ: Final = 2_000
"""Links of one chain, however few rows they are; more rows than that may have as many links. A choice: they are found
within a second."""
MOST_OF_CALLS: Final = 0.9
"""Calls are named that take this share of the time inside of calls, ..."""
MOST_CALL_NAMES: Final = 2
"""... by at most so many names. Choices: memory is freed and allocated in pairs."""
BEGIN: Final = int(np.iinfo(np.int64).min)
NO_RANK: Final = -1
_WAITS: Final = (LAUNCH, OWN_CALL, ON_LANE, EVENT, OCCUPANCY, SYNC, POLL, ARRIVE)
ON_STREAM: Final = ("lane", "compute", "copy")
PAUSE_NS: Final = 200_000
"""Between two pieces of work, a thread that did nothing for so long is a row of its own."""


def chain_of_span(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, *, most: int = MOST_LINKS,
    since_ns: int = BEGIN,
) -> tuple[Link, ...]:  # fmt: skip
    """Return what the start of a span (row in the rank's `Spans`) waited for; empty where it is not in the graph.

    `most` is the largest number of links. A host's calls before and after `since_ns`, on the graph's clock, are two
    links; in that of which some reach back beyond it, only what lies after it makes a pause the longest.
    """
    return tuple(each.link for each in placed_chain(graph, ranks, rank, row, most=most, since_ns=since_ns))


class PlacedLink(NamedTuple):
    """A link and the nodes of the graph between which it leads: from the later `node` back to `before`."""

    link: Link
    node: int
    before: int
    pause_ns: tuple[int, int]
    """Begin and end, on the graph's clock, of the time in or between calls that takes most of what is explained."""
    longest_ns: tuple[int, int]
    """The same of `Link.longest_ns`."""
    edges: Ints
    """Rows in `Edges` that it stands for, the latest first."""


def placed_chain(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, *, most: int = MOST_LINKS,
    since_ns: int = BEGIN, explains_since_ns: int = BEGIN,
) -> tuple[PlacedLink, ...]:  # fmt: skip
    """Return the links of `chain_of_span` with their nodes, which say on which stream or thread each lies.

    What is explained begins at `explains_since_ns`.
    """
    return tuple(islice(links_back(graph, ranks, rank, row, since_ns, explains_since_ns), most))


def links_back(
    graph: Graph, ranks: Mapping[int, RankTimeline], rank: int, row: int, since_ns: int = BEGIN,
    explains_since_ns: int = BEGIN,
) -> Iterator[PlacedLink]:  # fmt: skip
    """Yield the links of `placed_chain` one by one, as far back as the recording holds them."""
    part = _part(graph, rank)
    at = np.flatnonzero(part.span_row == row) if part else np.empty(0, np.int64)
    if part is None or not at.size:
        return
    for run in _edges_back(graph, part.starts().start + int(at[0]), since_ns):
        placed = _link(graph, ranks, run, since_ns, explains_since_ns)
        # A link that ended before the loss is told of as a whole.
        begin_ns = max(placed.link.start_ns, since_ns if placed.link.end_ns > since_ns else BEGIN)
        placed = placed._replace(link=_in_step(graph, ranks, placed, begin_ns))
        yield placed._replace(link=_said(graph, ranks, placed, begin_ns))


def row_of_link() -> Callable[[Link], tuple[int, int]]:
    """Return a key that is the same for links that follow each other on a stream of one rank, the latest first: they
    are one row of what people read; new for others."""
    number = count()
    last = -1, -1

    def key(each: Link) -> tuple[int, int]:
        nonlocal last
        between_work = each.kind == "host" and each.span is not None and each.end_ns - each.start_ns < PAUSE_NS
        follows = each.kind in ON_STREAM or between_work
        if not follows or each.unexplained_ns:
            next(number)
            last = -1, next(number)
        elif last[0] != each.rank:
            last = each.rank, next(number)
        return last

    return key


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


def _said(graph: Graph, ranks: Mapping[int, RankTimeline], placed: PlacedLink, since_ns: int) -> Link:
    """Return a link of a host with the range in which most of its time lay, else with that of its longest pause.

    The first is a range of data loading or garbage collection, else where one pause takes most of the time, the
    innermost range of its thread.
    """
    link = placed.link
    part = _part(graph, link.rank)
    if link.kind != "host" or link.longest_ns < SILENCE_NS or part is None or not part.spans:
        return link
    timeline = ranks[link.rank]
    shift = shift_ns(graph, part, timeline)
    for mark in get_args(Mark):
        marks = marked_times(graph, timeline, mark)
        if marks is None:
            continue
        start, end = marks.start_ns + shift, marks.end_ns + shift
        covered = length(clip(union((start, end)), since_ns, link.end_ns))
        if 2 * covered >= link.end_ns - since_ns:
            inside = np.minimum(end, link.end_ns) - np.maximum(start, since_ns)
            during = timeline.name(int(marks.name[inside.argmax()]))
            return msgspec.structs.replace(link, during="garbage collection" if during == COLLECTOR else during)
    lane = lane_of_node(graph, placed.node)
    begin_ns, end_ns = max(placed.longest_ns[0], since_ns), placed.longest_ns[1]
    if lane is None or lane[0] != link.rank:
        return link
    around = range_of_pause(timeline, lane[1], begin_ns - shift, end_ns - shift)
    if 2 * (end_ns - begin_ns) < link.end_ns - since_ns:
        return msgspec.structs.replace(link, pause_during=around)
    return msgspec.structs.replace(link, during=around)


def _in_step(graph: Graph, ranks: Mapping[int, RankTimeline], placed: PlacedLink, begin_ns: int) -> Link:
    """Return a link of a host that paused for long with the step in whose mark most of its time lay."""
    link = placed.link
    part = _part(graph, link.rank)
    if link.kind != "host" or link.longest_ns < SILENCE_NS or part is None or not part.spans:
        return link
    timeline = ranks[link.rank]
    shift = shift_ns(graph, part, timeline)
    begin_ns, end_ns = begin_ns - shift, link.end_ns - shift
    steps = timeline.steps
    inside = np.minimum(steps.end_ns, end_ns) - np.maximum(steps.start_ns, begin_ns)
    if not inside.size or 2 * inside.max() <= end_ns - begin_ns:
        return link
    return msgspec.structs.replace(link, step=int(steps.step[inside.argmax()]))


def shift_ns(graph: Graph, part: RankPart, timeline: RankTimeline) -> int:
    """Return how much later the graph's clock is than that of a rank, at its first span; 0 without spans."""
    if not part.spans:
        return 0
    return int(graph.nodes.time_ns[part.starts().start]) - int(timeline.spans.start_ns[part.span_row[0]])


def _edges_back(graph: Graph, node: int, since_ns: int) -> Iterator[Ints]:
    """Yield the binding edges back from a node, the latest first: one, or those of a host that follow each other. Those
    that end after `since_ns`, of which the last may begin before it, are apart from those before."""
    # A view of the memory hands out single numbers in a fraction of the time that an array takes.
    binding, before = shown_binding(graph).data, graph.edges.before.data
    time, kind = graph.nodes.time_ns.data, graph.edges.kind.data
    own, ended = range(0), BEGIN  # nodes of the rank whose host's edges are taken together, and when the last ended
    found: list[int] = []
    while (edge := binding[node]) >= 0:
        of_host = kind[edge] in HOST_EDGES
        joins = of_host and node in own and not time[node] <= since_ns < ended
        if found and not joins:
            yield np.array(found, np.int64)
            found = []
        if not joins:
            part = graph.part_of(node) if of_host else None
            own = range(part.first, part.first + part.nodes) if part is not None else range(0)
            ended = time[node]
        found.append(edge)
        node = before[edge]
    if found:
        yield np.array(found, np.int64)


def _link(
    graph: Graph, ranks: Mapping[int, RankTimeline], run: Ints, since_ns: int, explains_since_ns: int
) -> PlacedLink:
    """Return the link that one edge is, or those of a host that follow each other.

    The longest pause is that which is longest from `since_ns` on, of those that end after it; it has its whole length.
    """
    nodes, edges = graph.nodes, graph.edges
    later, earlier = edges.node[run], edges.before[run]
    begin_ns, end_ns = nodes.time_ns[earlier], nodes.time_ns[later]
    node, before, kind = int(later[0]), int(earlier[0]), int(edges.kind[run[0]])
    # A wait is named by what it waited for, everything else by what it is; a launch by a call that has no name (in a
    # CPU run none has one) by what was launched.
    named = before if kind in _WAITS else node
    its = graph.part_of(named)
    held_by = its or graph.part_of(node) or graph.part_of(before)
    what, op = _names(its, ranks, named)
    if kind == LAUNCH and what is None:
        named, (what, op) = node, _names(its, ranks, node)
    gap = nodes.gap[later]
    unexplained = np.where(is_one_of(gap, (NO_GAP, BEGINS)), 0, nodes.own_ns[later])
    short = np.flatnonzero(unexplained)
    of_host, calls, longest_ns, before_name, in_call = kind in HOST_EDGES, 0, 0, None, None
    inside: tuple[list[str], int, int] = [], 0, 0
    longest = 0
    if of_host:
        pause_ns = end_ns - np.where(end_ns > since_ns, np.maximum(begin_ns, since_ns), begin_ns)
        longest = int(pause_ns.argmax())
        longest_ns = int(end_ns[longest] - begin_ns[longest])
        longest_what, longest_op = _names(its, ranks, int(later[longest]))
        before_name = longest_op or longest_what
        if edges.kind[run[longest]] in (CALL, ALLOCATE):
            in_call = longest_what
        returns = its.returns() if its is not None else slice(0, 0)
        ended = (later >= returns.start) & (later < returns.stop)
        calls = int(ended.sum())
        if its is not None and 2 * int(pause_ns[ended].sum()) > int(pause_ns.sum()):
            inside = _longest_calls(its, ranks[its.rank], later[ended], pause_ns[ended])
    explains = int((end_ns - np.maximum(begin_ns, explains_since_ns)).argmax())
    link = Link(
        rank=held_by.rank if held_by is not None else NO_RANK, kind="host" if of_host else EDGE_KINDS[kind],
        known=KNOWN[int(edges.known[run[0]])], what=what, start_ns=int(begin_ns[-1]), end_ns=int(end_ns[0]),
        calls=calls, longest_ns=longest_ns, longest_start_ns=int(begin_ns[longest]) if of_host else 0,
        before=before_name, in_call=in_call, op=op,
        span=_row(its, named) if its is not None else None,
        inside=inside[0], inside_calls=inside[1], inside_ns=inside[2],
        unexplained_ns=int(unexplained.sum()), gap=GAPS[int(gap[short[-1]] if short.size else gap[0])],
    )  # fmt: skip
    explained_ns, longest_pause_ns = ((int(begin_ns[at]), int(end_ns[at])) for at in (explains, longest))
    return PlacedLink(link, node, int(earlier[-1]), explained_ns, longest_pause_ns, run)


def _longest_calls(
    part: RankPart, timeline: RankTimeline, returns: Column, lasted_ns: Ints
) -> tuple[list[str], int, int]:
    """Return the names of the calls that take most of the time in calls, the longest first, their number and time.

    `returns` are the nodes at which calls end, `lasted_ns` what of each call counts.
    """
    names, at = np.unique(part.call_name[(returns - part.first) % part.calls], return_inverse=True)
    taken = sum_by(at, lasted_ns, names.size)
    order = np.argsort(-taken, kind="stable")
    most = order[: 1 + int(np.searchsorted(np.cumsum(taken[order]), MOST_OF_CALLS * taken.sum()))][:MOST_CALL_NAMES]
    named = [timeline.name(int(each)) or "a call" for each in names[most]]
    return named, int(np.isin(at, most).sum()), int(taken[most].sum())


def _names(part: RankPart | None, ranks: Mapping[int, RankTimeline], node: int) -> tuple[str | None, str | None]:
    """Return the name of a span or call and its operation."""
    return (None, None) if part is None else (_name(part, ranks, node), _operation(part, ranks, node))


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
