"""Copies to the host that the host waits for at once: they are made for that wait alone."""

import msgspec
import numpy as np

from overlapscope.analysis.graph.building.host_calls import WAITS_FOR_ALL, WAITS_FOR_STREAM
from overlapscope.analysis.graph.building.host_waits import CLOCKS_AGREE_NS, TO_HOST
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.timeline.columns import COPY, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline


class ReadBacks(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each such copy; positions in the rank's spans and calls."""

    span: Ints
    call: Ints
    """The call that launches the copy."""
    wait: Ints
    """The last call that waits for it: the same one, or the next of its thread."""


def read_backs(graph: Graph, part: RankPart, timeline: RankTimeline) -> ReadBacks:
    """Return the copies to the host for which the call that makes them waits, or the next call of its thread.

    The next call is one that waits for the copy, or for a stream or the device, though that had reached the copy's end
    before.
    """
    spans = np.flatnonzero((part.span_kind == COPY) & (part.launched_by >= 0))
    spans = spans[rows_named(timeline.spans.name[part.span_row[spans]], timeline.names, TO_HOST.search)]
    call = part.launched_by[spans]
    alone = np.bincount(part.launched_by[part.launched_by >= 0], minlength=part.calls)[call] == 1  # no graph's copies
    spans, call = spans[alone], call[alone]
    following = np.minimum(call + 1, max(part.calls - 1, 0))
    in_call = part.blocks[call] & (part.awaited[call] == spans)
    by_name = rows_named(part.call_name[following], timeline.names, _waits_for_all_before)
    returned, ended = (graph.nodes.time_ns[nodes] for nodes in (part.returns(), part.ends()))
    by_name &= (part.awaited[following] < 0) & (ended[spans] <= returned[following] + CLOCKS_AGREE_NS)
    in_next = part.blocks[following] & ((part.awaited[following] == spans) | by_name)
    in_next &= (following > call) & (part.call_lane[following] == part.call_lane[call])
    rows = in_call | in_next
    return ReadBacks(span=spans[rows], call=call[rows], wait=np.where(in_next, following, call)[rows])


def _waits_for_all_before(name: str) -> bool:
    return bool(WAITS_FOR_STREAM.search(name) or WAITS_FOR_ALL.search(name))
