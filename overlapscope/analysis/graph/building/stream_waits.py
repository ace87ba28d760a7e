"""Which spans streams and hosts waited for, where calls show that they waited but not for what.

A call that lets a stream wait for an event names neither in most recordings. Where the wait bound, times show what it
was for; if all that bound point to the same stream, and no other wait contradicts it, then the waits that did not bind
were for that stream, too: a replay needs them as soon as something else takes longer.
"""

import re
from typing import Final

import numpy as np

from overlapscope.analysis.graph.building.host_calls import HostCalls
from overlapscope.timeline.columns import Flags, HostSpans, Ints, Spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order, values_in

WAITS_FOR_EVENT: Final = re.compile(r"StreamWaitEvent")
"""cudaStreamWaitEvent, hipStreamWaitEvent, cuStreamWaitEvent, aclrtStreamWaitEvent."""
CLOCKS_AGREE_NS: Final = 3_000
"""A span may seem to end this much after what waited for it."""
AGREE: Final = 0.9
"""Least share of the waits that bound which point to the last span of one stream."""


def made_to_wait(spans: Spans, calls: HostCalls, host: HostSpans, names: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return the spans whose stream was made to wait since the call before their launch, and when, the last time."""
    nothing = np.empty(0, np.int64)
    rows = np.flatnonzero(rows_named(host.name, names, WAITS_FOR_EVENT.search))
    launches = np.unique(calls.launched_by[calls.launched_by >= 0])
    if not rows.size or not launches.size:
        return nothing, nothing
    rows = rows[sort_order(host.lane[rows], host.start_ns[rows])]
    # Calls are by thread and begin: of those that launch, the next one after each wait, on its thread.
    first_ns = min(int(host.start_ns[rows].min()), int(calls.begin_ns.min()))
    length = max(int(host.start_ns[rows].max()), int(calls.begin_ns.max())) - first_ns + 1
    at = np.searchsorted(
        calls.lane[launches].astype(np.int64) * length + calls.begin_ns[launches] - first_ns,
        host.lane[rows].astype(np.int64) * length + host.start_ns[rows] - first_ns,
    )
    there = at < launches.size
    rows, at = rows[there], at[there]
    same = calls.lane[launches[at]] == host.lane[rows]
    rows, at = rows[same], at[same]
    last = np.append(np.diff(at) != 0, True)[: at.size]
    span_of = np.full(calls.row.size, -1, np.int64)
    span_of[calls.launched_by[::-1]] = np.arange(spans.lane.size)[::-1]  # the last assigned is the first that starts
    return span_of[launches[at[last]]], host.start_ns[rows[last]]


def awaited_spans(spans: Spans, launch: Ints, waiting: Ints, moment_ns: Ints, bound: Ints) -> Ints:
    """Return for each span the span of another stream that its stream was made to wait for; -1 where that is not known.

    `waiting` holds the spans whose streams were made to wait at `moment_ns`, `bound` for each span the one whose end
    explains its start; -1 for none. `launch` is when each span was launched.
    """
    found = np.full(spans.lane.size, -1, np.int64)
    other = bound[waiting]
    shown = other >= 0
    for lane in values_in(spans.lane[waiting]).tolist():
        mine = spans.lane[waiting] == lane
        for awaited in values_in(spans.lane[other[mine & shown]]).tolist():
            last = _last_launched(spans, launch, awaited, moment_ns[mine])
            if _agree(last, other[mine], spans.end_ns, spans.start_ns[waiting[mine]]):
                found[waiting[mine]] = last
    return found


def last_before_sync(spans: Spans, calls: HostCalls, launch: Ints, awaited: Ints) -> Ints:
    """Return for each synchronisation of a stream the span that it was for; -1 where that is not known, and for other
    calls.

    `awaited` holds the span whose end explains the end of each call; -1 for none.
    """
    found = np.full(calls.row.size, -1, np.int64)
    waiting = np.flatnonzero(calls.waits_for_stream)
    for process in values_in(calls.process[waiting]).tolist():
        mine = waiting[calls.process[waiting] == process]
        other = awaited[mine]
        for lane in values_in(spans.lane[other[other >= 0]]).tolist():
            last = _last_launched(spans, launch, lane, calls.begin_ns[mine])
            if _agree(last, other, spans.end_ns, calls.end_ns[mine]):
                found[mine] = last
    return found


def _last_launched(spans: Spans, launch: Ints, lane: int, moment_ns: Ints) -> Ints:
    """Return the span that was launched last on a lane before each moment; -1 for none."""
    on_lane = np.flatnonzero(spans.lane == lane)
    on_lane = on_lane[np.argsort(launch[on_lane], kind="stable")]
    at = np.searchsorted(launch[on_lane], moment_ns, side="left")
    return np.append(-1, on_lane)[at]


def _agree(last: Ints, shown: Ints, end_ns: Ints, until_ns: Ints) -> bool:
    """Return whether the waits that bound were for `last`, and no wait was over before it ended."""
    there = last >= 0
    outrun: Flags = end_ns[last] > until_ns + CLOCKS_AGREE_NS
    votes = shown >= 0
    return not (outrun & there).any() and bool(np.mean(last[votes] == shown[votes]) >= AGREE)
