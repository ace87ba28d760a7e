"""What each device span waited for before it began: its launch, its stream, an event, or room on the device."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.graph.building.host_calls import HostCalls
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE, TO_HOST, begins_by_correlation
from overlapscope.analysis.graph.building.stream_waits import (
    CLOCKS_AGREE_NS,
    Serving,
    StreamWaits,
    asked_for,
    awaited_spans,
    of_usual_stream,
    serving_streams,
    stream_waits,
)
from overlapscope.analysis.graph.model import (
    EVENT,
    FIRST_OF_LANE,
    IN_GRAPH,
    INFERRED,
    LAUNCH,
    NO_GAP,
    NOT_LAUNCHED,
    OCCUPANCY,
    OCCUPIED,
    ON_LANE,
    ORDER,
    OWN_CALL,
    OWN_NS,
    RECORDED,
    Edges,
    edges_of,
)
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    COPY,
    NONE,
    STREAM_WAIT_EVENT,
    Flags,
    HostSpans,
    Ints,
    Small,
    Spans,
    Syncs,
)
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order

QUICK_LAUNCHES: Final = 0.001
NO_LAUNCH_BINDS_NS: Final = 50_000
"""If even the quickest launch took longer, the device lagged behind its host throughout: no launch bound ..."""
LAUNCH_TAKES_NS: Final = 6_000
"""... and the latency is assumed."""
LONG_CALL_NS: Final = 20_000
"""A span that begins after a longer call was submitted at its end: the thread had not been scheduled before."""
BACK_TO_BACK: Final = 0.05
LANE_TAKES_NS: Final = 1_000
SLOW_LANE_SPANS: Final = 20
"""From so many spans of a kind on it is seen that a stream pauses after each, as a device does while a profiler reads
its counters after each kernel: where these pauses ..."""
PAUSES_AGREE: Final = 1.25
"""... are longer than `OWN_NS` and three quarters of them at most so many times as long as a quarter is. What streams
wait for besides takes times that differ more. Both are choices."""
OVERLAPS_NS: Final = 1_500
"""Spans of one stream that overlap by more: the stream runs several at once (as some devices record it)."""
SEVERAL_STREAMS: Final = 2
"""Copies of one stream follow each other anyhow."""
EVENT_WITHIN_NS: Final = 60_000
ROUNDED_NS: Final = 1
"""A span may seem to end so much after what waited for it began: begin and length are each rounded to nanoseconds."""
LOOK_BACK: Final = 80
"""Span ends that are checked, latest first, for an event, and earliest first for the holder of the device."""
FULL: Final = 0.9
LAST_WAVE: Final = 0.15
LAST_WAVE_NS: Final = 20_000
LONG_AGO: Final = int(np.iinfo(np.int64).min) // 2


class DeviceWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Edges into the starts of spans, and why the rest of a gap is opaque."""

    edges: list[Edges]
    gap: Small
    early_launches: int
    serving: Serving
    """Spans on streams that only serve communication."""
    asked_ns: Ints | None
    """When calls made streams wait for events, but for communication's own (`asked_for`); None without such calls."""


def device_waits(spans: Spans, calls: HostCalls, host: HostSpans, syncs: Syncs, names: tuple[str, ...]) -> DeviceWaits:
    """Return what the spans of one recording (by start) waited for.

    Where the recording states which events streams waited for, others are inferred only for starts that these do not
    explain.

    Nodes are numbered as in a graph of these calls and spans: call begins, call ends, span starts, span ends.
    """
    first_start, count = 2 * calls.row.size, spans.lane.size
    at = np.arange(count)
    start, end = spans.start_ns, spans.end_ns
    by, launched = calls.launched_by, calls.launched_by >= 0
    begin = np.append(calls.begin_ns, NONE)[by]
    returned = np.append(calls.end_ns, NONE)[by]
    arrived, launches = _launches(spans, calls, begin, returned)
    edges = [launches]

    before = before_on_lane(spans.lane)
    follows, prev = before >= 0, np.maximum(before, 0)
    overlaps = follows & (end[prev] - start > OVERLAPS_NS)
    lane_lag = _lane_lags(spans, arrived, before)
    free = np.where(follows, np.where(overlaps, start[prev], np.minimum(end[prev] + lane_lag, start)), LONG_AGO)
    recorded = _recorded_events(spans, begin, host, syncs)
    edges.append(
        edges_of(
            first_start + np.where(overlaps, prev, prev + count)[follows], first_start + at[follows], ON_LANE, ORDER,
            np.where(overlaps, 0, lane_lag)[follows],
        )
    )  # fmt: skip

    best = np.maximum(arrived, free)
    best = _with_recorded_events(spans, begin, best, edges, first_start, recorded)
    guess = not recorded[0].size
    made = stream_waits(spans, calls, host, names)
    serving = serving_streams(spans, calls, made)
    waits = start - best > OWN_NS
    if guess:
        waits |= _held_briefly(spans, begin, arrived, free, made)
    best = _with_events(spans, begin, best, waits, edges, first_start, made if guess else None, serving.prepares)
    edges += _one_copy_at_a_time(spans, names, first_start)
    waits = start - best > OWN_NS
    carried = waits & launched & (returned - begin > LONG_CALL_NS) & (start < returned)
    edges.append(edges_of(by[carried], first_start + at[carried], OWN_CALL, INFERRED, (start - begin)[carried]))
    waits &= ~carried
    full = waits & (best > LONG_AGO)
    full[full] = _is_full(spans, best[full], start[full])
    holder = _holder(spans, np.flatnonzero(full))
    held = np.flatnonzero(holder >= 0)
    edges.append(
        edges_of(first_start + holder[held], first_start + held, OCCUPANCY, INFERRED, start[held] - start[holder[held]])
    )
    gap = _opaque(calls, by, launched, follows, before, begin, full & (holder < 0))
    return DeviceWaits(
        edges=edges, gap=gap, early_launches=int(np.count_nonzero(launched & (start < begin))),
        serving=serving, asked_ns=asked_for(spans, launched, made, serving.prepares | serving.finishes),
    )  # fmt: skip


def _launches(spans: Spans, calls: HostCalls, begin: Ints, returned: Ints) -> tuple[Ints, Edges]:
    """Return when each span arrived at its stream, `LONG_AGO` where no launch was recorded, and edges from launches.

    `begin` and `returned` say when the call that launched each span began and ended.
    """
    by, start, launched = calls.launched_by, spans.start_ns, calls.launched_by >= 0
    latency = _launch_latency((start - begin)[launched])
    descheduled = launched & (returned - begin > LONG_CALL_NS) & (start >= returned)
    submitted = np.where(descheduled, returned, begin)
    arrived = np.where(launched, np.minimum(submitted + latency, start), LONG_AGO)
    edges = edges_of(
        np.where(descheduled, calls.row.size + by, by)[launched], 2 * calls.row.size + np.flatnonzero(launched), LAUNCH,
        RECORDED, (arrived - submitted)[launched],
    )  # fmt: skip
    return arrived, edges


def _launch_latency(taken: Ints) -> int:
    if not taken.size:
        return LAUNCH_TAKES_NS
    quickest = int(np.quantile(taken, QUICK_LAUNCHES, method="lower"))
    return quickest if quickest <= NO_LAUNCH_BINDS_NS else LAUNCH_TAKES_NS


def before_on_lane(lane: Ints) -> Ints:
    """Return for each span the one before it on its lane; -1 for the first."""
    by_lane = sort_order(lane)
    before = np.full(lane.size, -1, np.int64)
    same = lane[by_lane[1:]] == lane[by_lane[:-1]]
    before[by_lane[1:][same]] = by_lane[:-1][same]
    return before


def _lane_lags(spans: Spans, arrived: Ints, before: Ints) -> Ints:
    """Return for each span how long its stream takes after the one before it.

    That is the usual gap before spans that were there before the other one had ended; after compute, after which some
    devices always pause, the pause. Communication waits for compute in like gaps, too: of it nothing follows.
    """
    prev = np.maximum(before, 0)
    gap = spans.start_ns - spans.end_ns[prev]
    waited = (before >= 0) & (arrived <= spans.end_ns[prev]) & (gap >= 0)
    lag = np.full(before.size, LANE_TAKES_NS, np.int64)
    if waited.any():
        lag[:] = min(int(np.quantile(gap[waited], BACK_TO_BACK, method="lower")), LANE_TAKES_NS)
    after = spans.kind[prev] == COMPUTE
    pauses = gap[waited & after]
    if pauses.size >= SLOW_LANE_SPANS:
        short, middle, long = np.quantile(pauses, (0.25, 0.5, 0.75))
        if short > OWN_NS and long <= PAUSES_AGREE * short:
            lag[after] = np.where(waited, np.minimum(gap, int(PAUSES_AGREE * middle)), int(short))[after]
    return lag


def _recorded_events(spans: Spans, launch: Ints, host: HostSpans, syncs: Syncs) -> tuple[Ints, Ints]:
    """Return (awaited span, waiting span) for each recorded wait of a stream for an event.

    The first span launched on the stream after the wait follows the last one that was launched on the other stream
    before the event was recorded.
    """
    rows = np.flatnonzero((syncs.kind == STREAM_WAIT_EVENT) & (syncs.lane != NONE) & (syncs.awaited_lane != NONE))
    nothing = np.empty(0, np.int64)
    found = [(nothing, nothing)]
    if rows.size:
        begun = begins_by_correlation(host)
        wait = np.array([begun.get(each, NONE) for each in syncs.correlation[rows].tolist()], np.int64)
        event = np.array([begun.get(each, NONE) for each in syncs.awaited_correlation[rows].tolist()], np.int64)
        rows, wait, event = (each[(wait != NONE) & (event != NONE)] for each in (rows, wait, event))
        on_lane = {lane: _by_launch(spans, launch, lane) for lane in np.unique(spans.lane).tolist()}
        for pair in np.unique(np.stack([syncs.awaited_lane[rows], syncs.lane[rows]], axis=1), axis=0).tolist():
            if pair[0] not in on_lane or pair[1] not in on_lane:
                continue
            mine = (syncs.awaited_lane[rows] == pair[0]) & (syncs.lane[rows] == pair[1])
            awaited, waiting = on_lane[pair[0]], on_lane[pair[1]]
            at = np.searchsorted(launch[awaited], event[mine], side="left") - 1
            to = np.searchsorted(launch[waiting], wait[mine], side="left")
            there = (at >= 0) & (to < waiting.size)
            found.append((awaited[at[there]], waiting[to[there]]))
    before, span = (np.concatenate(each) for each in zip(*found, strict=True))
    return before, span


def _by_launch(spans: Spans, launch: Ints, lane: int) -> Ints:
    rows = np.flatnonzero(spans.lane == lane)
    return rows[np.argsort(launch[rows], kind="stable")]


def _with_recorded_events(
    spans: Spans, launch: Ints, best: Ints, edges: list[Edges], first_start: int, recorded: tuple[Ints, Ints]
) -> Ints:
    """Add recorded events; return the latest of all that each span waited for."""
    before, span = recorded
    start, end = spans.start_ns, spans.end_ns
    last = best.copy()
    np.maximum.at(last, span, np.minimum(end[before], start[span]))
    # What an event takes to start its stream again is kept where it was the last.
    taken = start[span] - end[before]
    bound = (end[before] == last[span]) & (start[span] - last[span] > OWN_NS) & (taken <= EVENT_WITHIN_NS)
    edges.append(
        edges_of(first_start + spans.lane.size + before, first_start + span, EVENT, RECORDED, np.where(bound, taken, 0))
    )
    last[span[bound]] = start[span[bound]]
    return last


def _with_events(
    spans: Spans, launch: Ints, best: Ints, waits: Flags, edges: list[Edges], first_start: int,
    made: StreamWaits | None, prepares: Flags,
) -> Ints:  # fmt: skip
    """Add inferred events; return the latest of all that each span waited for.

    `waits` says which spans launch and stream do not explain. `made` holds the waits that calls show; None where the
    recording states for what. Without it, an event is a dependency also where launch and stream explain the start: it
    did not bind. So is one that ended just before communication began, unless the order of calls shows what its event
    was recorded after.
    """
    start, end, count = spans.start_ns, spans.end_ns, spans.lane.size
    found = _ended_before(spans, launch, np.flatnonzero(waits | ((spans.kind == COMM) & (made is not None))))
    found = of_usual_stream(spans, launch, found, waits)
    if made is not None:
        found = _with_late_ends(spans, launch, made.span[waits[made.span]], found)
        known = awaited_spans(spans, launch, made, np.where(waits, found, -1))
        found[(known >= 0) & ~waits] = -1
        more = np.flatnonzero((known >= 0) & (known != found))
        after = np.where(waits, -1, _recorded_after(spans, made, prepares))
        how = np.where(known == after, ORDER, INFERRED)[more].astype(np.int8)
        edges.append(edges_of(first_start + count + known[more], first_start + more, EVENT, how, 0))
        by_order = np.flatnonzero((after >= 0) & (known < 0))
        found[by_order] = -1
        edges.append(edges_of(first_start + count + after[by_order], first_start + by_order, EVENT, ORDER, 0))
    has = np.flatnonzero(found >= 0)
    lag = np.where(waits[has], np.maximum(start[has] - end[found[has]], 0), 0)
    edges.append(edges_of(first_start + count + found[has], first_start + has, EVENT, INFERRED, lag))
    best = best.copy()
    best[has] = np.maximum(best[has], end[found[has]] + lag)
    return best


def _held_briefly(spans: Spans, launch: Ints, arrived: Ints, free: Ints, made: StreamWaits) -> Flags:
    """Return which spans a short one of another stream held: a call made their stream wait for an event, they had been
    launched long before, their stream was free, and they began as the other one ended.

    What lies between spans of a stream is jitter up to `OWN_NS` otherwise, and a call may well be as short as that.
    """
    start, held = spans.start_ns, np.zeros(launch.size, np.bool_)
    held[made.span] = start[made.span] - arrived[made.span] > OWN_NS
    asking = np.flatnonzero(held)
    before = _ended_before(spans, launch, asking, CLOCKS_AGREE_NS)[asking]
    ended = np.minimum(np.where(before >= 0, spans.end_ns[before], LONG_AGO), start[asking])
    held[asking] = (start[asking] - ended <= CLOCKS_AGREE_NS) & (ended - free[asking] > CLOCKS_AGREE_NS)
    return held


def _recorded_after(spans: Spans, made: StreamWaits, prepares: Flags) -> Ints:
    """Return for each communication, and for what prepares it (`prepares`), the span after which the order of calls
    shows that the event was recorded for which its stream was made to wait; else -1.

    Their threads record it on the stream that they launched to last: one that prepares communication, or the one with
    the most compute. After a launch on any other, such as of a copy, it may be of another stream.
    """
    found = np.full(spans.lane.size, -1, np.int64)
    after, of = made.recorded, made.span
    known = (after >= 0) & ((spans.kind[of] == COMM) | prepares[of]) & (spans.lane[after] != spans.lane[of])
    known &= spans.end_ns[after] <= spans.start_ns[of] + CLOCKS_AGREE_NS
    known &= prepares[after] | (
        spans.lane[after] == compute_lane(spans.lane, spans.kind, spans.end_ns - spans.start_ns)
    )
    found[of[known]] = after[known]
    return found


def _with_late_ends(spans: Spans, launch: Ints, waiting: Ints, found: Ints) -> Ints:
    """Return what each span waited for, also where its end was marked up to `CLOCKS_AGREE_NS` later: for spans whose
    stream a call made wait (`waiting`), and of which nothing ended as near before."""
    near = np.where(found >= 0, spans.start_ns - spans.end_ns[found], EVENT_WITHIN_NS)[waiting]
    asking = np.unique(waiting[near > CLOCKS_AGREE_NS])
    late = _ended_before(spans, launch, asking, CLOCKS_AGREE_NS)
    ends_late = (late >= 0) & (spans.end_ns[late] > spans.start_ns)
    return np.where(ends_late, late, found)


def _ended_before(spans: Spans, launch: Ints, asking: Ints, late_ns: int = ROUNDED_NS) -> Ints:
    """Return the span of another lane, launched and begun before, that ended last within `EVENT_WITHIN_NS` before, or
    up to `late_ns` later; else -1."""
    start, end, lane = spans.start_ns, spans.end_ns, spans.lane
    found = np.full(lane.size, -1, np.int64)
    by_end = sort_order(end)
    ends = end[by_end]
    at = np.searchsorted(ends, start[asking] + late_ns, side="right")
    for _ in range(LOOK_BACK):
        at = at - 1
        near = (at >= 0) & (ends[at] >= start[asking] - EVENT_WITHIN_NS)
        asking, at = asking[near], at[near]
        if not asking.size:
            break
        other = by_end[at]
        unknown = (launch[other] == NONE) | (launch[asking] == NONE)
        fits = (lane[other] != lane[asking]) & (unknown | (launch[other] < launch[asking])) & (other < asking)
        found[asking[fits]] = other[fits]
        asking, at = asking[~fits], at[~fits]
    return found


def _one_copy_at_a_time(spans: Spans, names: tuple[str, ...], first_start: int) -> list[Edges]:
    """Return edges from each copy between host and device to the next one of its direction, where several streams copy
    and no two of these copies ran at once: one engine carries them, and a replay must not run them beside each other.
    """
    edges = []
    copies = np.flatnonzero(spans.kind == COPY)  # spans are by start
    for direction in (TO_DEVICE, TO_HOST):
        own = copies[rows_named(spans.name[copies], names, direction.search)]
        start, end = spans.start_ns[own], spans.end_ns[own]
        apart = (start[1:] - np.maximum.accumulate(end)[:-1] >= -OVERLAPS_NS).all()
        if not apart or np.unique(spans.lane[own]).size < SEVERAL_STREAMS:
            continue
        follows = np.flatnonzero((spans.lane[own[1:]] != spans.lane[own[:-1]]) & (start[1:] >= end[:-1]))
        before, after = first_start + spans.lane.size + own[follows], first_start + own[follows + 1]
        edges.append(edges_of(before, after, EVENT, INFERRED, 0))
    return edges


def _is_full(spans: Spans, ready: Ints, start: Ints) -> Flags:
    """Return whether other spans ran for most of the time from `ready` to `start`."""
    busy = BusyTime(union((spans.start_ns, spans.end_ns))).within(ready, start)
    return np.asarray(busy >= FULL * (start - ready), np.bool_)


def _holder(spans: Spans, asking: Ints) -> Ints:
    """Return the span of another lane in whose last wave each of `asking` began; -1 for none.

    Communication is none: its kernels occupy few of a device's processors.
    """
    start, end, lane = spans.start_ns, spans.end_ns, spans.lane
    found = np.full(lane.size, -1, np.int64)
    by_end = sort_order(end)
    ends = end[by_end]
    at = np.searchsorted(ends, start[asking], side="right") - 1
    for _ in range(LOOK_BACK):
        at = at + 1
        there = at < ends.size
        asking, at = asking[there], at[there]
        if not asking.size:
            break
        other = by_end[at]
        left = ends[at] - start[asking]
        in_last_wave = left <= np.maximum(LAST_WAVE_NS, LAST_WAVE * (end[other] - start[other]))
        fits = (start[other] < start[asking]) & (lane[other] != lane[asking]) & in_last_wave
        fits &= spans.kind[other] != COMM
        found[asking[fits]] = other[fits]
        asking, at = asking[~fits], at[~fits]
    return found


def _opaque(
    calls: HostCalls, by: Ints, launched: Flags, follows: Flags, before: Ints, begin: Ints, occupied: Flags
) -> Small:
    """Return why a gap before each span is opaque, if one is left."""
    gap = np.full(by.size, NO_GAP, np.int8)
    gap[occupied] = OCCUPIED
    nodes = np.bincount(by[launched], minlength=calls.row.size)
    in_graph = launched & (np.append(calls.launches_graph | (nodes > 1), False)[by])
    lost = calls.lost_graphs_ns
    if lost.size:
        since = np.where(follows, begin[np.maximum(before, 0)], NONE)
        at = np.searchsorted(lost, begin, side="right") - 1
        in_graph |= launched & (at >= 0) & (lost[np.maximum(at, 0)] >= since)
    gap[in_graph] = IN_GRAPH
    gap[~follows] = FIRST_OF_LANE
    gap[~launched] = NOT_LAUNCHED
    return gap
