"""Name the operation in which most of a link of a chain lay.

The compute spans of a CPU run are unions of operations, which have no common name: the operation is their name. Of the
host of a device, work before a launch may lie before the operation that launches, or inside of it.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.answers import Chain, Link
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.analysis.per_rank.host_operations import OperationPieces, operation_pieces
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import OPERATION
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline


def with_operations(chain: Chain, graph: Graph, ranks: Mapping[int, RankTimeline]) -> Chain:
    """Return the chain with the name of an operation for each link that a CPU computed, where some were recorded, and
    with the links of hosts of which most lay inside of the operation that launched what followed."""
    parts = {part.rank: part for part in graph.ranks}
    computed = [each for each in chain.chain if each.kind == "compute" and each.span is not None]
    pieces = {}
    for rank in {each.rank for each in computed if not parts[each.rank].on_device}:
        own = [each for each in computed if each.rank == rank]
        shift = _shift(chain.origin_ns, graph, parts[rank], ranks[rank])
        around = min(each.start_ns for each in own) + shift, max(each.end_ns for each in own) + shift
        try:
            pieces[rank] = shift, operation_pieces(ranks[rank], around)
        except HostEventsError:  # as if none had been recorded
            pieces[rank] = shift, None
    found = [
        replace(each, what=_longest(each, ranks[each.rank], *pieces[each.rank]) or each.what)
        if each.kind == "compute" and each.span is not None and each.rank in pieces
        else each
        for each in chain.chain
    ]
    return replace(chain, chain=[_inside_operation(each, chain, graph, parts, ranks) for each in found])


def _inside_operation(
    link: Link, chain: Chain, graph: Graph, parts: Mapping[int, RankPart], ranks: Mapping[int, RankTimeline]
) -> Link:
    """Return a link, with `in_op` where its longest pause led to its operation, which had begun before half of it."""
    part = parts.get(link.rank)
    paused = link.kind == "host" and link.longest_ns >= SILENCE_NS and link.op is not None and link.before == link.op
    paused &= link.in_call is None
    if not paused or part is None or not part.on_device:
        return link
    timeline = ranks[link.rank]
    shift = _shift(chain.origin_ns, graph, part, timeline)
    begin_ns = link.longest_start_ns + shift
    end_ns = begin_ns + link.longest_ns
    named = np.array([name == link.op for name in timeline.names], np.bool_)
    try:
        around = select_host_spans(timeline.host, (OPERATION,), named, [((begin_ns + end_ns) // 2, end_ns)])
    except HostEventsError:  # as if none had been recorded
        return link
    return replace(link, in_op=around.start_ns.size > 0)


def _shift(origin_ns: int, graph: Graph, part: RankPart, timeline: RankTimeline) -> int:
    """Return what makes a time of a chain one of the rank's own clock."""
    first = int(timeline.spans.start_ns[part.span_row[0]])
    return origin_ns + first - int(graph.nodes.time_ns[part.starts().start])


def _longest(link: Link, timeline: RankTimeline, shift: int, pieces: OperationPieces | None) -> str | None:
    """Return the name of the operation in which a rank's thread was for most of a link; `pieces` lie in order."""
    if pieces is None or link.span is None:
        return None
    first, last = np.searchsorted(pieces.lane, int(timeline.spans.lane[link.span]) + np.arange(2)).tolist()
    begin, end = link.start_ns + shift, link.end_ns + shift
    own = slice(
        first + int(np.searchsorted(pieces.end_ns[first:last], begin, side="right")),
        first + int(np.searchsorted(pieces.start_ns[first:last], end)),
    )
    took = np.minimum(pieces.end_ns[own], end) - np.maximum(pieces.start_ns[own], begin)
    if not took.size:
        return None
    names, row = np.unique(pieces.name[own], return_inverse=True)
    return timeline.names[int(names[int(sum_by(row.ravel(), took, names.size).argmax())])]
