"""Which spans streams and hosts waited for, where calls show that they waited but not for what.

A call that lets a stream wait for an event names neither in most recordings. Where the wait bound, times show what it
was for; if all that bound point to the same stream, and no other wait contradicts it, then the waits that did not bind
were for that stream, too: a replay needs them as soon as something else takes longer.
"""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import LITTLE, compute_lane
from overlapscope.analysis.graph.building.host_calls import HostCalls
from overlapscope.analysis.graph.model import OWN_NS
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, HostSpans, Ints, Spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import ascending, factorize_rows, sort_order, sum_by, values_in

WAITS_FOR_EVENT: Final = re.compile(r"StreamWaitEvent")
"""cudaStreamWaitEvent, hipStreamWaitEvent, cuStreamWaitEvent, aclrtStreamWaitEvent."""
RECORDS_EVENT: Final = re.compile(r"EventRecord|RecordEvent")
CLOCKS_AGREE_NS: Final = 3_000
"""A span may seem to end this much after what waited for it."""
AGREE: Final = 0.9
"""Least share of the waits that bound which point to the last span of one stream."""
LIKE_WAITS: Final = 3
"""So many others of its like say for which stream a span waited, of several on which one had just ended. A choice."""


class StreamWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Spans before whose launch a call made their stream wait for an event; of several such calls the last."""

    span: Ints
    moment_ns: Ints
    """When the call began."""
    recorded: Ints
    """The span that the thread had launched last when it recorded an event before; -1 where no such call is known."""
    others_ns: Ints
    """When the other such calls began."""


def stream_waits(spans: Spans, calls: HostCalls, host: HostSpans, names: tuple[str, ...]) -> StreamWaits:
    """Return the waits that the runtime calls of one recording show."""
    rows, events = (
        np.flatnonzero(rows_named(host.name, names, each.search)) for each in (WAITS_FOR_EVENT, RECORDS_EVENT)
    )
    launches = values_in(calls.launched_by[calls.launched_by >= 0])
    if not rows.size or not launches.size:
        nothing = np.empty(0, np.int64)
        return StreamWaits(span=nothing, moment_ns=nothing, recorded=nothing, others_ns=host.start_ns[rows])
    # Threads follow each other on one axis, so that one search serves all.
    first_ns, end_ns = int(host.start_ns.min()), int(host.start_ns.max()) + 1

    def on_axis(lane: Ints, begin_ns: Ints) -> Ints:
        return lane.astype(np.int64) * (end_ns - first_ns) + begin_ns - first_ns

    rows, events = (each[sort_order(host.lane[each], host.start_ns[each])] for each in (rows, events))
    launched = on_axis(calls.lane[launches], calls.begin_ns[launches])
    at = np.searchsorted(launched, on_axis(host.lane[rows], host.start_ns[rows]))
    there = np.flatnonzero(at < launches.size)
    there = there[calls.lane[launches[at[there]]] == host.lane[rows[there]]]
    there = there[np.append(np.diff(at[there]) != 0, True)[: there.size]]
    others_ns = np.delete(host.start_ns[rows], there)
    rows, at = rows[there], at[there]
    span_of = np.full(calls.row.size + 1, -1, np.int64)
    span_of[calls.launched_by[::-1]] = np.arange(spans.lane.size)[::-1]  # the last assigned is the first that starts
    span_of[-1] = -1
    time = on_axis(host.lane[events], host.start_ns[events])
    event = np.searchsorted(time, on_axis(host.lane[rows], host.start_ns[rows]), side="right") - 1
    before = np.searchsorted(launched, np.append(time, -1)[event]) - 1
    before = np.append(launches, -1)[before]
    before = np.where(calls.lane[before] == host.lane[rows], before, -1)
    return StreamWaits(
        span=span_of[launches[at]], moment_ns=host.start_ns[rows], recorded=span_of[before], others_ns=others_ns
    )


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Spans on streams that only serve communication; one row for each span."""

    prepares: Flags
    """Communication follows, as that of a bucket which is copied together."""
    finishes: Flags
    """It waits for communication and no other follows, as a cast of reduced gradients."""


def serving_streams(spans: Spans, calls: HostCalls, waits: StreamWaits) -> Serving:
    """Return which spans are on streams that only serve communication: what a thread launches on them nearly always
    prepares it, as the thread launches communication next, or, on a stream that only computes, and little, finishes it,
    as the thread launched communication just before and then made the stream wait. Never the stream with the most
    compute, and none on which nothing prepares communication."""
    by = calls.launched_by
    launched = np.flatnonzero(by >= 0)
    launched = launched[sort_order(calls.lane[by[launched]], calls.begin_ns[by[launched]])]
    lane, thread = spans.lane[launched].astype(np.int64), calls.lane[by[launched]]
    # A row for each time that a thread launches to another stream than before.
    first = np.flatnonzero(np.append(True, (lane[1:] != lane[:-1]) | (thread[1:] != thread[:-1]))[: launched.size])
    same, sends = thread[first[1:]] == thread[first[:-1]], spans.kind[launched[first]] == COMM
    goes_on = np.append(same, False)[: first.size]
    prepares = goes_on & np.append(sends[1:], False)[: first.size]
    finishes = ~prepares & np.isin(launched[first], waits.span) & np.append(False, same & sends[:-1])[: first.size]
    lasted = spans.end_ns - spans.start_ns
    lanes, most = int(spans.lane.max(initial=-1)) + 1, compute_lane(spans.lane, spans.kind, lasted)
    computed_ns = sum_by(spans.lane[spans.kind == COMPUTE], lasted[spans.kind == COMPUTE], lanes)
    little = computed_ns <= LITTLE * computed_ns.max(initial=0)
    serves = np.zeros(lanes, np.bool_)
    for each in values_in(lane[first[prepares]]).tolist():
        own, kinds = lane[first] == each, spans.kind[spans.lane == each]
        # Of a copy the host may wait for the result.
        ends = finishes & (little[each] and bool((kinds == COMPUTE).all()))
        serves[each] = (
            each != most
            and not (kinds == COMM).any()
            and any((prepares | also)[own].sum() >= AGREE * (goes_on | also)[own].sum() for also in (False, ends))
        )
    finishing = np.zeros(spans.lane.size, np.bool_)
    finishing[launched] = np.repeat(finishes, np.diff(np.append(first, launched.size)))
    serving = serves[spans.lane]
    return Serving(prepares=serving & ~finishing, finishes=serving & finishing)


def asked_for(spans: Spans, launched: Flags, waits: StreamWaits, serves: Flags) -> Ints | None:
    """Return when calls made a stream wait for an event, but for the waits that each communication and what serves it
    (`serves`) make of their own before their launch, ascending; None where the recording shows no such calls.

    Of several calls before a launch the last is its own: of communication where all `launched` on its stream have one.
    """
    if not waits.span.size and not waits.others_ns.size:
        return None
    has = np.zeros(spans.lane.size, np.bool_)
    has[waits.span] = True
    own = serves.copy()
    for lane in values_in(spans.lane[spans.kind == COMM]).tolist():
        on_lane = (spans.lane == lane) & (spans.kind == COMM) & launched
        own[on_lane] = has[on_lane].all()
    return ascending(np.concatenate([waits.others_ns, waits.moment_ns[~own[waits.span]]]))


def awaited_spans(spans: Spans, launch: Ints, waits: StreamWaits, bound: Ints) -> Ints:
    """Return for each span the span of another stream that its stream was made to wait for; -1 where that is not known.

    `bound` holds for each span the one whose end explains its start, -1 for none; `launch` is when each was launched.
    Where no wait of a stream bound, its events were recorded on the stream to which their thread had launched last.
    """
    found = np.full(spans.lane.size, -1, np.int64)
    for lane in values_in(spans.lane[waits.span]).tolist():
        mine = spans.lane[waits.span] == lane
        waiting, moment_ns = waits.span[mine], waits.moment_ns[mine]
        shown = bound[waiting]
        if not (shown >= 0).any():
            shown = waits.recorded[mine]
        for awaited in values_in(spans.lane[shown[shown >= 0]]).tolist():
            last = _last_launched(spans, launch, awaited, moment_ns)
            if awaited != lane and _agree(last, shown, spans.end_ns, spans.start_ns[waiting]):
                found[waiting] = last
    return found


def of_usual_stream(spans: Spans, launch: Ints, found: Ints, waits: Flags) -> Ints:
    """Return what each span waited for; of spans of several streams that ended within `OWN_NS` of each other, that of
    the stream for which the others of its like, of its name and stream, waited.

    `found` holds the span of another stream that ended last before each span, -1 for none; `waits` which spans began at
    no other end or launch that is known. A copy of the next batch may end at any moment, also at this one.
    """
    asking = np.flatnonzero(waits & (found >= 0))
    if not asking.size:
        return found
    like, first = factorize_rows([spans.lane[asking], spans.name[asking]])
    lanes = values_in(spans.lane[found[asking]])
    votes = np.zeros((first.size, lanes.size), np.int64)
    np.add.at(votes, (like, np.searchsorted(lanes, spans.lane[found[asking]])), 1)
    usual, most, others = lanes[votes.argmax(axis=1)], votes.max(axis=1), votes.sum(axis=1) - 1
    agreed = (others >= LIKE_WAITS) & (most >= AGREE * others)
    odd = agreed[like] & (usual[like] != spans.lane[found[asking]])
    chosen = found.copy()
    for lane in values_in(usual[like[odd]]).tolist():
        mine = asking[odd & (usual[like] == lane)]
        last = _last_launched(spans, launch, lane, launch[mine])
        near = (spans.end_ns[last] <= spans.start_ns[mine]) & (spans.end_ns[last] >= spans.end_ns[found[mine]] - OWN_NS)
        tied = (last >= 0) & (launch[last] != NONE) & near
        chosen[mine[tied]] = last[tied]
    return chosen


def last_before_sync(spans: Spans, calls: HostCalls, launch: Ints, awaited: Ints) -> Ints:
    """Return for each synchronisation of a stream the span that it was for; -1 where that is not known, and for other
    calls.

    `awaited` holds the span whose end explains the end of each call; -1 for none. In a call of `OWN_NS` a span may
    have ended by chance.
    """
    found = np.full(calls.row.size, -1, np.int64)
    waiting = np.flatnonzero(calls.waits_for_stream)
    waited = np.where(calls.end_ns - calls.begin_ns > OWN_NS, awaited, -1)
    for process in values_in(calls.process[waiting]).tolist():
        mine = waiting[calls.process[waiting] == process]
        shown = waited[mine]
        for lane in values_in(spans.lane[shown[shown >= 0]]).tolist():
            last = _last_launched(spans, launch, lane, calls.begin_ns[mine])
            if _agree(last, shown, spans.end_ns, calls.end_ns[mine]):
                found[mine] = last
    return found


def _last_launched(spans: Spans, launch: Ints, lane: int, moment_ns: Ints) -> Ints:
    """Return the span that was launched last on a lane before each moment; -1 for none."""
    on_lane = np.flatnonzero(spans.lane == lane)
    on_lane = on_lane[np.argsort(launch[on_lane], kind="stable")]
    at = np.searchsorted(launch[on_lane], moment_ns, side="left")
    return np.append(on_lane, -1)[at - 1]


def _agree(last: Ints, shown: Ints, end_ns: Ints, until_ns: Ints) -> bool:
    """Return whether the waits that show what they were for were for `last`, and no wait was over before that ended."""
    outrun = (last >= 0) & (end_ns[last] > until_ns + CLOCKS_AGREE_NS)
    votes = shown >= 0
    return not outrun.any() and bool(np.mean(last[votes] == shown[votes]) >= AGREE)
