"""Name the computation in a chain of a CPU run by the operation in which most of it lay.

The compute spans of such a run are unions of operations, which have no common name.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.answers import Chain, Link
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.analysis.per_rank.host_operations import operation_pieces, operation_times, pieces_within
from overlapscope.errors import HostEventsError
from overlapscope.timeline.run import RankTimeline


def with_operations(chain: Chain, graph: Graph, ranks: Mapping[int, RankTimeline]) -> Chain:
    """Return the chain with the name of an operation for each link that a CPU computed, where some were recorded."""
    parts = {part.rank: part for part in graph.ranks}
    found = [
        replace(each, what=_longest(each, chain.origin_ns, graph, parts[each.rank], ranks[each.rank]) or each.what)
        if each.kind == "compute" and each.span is not None and not parts[each.rank].on_device
        else each
        for each in chain.chain
    ]
    return replace(chain, chain=found)


def _longest(link: Link, origin_ns: int, graph: Graph, part: RankPart, timeline: RankTimeline) -> str | None:
    """Return the name of the operation in which a rank's thread was for most of a link."""
    assert link.span is not None
    own = timeline.spans
    shift = int(graph.nodes.time_ns[part.starts().start]) - int(own.start_ns[part.span_row[0]])
    begin, end = (at + origin_ns - shift for at in (link.start_ns, link.end_ns))
    try:
        pieces = operation_pieces(timeline, (begin, end))
    except HostEventsError:
        return None
    if pieces is None:
        return None
    lane = own.lane[link.span : link.span + 1]
    times = operation_times(timeline, pieces_within(pieces, lane, np.array([begin]), np.array([end])))
    return max(times, key=times.__getitem__, default=None)
