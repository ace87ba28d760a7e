"""What host threads waited for on the device: synchronisations, blocking copies and allocations, and polls."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.graph.building.host_calls import SILENCE_NS, HostCalls
from overlapscope.analysis.graph.building.launch_queue import made_room
from overlapscope.analysis.graph.building.stream_waits import last_before_sync
from overlapscope.analysis.graph.model import OWN_NS
from overlapscope.timeline.columns import (
    CONTEXT_SYNC,
    COPY,
    EVENT_SYNC,
    NONE,
    STREAM_SYNC,
    Flags,
    Floats,
    HostSpans,
    Ints,
    Spans,
    Syncs,
)
from overlapscope.timeline.names import NameTable, rows_named
from overlapscope.timeline.rows import is_one_of, sort_order, values_in

CLOCKS_AGREE_NS: Final = 3_000
"""A span may seem to end this much after the call that waited for it."""
LOOK_BACK: Final = 80
"""Span ends that are checked, latest first, for the one that a call waited for."""
POLL_WITHIN_NS: Final = 100_000
"""After a poll the host goes on this soon after the end of what it polled."""
LAUNCHED_WITHIN_CALLS: Final = 8
POLLS: Final = 3
POLL_SHARE: Final = 0.7
READS: Final = 0.95
"""Least share of its copies to the host that a host waits for, if it reads them."""
TO_HOST: Final = re.compile(r"DtoH|Device-to-Host|DeviceToHost|DEVICE_TO_HOST", re.IGNORECASE)
TO_DEVICE: Final = re.compile(r"HtoD|Host-to-Device|HostToDevice|HOST_TO_DEVICE|H2D", re.IGNORECASE)
POLL_CHANCE: Final = 0.001
"""Chance that a class of spans ends that often just before the host goes on, though nobody polls it."""
TEMPLATE: Final = re.compile(r"<.*")


class HostWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What calls waited for; one row for each wait."""

    span: Ints
    call: Ints
    recorded: Flags
    """Whether the recording states it."""


def host_waits(spans: Spans, calls: HostCalls, host: HostSpans, syncs: Syncs) -> tuple[Ints, HostWaits]:
    """Return for each call the span that it waited for (-1 for none), and all spans that calls depend on.

    What a call waited for is its own span for a copy; else, of the spans launched before the call, the one that ended
    last inside it, however late the call returned: its thread may not have been scheduled. A synchronisation of the
    device depends on the last span of each stream, and a recorded one on what it names, also where that had ended
    before.
    """
    launch = np.append(calls.begin_ns, NONE)[calls.launched_by]  # NONE is early: launched before the recording
    awaited = _awaited(spans, calls, launch)
    stated_span, stated_call = _stated(spans, calls, host, syncs, launch)
    for_stream = last_before_sync(spans, calls, launch, awaited)
    for_stream[stated_call] = -1
    near = (for_stream >= 0) & (awaited >= 0)
    near[near] = abs(spans.end_ns[awaited[near]] - spans.end_ns[for_stream[near]]) <= OWN_NS
    awaited = np.where(near, for_stream, awaited)
    waits = (spans.end_ns[stated_span] > calls.begin_ns[stated_call]) & ~calls.copies[stated_call]
    awaited[stated_call] = np.where(calls.copies[stated_call], awaited[stated_call], -1)
    awaited[stated_call[waits]] = stated_span[waits]
    awaited = np.where(awaited < 0, made_room(spans, calls, launch), awaited)
    lane_span, lane_call = _last_of_lanes(spans, calls, launch)
    binding, over = np.flatnonzero(awaited >= 0), np.flatnonzero(for_stream >= 0)
    span = np.concatenate([awaited[binding], stated_span[~waits], lane_span, for_stream[over]])
    call = np.concatenate([binding, stated_call[~waits], lane_call, over])
    stated = np.arange(call.size) < binding.size + int(np.count_nonzero(~waits))
    recorded = stated & np.isin(call, stated_call)
    first = np.sort(np.unique(call * max(spans.lane.size, 1) + span, return_index=True)[1])
    return awaited, HostWaits(span=span[first], call=call[first], recorded=recorded[first])


def _awaited(spans: Spans, calls: HostCalls, launch: Ints) -> Ints:
    found = np.full(calls.row.size, -1, np.int64)
    launched = np.flatnonzero(calls.launched_by >= 0)
    launched = launched[np.argsort(spans.end_ns[launched], kind="stable")]
    own = np.full(calls.row.size, -1, np.int64)
    own[calls.launched_by[launched]] = launched  # the last of several assignments stays
    found[calls.copies] = own[calls.copies]
    by_end = sort_order(spans.end_ns)
    asking = np.flatnonzero(calls.blocks & (found < 0))
    last = _ended_inside(spans, calls, launch, by_end, asking, calls.end_ns[asking] + CLOCKS_AGREE_NS)
    # Of spans that end together the one that ended before the call returned.
    after = np.flatnonzero((last >= 0) & (spans.end_ns[last] > calls.end_ns[asking]))
    other = _ended_inside(spans, calls, launch, by_end, asking[after], calls.end_ns[asking[after]])
    tied = (other >= 0) & (spans.end_ns[other] >= calls.end_ns[asking[after]] - CLOCKS_AGREE_NS)
    last[after[tied]] = other[tied]
    found[asking] = last
    # An allocation waits for the whole device or for nothing: not where something launched before it runs on after it.
    return np.where(calls.allocates & ~calls.synchronizes & _runs_on(spans, calls, launch), -1, found)


def _ended_inside(spans: Spans, calls: HostCalls, launch: Ints, by_end: Ints, asking: Ints, until_ns: Ints) -> Ints:
    """Return for each of the calls the span launched before it that ended last inside it, until a moment; else -1."""
    found = np.full(asking.size, -1, np.int64)
    ends, rows = spans.end_ns[by_end], np.arange(asking.size)
    at = np.searchsorted(ends, until_ns, side="right")
    for _ in range(LOOK_BACK):
        at = at - 1
        inside = (at >= 0) & (ends[at] > calls.begin_ns[asking[rows]])
        rows, at = rows[inside], at[inside]
        if not rows.size:
            break
        fits = launch[by_end[at]] < calls.begin_ns[asking[rows]]
        found[rows[fits]] = by_end[at[fits]]
        rows, at = rows[~fits], at[~fits]
    return found


def _runs_on(spans: Spans, calls: HostCalls, launch: Ints) -> Flags:
    """Return for each call whether a span launched before it ran on after it."""
    order = np.argsort(launch, kind="stable")
    latest = np.maximum.accumulate(np.append(NONE, spans.end_ns[order]))
    at = np.searchsorted(launch[order], calls.begin_ns, side="left")
    return np.asarray(latest[at] > calls.end_ns + CLOCKS_AGREE_NS, np.bool_)


def _last_of_lanes(spans: Spans, calls: HostCalls, launch: Ints) -> tuple[Ints, Ints]:
    """Return for each synchronisation of the device the last span launched before on each lane: (span, call)."""
    waiting = np.flatnonzero(calls.waits_for_all)
    everything = np.full(waiting.size, NONE)
    return _last_before(spans, calls, launch, waiting, calls.begin_ns[waiting], everything)


def _last_before(
    spans: Spans, calls: HostCalls, launch: Ints, call: Ints, moment_ns: Ints, lane: Ints
) -> tuple[Ints, Ints]:
    """Return (span, call): the last span launched before a moment on a lane (NONE: on each) that the call may await."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for each in values_in(spans.lane).tolist() if call.size else ():
        on_lane = np.flatnonzero(spans.lane == each)
        on_lane = on_lane[np.argsort(launch[on_lane], kind="stable")]
        mine = np.flatnonzero((lane == each) | (lane == NONE))
        at = np.searchsorted(launch[on_lane], moment_ns[mine], side="left") - 1
        span = on_lane[np.maximum(at, 0)]
        fits = (at >= 0) & (spans.end_ns[span] <= calls.end_ns[call[mine]] + CLOCKS_AGREE_NS)
        found.append((span[fits], call[mine[fits]]))
    span, waiting = (np.concatenate(each) for each in zip(*found, strict=True))
    return span, waiting


def _stated(spans: Spans, calls: HostCalls, host: HostSpans, syncs: Syncs, launch: Ints) -> tuple[Ints, Ints]:
    """Return (span, call) for each recorded synchronisation of a host thread: the last of what it waited for."""
    rows = np.flatnonzero(is_one_of(syncs.kind, (EVENT_SYNC, STREAM_SYNC, CONTEXT_SYNC)) & (syncs.correlation != NONE))
    nothing = np.empty(0, np.int64)
    if not rows.size:
        return nothing, nothing
    call_of = {each: at for at, each in enumerate(host.correlation[calls.row].tolist()) if each != NONE}
    call = np.array([call_of.get(each, -1) for each in syncs.correlation[rows].tolist()], np.int64)
    rows, call = rows[call >= 0], call[call >= 0]
    begun, begin = begins_by_correlation(host), calls.begin_ns[call]
    # What a host waits for was launched before the event was recorded; without an event, before the call.
    event = [begun.get(each, NONE) for each in syncs.awaited_correlation[rows].tolist()]
    moment = np.where(np.array(event, np.int64) == NONE, begin, np.minimum(event, begin))
    span, waiting = _last_before(spans, calls, launch, call, moment, syncs.awaited_lane[rows])
    order = np.lexsort((spans.end_ns[span], waiting))
    last = np.append(np.diff(waiting[order]) != 0, True)[: order.size]
    return span[order[last]], waiting[order[last]]


def begins_by_correlation(host: HostSpans) -> dict[int, int]:
    """Return when the runtime call of each correlation began; `host` holds runtime calls."""
    rows = np.flatnonzero(host.correlation != NONE)
    return dict(zip(host.correlation[rows].tolist(), host.start_ns[rows].tolist(), strict=True))


def polled_spans(spans: Spans, calls: HostCalls, names: tuple[str, ...]) -> tuple[Ints, Flags]:
    """Return for each call the span whose end its host had polled before it, -1 for none; and whether it may have
    waited before it for a copy that it reads, which so few or short silences do not show.

    A host polls a class of spans (by name, without template arguments) if its silences end shortly after a span of the
    class in most of their opportunities, and so often that chance does not explain it. Fewer than three polls of a kind
    cannot be told from chance.
    """
    polled = np.full(calls.row.size, -1, np.int64)
    silent, span = _opportunities(spans, calls)
    if not span.size:
        return polled, np.zeros(calls.row.size, np.bool_)
    reads = _read_copies(spans, calls, names, silent, span, polled)
    table = NameTable()
    of_name = np.array([table.code(TEMPLATE.sub("", name)) for name in names] + [-1], np.int64)
    kind = of_name[spans.name[span]]
    call, since = calls.by_begin[silent], calls.silent_since[silent]
    begin = calls.begin_ns[call]
    # Of several spans of a class in one silence, the host waits for the one that ends last.
    order = np.lexsort((spans.end_ns[span], kind, silent))
    last = np.append((np.diff(silent[order]) != 0) | (np.diff(kind[order]) != 0), True)
    rows = order[last]
    after = begin[rows] - spans.end_ns[span[rows]]
    hit = (after >= 0) & (after <= POLL_WITHIN_NS)
    chance = np.minimum(POLL_WITHIN_NS / (begin - since)[rows], 1.0)
    for code in values_in(kind[rows]).tolist():
        mine = kind[rows] == code
        hits = int(hit[mine].sum())
        if hits >= POLLS and hits >= POLL_SHARE * mine.sum() and _at_least(chance[mine], hits) < POLL_CHANCE:
            these = rows[mine & hit]
            later = polled[call[these]] >= 0
            better = ~later | (spans.end_ns[span[these]] > spans.end_ns[np.maximum(polled[call[these]], 0)])
            polled[call[these[better]]] = span[these[better]]
    return polled, reads & (polled < 0)


def _read_copies(
    spans: Spans, calls: HostCalls, names: tuple[str, ...], silent: Ints, span: Ints, polled: Ints
) -> Flags:
    """Add, in place, copies to the host that were enqueued last before a silence, and that the host then read.

    Return the calls after silences in which such copies ended, where the host never went on before.

    It works on what it read before it goes on, so the end of the copy is not the end of the silence. But it never goes
    on before; and if the two had nothing to do with each other, the copies would end anywhere in their silences, not
    all of them late (the sum of such chances is Edgington's method).
    """
    copies = spans.kind == COPY
    copies[copies] = rows_named(spans.name[copies], names, TO_HOST.search)
    last = calls.by_begin[np.maximum(silent - 1, 0)] == calls.launched_by[span]
    chosen = copies[span] & last & ~calls.copies[calls.launched_by[span]]
    call, span, since = calls.by_begin[silent[chosen]], span[chosen], calls.silent_since[silent[chosen]]
    begin, end = calls.begin_ns[call], spans.end_ns[span]
    waited = end <= begin + CLOCKS_AGREE_NS
    reads = np.zeros(calls.row.size, np.bool_)
    if not call.size or waited.mean() < READS:
        return reads
    reads[call[waited]] = True
    chance = np.clip((begin - end) / np.maximum(begin - since, 1), 0.0, 1.0)
    if call.size >= POLLS and _all_so_small(chance[waited]) < POLL_CHANCE:
        polled[call[waited]] = span[waited]
    return reads


def _all_so_small(chance: Floats) -> float:
    """Return a bound (Chernoff) of the probability that as many uniform numbers in [0, 1] have no larger a sum."""
    t = np.geomspace(0.1, 1_000.0, 200)
    exponents = t * float(chance.sum()) + chance.size * np.log(-np.expm1(-t) / t)
    return float(np.exp(min(exponents.min(), 0.0)))


def _opportunities(spans: Spans, calls: HostCalls) -> tuple[Ints, Ints]:
    """Return (silence, span) pairs: a span launched shortly before a silence that runs on well into it.

    A silence is a position in `calls.by_begin`.
    """
    by_begin = calls.by_begin
    silent = np.flatnonzero(calls.begin_ns[by_begin] - calls.silent_since >= SILENCE_NS)
    place = np.empty(by_begin.size + 1, np.int64)
    place[by_begin], place[-1] = np.arange(by_begin.size), -1
    launched_at = place[calls.launched_by]
    order = np.argsort(launched_at, kind="stable")
    first = np.searchsorted(launched_at[order], np.maximum(silent - LAUNCHED_WITHIN_CALLS, 0))
    counts = np.searchsorted(launched_at[order], silent) - first
    which = np.repeat(silent, counts)
    span = order[np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
    same = calls.process[by_begin[which]] == calls.process[calls.launched_by[span]]
    runs = same & (spans.end_ns[span] >= calls.silent_since[which] + POLL_WITHIN_NS)
    return which[runs], span[runs]


def _at_least(chance: Floats, hits: int) -> float:
    """Return the probability of at least so many successes in independent trials with these chances."""
    exactly = np.zeros(hits + 1)  # the last stands for `hits` and more
    exactly[0] = 1.0
    for each in chance.tolist():
        up = exactly * each
        exactly[:-1] -= up[:-1]
        exactly[1:] += up[:-1]
    return float(exactly[-1])
