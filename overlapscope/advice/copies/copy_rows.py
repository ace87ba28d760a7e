"""Which copies between host and device cost compute: those on the stream that computes, and those on other streams that
the next compute, or the host, waited for.
"""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.graph.building.host_waits import CLOCKS_AGREE_NS, TO_DEVICE
from overlapscope.analysis.pauses.host_collectives import launched_in_host_collectives
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, NONE, RUNTIME, Flags, Ints, Spans, take
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

BETWEEN: Final = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host-to-Device|Device-to-Host|H2D|D2H", re.I)
"""Names of copies between host and device."""
PAGEABLE: Final = re.compile(r"Pageable")
PINNED: Final = re.compile(r"Pinned")
"""In names of copies from or to memory that is pinned already."""
AT_ONCE_NS: Final = 20_000
"""Compute that waited for a copy begins so soon after its end. A choice: an event between streams takes a few us."""


class CopyRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in `Spans` of copies between host and device, no copy in both."""

    on_compute_stream: Ints
    """On the stream with the most compute."""
    awaited: Ints
    """On others: compute began as they ended; or of any stream, where they are from or to pageable memory and held the
    host, if streams other than the one with the most compute hold most of these."""


def copy_rows(timeline: RankTimeline) -> CopyRows:
    """Return the copies of a rank that cost compute; none without compute."""
    spans = timeline.spans
    lane = compute_lane(spans.lane, spans.kind, spans.end_ns - spans.start_ns)
    rows = np.flatnonzero((spans.kind == COPY) & (lane != NONE))
    rows = rows[rows_named(spans.name[rows], timeline.names, BETWEEN.search)]
    rows = rows[~launched_in_host_collectives(timeline, rows)]  # what those carry, not what compute needs
    own, lasted = spans.lane[rows] == lane, (spans.end_ns - spans.start_ns)[rows]
    held = rows_named(spans.name[rows], timeline.names, PAGEABLE.search)
    held[held] = _held_host(timeline, rows[held])
    elsewhere = lasted[held & ~own].sum() > lasted[held & own].sum()
    awaited = ~own & ~held
    if awaited.any():  # what follows looks at all spans
        awaited &= np.isin(rows, _compute_waited_for(spans))
    awaited |= held & (elsewhere | ~own)
    return CopyRows(on_compute_stream=rows[own & ~awaited], awaited=rows[awaited])


def to_host_rows(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return those of `rows` that copy to the host, without copies to pinned memory until whose end the host launched
    no compute: nothing could run beside these. Not left out where a launch is not known."""
    spans = timeline.spans
    rows = rows[~rows_named(spans.name[rows], timeline.names, TO_DEVICE.search)]
    launch, computes = spans.launch_ns[rows], spans.launch_ns[spans.kind == COMPUTE]
    computes = np.sort(computes[computes != NONE])
    pinned = rows_named(spans.name[rows], timeline.names, PINNED.search)
    nothing = np.searchsorted(computes, launch, side="right") == np.searchsorted(computes, spans.end_ns[rows])
    left: Ints = rows[~(pinned & (launch != NONE) & nothing & (computes.size > 0))]
    return left


def _held_host(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return during which copies their own call lasted, until they ended; none without the host's calls."""
    spans = timeline.spans
    if timeline.host_is_lost or not rows.size:
        return np.zeros(rows.size, np.bool_)
    calls = select_host_spans(timeline.host, (RUNTIME,))
    calls = take(calls, np.isin(calls.correlation, spans.correlation[rows]) & (calls.correlation != NONE))
    calls = take(calls, sort_order(calls.correlation, calls.end_ns))
    at = np.searchsorted(calls.correlation, spans.correlation[rows], side="right") - 1  # the one that ended last
    ends = np.append(calls.end_ns, NONE)[at]
    same = np.append(calls.correlation, NONE)[at] == spans.correlation[rows]
    found: Flags = same & (spans.correlation[rows] != NONE) & (ends >= spans.end_ns[rows] - CLOCKS_AGREE_NS)
    return found


def _compute_waited_for(spans: Spans) -> Ints:
    """Return the rows of copies at whose end (`AT_ONCE_NS`) compute of another stream began that had been launched
    before, while nothing else was computed or copied; communication that ended after the copy was waited for instead.
    """
    rows = np.flatnonzero(spans.kind != COMM)
    rows = rows[sort_order(spans.start_ns[rows])]
    start, end = spans.start_ns[rows], spans.end_ns[rows]
    until = np.maximum.accumulate(end)
    newest = np.maximum.accumulate(np.where(end == until, np.arange(rows.size), 0))
    nexts = np.flatnonzero(spans.kind[rows] == COMPUTE)
    nexts = nexts[nexts > 0]
    last = newest[nexts - 1]
    copy, free = rows[last], until[nexts - 1]
    launch = spans.launch_ns[rows[nexts]]
    found = (spans.kind[copy] == COPY) & (spans.lane[copy] != spans.lane[rows[nexts]])
    found &= (start[nexts] >= free - CLOCKS_AGREE_NS) & (start[nexts] - free <= AT_ONCE_NS)
    found &= (launch != NONE) & (launch < free)
    ended = np.sort(spans.end_ns[spans.kind == COMM])
    found &= np.searchsorted(ended, free, side="right") == np.searchsorted(ended, start[nexts], side="right")
    return np.unique(copy[found])
