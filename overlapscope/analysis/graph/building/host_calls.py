"""The calls of a rank's host threads that matter to its device: those that launch, and those that block."""

import re
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    HAND_OVER,
    HOST_STRETCH,
    INFERRED,
    ORDER,
    RECORDED,
    Edges,
    edges_of,
)
from overlapscope.timeline.columns import COPY, NONE, Codes, Flags, HostSpans, Ints, Spans, take
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import largest_by, sort_order, values_in
from overlapscope.timeline.run import RankTimeline

SYNCHRONIZES: Final = re.compile(r"Synchronize")
"""cudaDeviceSynchronize, hipStreamSynchronize, cuCtxSynchronize, aclrtSynchronizeStream and their kin."""
WAITS_FOR_STREAM: Final = re.compile(r"StreamSynchronize|SynchronizeStream")
WAITS_FOR_ALL: Final = re.compile(r"(Device|Ctx|Context)Synchronize|SynchronizeDevice")
ALLOCATES: Final = re.compile(r"Malloc|Free(?!ze)|HostAlloc|HostRegister|HostUnregister")
LAUNCHES_GRAPH: Final = re.compile(r"GraphLaunch")
ALLOCATION_NS: Final = 10_000
"""A shorter allocation neither waits nor delays."""
COPY_RETURNS_NS: Final = 60_000
"""A copy call that returns so soon after its own span ended had waited for it (pageable memory), whatever its name."""
SILENCE_NS: Final = 200_000
"""A host that called nothing for this long may have waited for something that was not recorded."""


class HostCalls(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The outermost calls, sorted by thread and begin."""

    row: Ints
    """Row among the runtime calls of the recording."""
    name: Codes
    lane: Ints
    process: Ints
    begin_ns: Ints
    end_ns: Ints
    synchronizes: Flags
    waits_for_stream: Flags
    """Synchronisations of one stream."""
    waits_for_all: Flags
    """Synchronisations of the whole device."""
    copies: Flags
    """Copies that returned when their own span had ended."""
    allocates: Flags
    launched_by: Ints
    """For each span the call that launched it; -1 without a record."""
    launches_graph: Flags
    lost_graphs_ns: Ints
    """Begins of graph launches without a recorded span, ascending."""

    @property
    def blocks(self) -> Flags:
        """Calls that may wait for the device."""
        return self.synchronizes | self.copies | self.allocates

    @property
    def previous(self) -> Ints:
        """The call before each on its thread; -1 for the first."""
        at = np.arange(self.row.size)
        return np.where(np.append(True, self.lane[1:] != self.lane[:-1])[: at.size], -1, at - 1)

    @cached_property
    def by_begin(self) -> Ints:
        """The calls of all threads, by process, then by begin."""
        return sort_order(self.process, self.begin_ns, self.end_ns)

    @cached_property
    def silent_since(self) -> Ints:
        """For each of `by_begin`, when the last call before it returned on any thread; its own begin for the first."""
        order = self.by_begin
        if not order.size:
            return order
        process, begin, end = self.process[order], self.begin_ns[order], self.end_ns[order]
        shift = (process - process.min()) * (int(end.max() - begin.min()) + 1)
        since = np.append(NONE, np.maximum.accumulate(end + shift)[:-1]) - shift
        first = np.append(True, process[1:] != process[:-1])
        return np.where(first, begin, np.minimum(since, begin))


def host_calls(timeline: RankTimeline, spans: Spans, host: HostSpans) -> HostCalls:
    """Return the calls of one recording; `spans` are its device spans, by start, `host` its runtime calls."""
    calls = sort_order(host.lane, host.start_ns, -host.end_ns)
    table, names = take(host, calls), timeline.names
    own = _by_correlation(table.correlation, spans.correlation)
    owns = np.zeros(calls.size, np.bool_)
    owns[own[own >= 0]] = True
    synchronizes = rows_named(table.name, names, SYNCHRONIZES.search)
    slow = table.end_ns - table.start_ns >= ALLOCATION_NS
    allocates = slow & ~owns & rows_named(table.name, names, ALLOCATES.search)
    graphs = rows_named(table.name, names, LAUNCHES_GRAPH.search)
    kept = np.flatnonzero(owns | synchronizes | allocates)
    outer = kept[_outermost(table.lane[kept], table.start_ns[kept], table.end_ns[kept])]
    opens = np.append(True, outer[1:] != outer[:-1])[: outer.size]  # they ascend
    keeps = outer[opens]
    position = np.full(calls.size + 1, -1, np.int64)  # the last is the value for -1
    position[kept] = np.cumsum(opens) - 1
    launched_by = position[own]
    begin, end = table.start_ns[keeps], table.end_ns[keeps]
    last = largest_by(launched_by[launched_by >= 0], spans.end_ns[launched_by >= 0], keeps.size)
    is_copy = np.zeros(keeps.size, np.bool_)
    is_copy[launched_by[(launched_by >= 0) & (spans.kind == COPY)]] = True
    after = np.where(last == NONE, -1, end - last)

    def of_outer(flags: Flags) -> Flags:
        found = np.zeros(keeps.size, np.bool_)
        found[position[kept[flags[kept]]]] = True
        return found

    found = HostCalls(
        row=calls[keeps],
        name=table.name[keeps],
        lane=table.lane[keeps],
        process=timeline.lanes.process[table.lane[keeps]].astype(np.int64),
        begin_ns=begin,
        end_ns=end,
        synchronizes=of_outer(synchronizes),
        waits_for_stream=of_outer(rows_named(table.name, names, WAITS_FOR_STREAM.search)),
        waits_for_all=of_outer(rows_named(table.name, names, WAITS_FOR_ALL.search)),
        copies=is_copy & (after >= 0) & (after <= COPY_RETURNS_NS),
        allocates=of_outer(allocates),
        launched_by=launched_by,
        launches_graph=of_outer(graphs),
        lost_graphs_ns=np.sort(table.start_ns[graphs & ~owns]),
    )
    return _one_each_launch(found, spans.launch_ns)


def _one_each_launch(calls: HostCalls, launch_ns: Ints) -> HostCalls:
    """Return the calls; of one inside which spans were launched at several moments (a task of a framework's queue that
    launches one after the other), a call at each, which takes no time. A graph is launched by one call, and a call that
    blocks stays whole.

    `launch_ns` is when each span was launched.
    """
    spans = np.flatnonzero(calls.launched_by >= 0)
    by = calls.launched_by[spans]
    moment_ns = np.clip(launch_ns[spans], calls.begin_ns[by], calls.end_ns[by])
    order = sort_order(by, moment_ns)
    spans, by, moment_ns = spans[order], by[order], moment_ns[order]
    opens = np.append(True, (np.diff(by) != 0) | (np.diff(moment_ns) != 0))[: by.size]
    moments = np.bincount(by[opens], minlength=calls.row.size)
    blocks = calls.synchronizes | calls.waits_for_stream | calls.waits_for_all | calls.allocates
    apart = (moments > 1) & ~calls.launches_graph & ~blocks
    if not apart.any():
        return calls
    counts = np.where(apart, moments, 1)
    rows, first = np.repeat(np.arange(counts.size), counts), np.cumsum(counts) - counts
    number = np.cumsum(opens) - 1
    place = first[by] + np.where(apart[by], number - number[np.searchsorted(by, by)], 0)
    begin_ns, end_ns = calls.begin_ns[rows], calls.end_ns[rows]
    of_several = apart[by]
    begin_ns[place[of_several]] = end_ns[place[of_several]] = moment_ns[of_several]
    launched_by = calls.launched_by.copy()
    launched_by[spans] = place
    kept = ("row", "name", "lane", "process", "synchronizes", "waits_for_stream", "waits_for_all", "allocates")
    return replace(
        calls,
        **{name: getattr(calls, name)[rows] for name in (*kept, "launches_graph")},
        begin_ns=begin_ns,
        end_ns=end_ns,
        copies=calls.copies[rows] & ~apart[rows],
        launched_by=launched_by,
    )


def _by_correlation(calls: Ints, spans: Ints) -> Ints:
    """Return for each span the call with its correlation, the first of several; -1 for none."""
    known = np.flatnonzero(calls != NONE)
    if not known.size:
        return np.full(spans.size, -1, np.int64)
    order = known[np.argsort(calls[known], kind="stable")]
    at = np.minimum(np.searchsorted(calls[order], spans), order.size - 1)
    return np.where((calls[order[at]] == spans) & (spans != NONE), order[at], -1)


def _outermost(lane: Ints, begin: Ints, end: Ints) -> Ints:
    """Return for each call, sorted by thread and begin, the position of the outermost call around it."""
    if not lane.size:
        return np.empty(0, np.int64)
    at = np.arange(lane.size)
    # Threads follow each other on one axis, so that one running maximum serves all.
    span = int(end.max() - begin.min()) + 1
    shifted_end, shifted_begin = end + lane * span, begin + lane * span
    until = np.maximum.accumulate(shifted_end)
    inside = np.append(False, (shifted_begin[1:] < until[:-1]) & (shifted_end[1:] <= until[:-1]))
    return np.maximum.accumulate(np.where(inside, -1, at))


def program_order(calls: HostCalls, awaited: Ints, polled: Ints) -> list[Edges]:
    """Return the edges between and inside calls.

    `awaited` holds the span that each call waited for, `polled` the one that its host had polled before; -1 for none.

    Nodes are numbered as in a graph of these calls alone: begins, then ends.
    """
    size = calls.row.size
    at, before = np.arange(size), calls.previous
    handed = hand_overs(calls)
    follows = before >= 0
    gap = calls.begin_ns - calls.end_ns[np.maximum(before, 0)]
    stretch = np.where((handed >= 0) | (polled >= 0), 0, gap)[follows]
    inside = calls.end_ns - calls.begin_ns
    kind = np.where(calls.allocates & (awaited < 0), ALLOCATE, CALL).astype(np.int8)
    over = handed >= 0
    lag = np.where(polled[over] >= 0, 0, calls.begin_ns[over] - calls.end_ns[handed[over]])
    return [
        edges_of(size + before[follows], at[follows], HOST_STRETCH, ORDER, stretch),
        edges_of(at, size + at, kind, RECORDED, np.where(awaited >= 0, np.minimum(inside, CALL_TAKES_NS), inside)),
        edges_of(size + handed[over], at[over], HAND_OVER, INFERRED, lag),
    ]


CALL_TAKES_NS: Final = 5_000
"""A call that waits for the device takes up to this itself."""


def hand_overs(calls: HostCalls) -> Ints:
    """Return for each call after a silence of its thread the call of another thread that ended last before; else -1."""
    before, found = calls.previous, np.full(calls.row.size, -1, np.int64)
    last_own = np.where(before >= 0, calls.end_ns[np.maximum(before, 0)], NONE)
    silent = np.where(before >= 0, calls.begin_ns - last_own >= SILENCE_NS, True)
    for process in values_in(calls.process).tolist():
        mine = np.flatnonzero(calls.process == process)
        by_end = mine[np.argsort(calls.end_ns[mine], kind="stable")]
        asking = mine[silent[mine]]
        at = np.searchsorted(calls.end_ns[by_end], calls.begin_ns[asking], side="right") - 1
        other = by_end[np.maximum(at, 0)]
        fits = (at >= 0) & (calls.lane[other] != calls.lane[asking]) & (calls.end_ns[other] > last_own[asking])
        found[asking[fits]] = other[fits]
    return found
