"""Waits for copies to the host whose data the host works on before it launches again: it cannot do without them."""

from typing import Final

import numpy as np

from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.graph.building.host_marks import COLLECTS_GARBAGE
from overlapscope.analysis.graph.building.host_waits import TO_HOST
from overlapscope.analysis.graph.chains import shift_ns
from overlapscope.analysis.graph.host_losses import SCALAR, SIZED, calling_operation
from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.timeline.columns import COPY, OPERATION, Flags, HostSpans, Ints
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

MOSTLY: Final = 0.5
"""Least share of a pause that lies in one range, and of that range that lies in the pause."""
MUCH_NS: Final = 100_000
"""What takes so long to copy is no figure such as a loss, and the host works on it. A choice: a megabyte takes as long
at 10 GB/s; sizes of copies are not recorded."""


def needed_waits(graph: Graph, part: RankPart, timeline: RankTimeline) -> Flags:
    """Return which calls of a rank wait for a copy to the host that the work after them needs.

    That work is a pause of `LONG_PAUSE_NS` or more until the next launch, most of it in one range of the same thread
    that begins in it and lies mostly in it, such as an optimizer on the CPU. After much that was copied (`MUCH_NS`) in
    copies with nothing else between them it is any such pause, and all waits for these copies are needed. Fetching a
    batch and collecting garbage need no copy; a number or a size that is read (`SCALAR`, `SIZED`) is no input of such
    work.
    """
    found = np.zeros(part.calls, np.bool_)
    if not part.spans:
        return found
    time, shift = graph.nodes.time_ns, shift_ns(graph, part, timeline)
    begin, end = time[part.begins()] - shift, time[part.returns()] - shift
    copies = rows_named(timeline.spans.name[part.span_row], timeline.names, TO_HOST.search)
    every = np.flatnonzero(part.blocks & (part.awaited >= 0) & copies[part.awaited])
    launches = np.sort(begin[np.unique(part.launched_by[part.launched_by >= 0])])
    at = np.searchsorted(launches, end[every], side="left")
    rows, at = every[at < launches.size], at[at < launches.size]
    long = launches[at] - end[rows] >= LONG_PAUSE_NS
    rows, until = rows[long], launches[at[long]]
    if not rows.size:
        return found
    operations = select_host_spans(timeline.host, (OPERATION,))
    reads = _reads(part, timeline, operations, begin, every)
    unread = ~np.isin(rows, every[reads])
    rows, until = rows[unread], until[unread]
    for lane in np.unique(part.call_lane[rows]).tolist():
        mine = part.call_lane[rows] == lane
        found[rows[mine]] = _worked_in(timeline, lane, end[rows[mine]], until[mine])
    together = np.cumsum(part.span_kind != COPY)
    taken = sum_by(together[copies], (time[part.ends()] - time[part.starts()])[copies], int(together[-1]) + 1)
    much = rows[~_needs_no_copy(timeline, operations, end[rows], until)]
    much = much[taken[together[part.awaited[much]]] >= MUCH_NS]
    others = every[~reads]
    found[others[np.isin(together[part.awaited[others]], together[part.awaited[much]])]] = True
    return found


def _reads(part: RankPart, timeline: RankTimeline, operations: HostSpans, begin_ns: Ints, rows: Ints) -> Flags:
    """Return which calls read a number or a size."""
    by = calling_operation(timeline, operations, part.call_lane[rows], begin_ns[rows])
    return rows_named(by, timeline.names, (*SCALAR, *SIZED).count)


def _needs_no_copy(timeline: RankTimeline, operations: HostSpans, start_ns: Ints, until_ns: Ints) -> Flags:
    """Return in which pauses a batch is fetched, or garbage collected, for most of the time."""
    times = [recorded_pauses(timeline, COLLECTOR)]
    for each in (operations, timeline.annotations):
        marks = rows_named(each.name, timeline.names, COLLECTS_GARBAGE.search)
        marks |= loads_data(timeline, each.name, each.start_ns, each.end_ns)
        times.append(union((each.start_ns[marks], each.end_ns[marks])))
    inside = BusyTime(union(*times)).within(start_ns, until_ns)
    found: Flags = inside >= MOSTLY * (until_ns - start_ns)
    return found


def _worked_in(timeline: RankTimeline, lane: int, start_ns: Ints, until_ns: Ints) -> Flags:
    """Return in which pauses of a thread, by start, a range begins and lies that takes most of the pause."""
    notes, names = timeline.annotations, timeline.names
    works = (notes.lane == lane) & ~np.isin(notes.start_ns, timeline.steps.start_ns)
    works &= ~rows_named(notes.name, names, COLLECTS_GARBAGE.search)
    works &= ~loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    begin, end = notes.start_ns[works], notes.end_ns[works]
    at = np.searchsorted(start_ns, begin, side="right") - 1
    inside = np.minimum(end, until_ns[at]) - begin
    most = (at >= 0) & (inside >= MOSTLY * (end - begin)) & (inside >= MOSTLY * (until_ns - start_ns)[at])
    return np.isin(np.arange(start_ns.size), at[most])
