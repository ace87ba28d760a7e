"""What each span of a rank waited for before it began, inferred from times: recordings seldom hold the waits.

A device span begins when its lane is free, when its launch has arrived, and when what it was told to wait for on other
lanes has ended: the latest of these decided. A span on another lane can only have been waited for if it was launched
before, and is asked only where the lane lay idle. The host goes on by itself, but for what it waits for: copies to it,
and what its recorded calls of synchronisation wait for.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.host_waits import LONG_AGO, NO_WAITS, HostWaits, host_waits
from overlapscope.analysis.span_windows import Around, Window, in_window
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Ints, Small
from overlapscope.timeline.rows import order_of

BY_NOTHING, BY_LANE, BY_OTHER_LANE, BY_LAUNCH = range(4)
BACK_TO_BACK_NS: Final = 5_000
"""Spans of one lane with less between them follow each other: nothing else held the second."""
LAUNCH_TAKES_AT_MOST_NS: Final = 20_000
"""A launch arrives within this; what it takes at least is seen from the launches themselves."""
QUICK_LAUNCHES: Final = 0.01
LOOK_BACK: Final = 32
"""Ends on other lanes that are looked at, latest first, for one that could have been waited for."""
Mask = npt.NDArray[np.bool_]


class Awaited(msgspec.Struct, frozen=True, kw_only=True):
    """The spans that matter in a window, by their start. `on`, and what the host waited for, are positions in these."""

    row: Ints
    """Row in the rank's `Spans`."""
    start_ns: Ints
    end_ns: Ints
    kind: Small
    own_call: Ints
    """Row of each in the rank's `Collectives`; NONE for all but communication."""
    is_matched: Mask
    """Communication whose last member is known."""
    by: Small
    """What decided when the span began: the span before it on its lane, one on another lane, its launch, or nothing."""
    on: Ints
    """The span that it waited for, where it was one."""
    launch_ns: Ints
    arrived_ns: Ints
    """When its launch had arrived: launched, and what a launch takes."""
    launched: Ints
    """Spans with a launch, by launch."""
    launched_ns: Ints
    """Their launches."""
    waits: HostWaits
    """What the host waited for."""
    by_end: Ints
    """All spans, by their end."""
    ended_ns: Ints
    """Their ends."""
    computing_longest: Ints
    """Of all computing spans up to each position, the one that ends last; NONE before the first."""
    call: Ints
    """Rows of `Collectives`, sorted ..."""
    call_span: Ints
    """... and the first span of each."""
    next_back: list[int]
    """The span that each waited for on its device, -1 where it was none, and for matched communication."""

    def chain(self, position: int) -> Ints:
        """Return a span, the one that it waited for, and so on."""
        found = [position]
        back = self.next_back
        while (position := back[position]) >= 0:
            found.append(position)
        return np.array(found, np.int64)

    def span_of(self, call: int) -> int | None:
        """Return a call's first span; None where it is not among these."""
        at = int(np.searchsorted(self.call, call))
        return int(self.call_span[at]) if at < self.call.size and self.call[at] == call else None

    def on_host_before(self, moment_ns: int) -> int | None:
        """Return the span of a CPU run that its host was in just before a moment, or that ended last; None before all.

        What computes around the moment counts, unless something ended in that very nanosecond; what communicates
        around it does so beside the host.
        """
        begun = int(np.searchsorted(self.start_ns, moment_ns, side="left"))
        ended = int(np.searchsorted(self.ended_ns, moment_ns, side="right"))
        last = int(self.by_end[ended - 1]) if ended else None
        if begun and (last is None or int(self.end_ns[last]) < moment_ns):
            around = int(self.computing_longest[begun - 1])
            if around != NONE and self.end_ns[around] > moment_ns:
                return around
        return last


def awaited(around: Around, window: Window, calls_matched: Mask, *, has_device: bool) -> Awaited:
    """Return what was running, or was launched, in [begin, end) on the rank's own clock.

    `around` holds that at least; `calls_matched` says of each of the rank's calls whether the last member is known.
    """
    spans = around.spans
    row = np.flatnonzero(in_window(spans, window))
    row = row[order_of(spans.start_ns[row], spans.end_ns[row])]
    start, end, kind = spans.start_ns[row], spans.end_ns[row], spans.kind[row]
    # A thread that computes was not launched; a library's thread that communicates was.
    launch = spans.launch_ns[row] if has_device else np.where(kind == COMM, spans.launch_ns[row], NONE)
    arrived = _arrived(launch, start, on_device=has_device)
    before = _before_on_lane(spans.lane[row])
    free = np.where(before == NONE, LONG_AGO, np.minimum(end[np.maximum(before, 0)], start))
    floor = np.maximum(free, np.where(launch == NONE, LONG_AGO, arrived))
    may_wait = (start - free > BACK_TO_BACK_NS) & (has_device | (launch == NONE))
    by_end = order_of(end)
    other = _on_other_lane(start, end[by_end], by_end, spans.lane[row], launch, floor, may_wait)
    by = np.where(
        other != NONE,
        BY_OTHER_LANE,
        np.where(floor == LONG_AGO, BY_NOTHING, np.where(free >= floor, BY_LANE, BY_LAUNCH)),
    )
    launched = np.flatnonzero(launch != NONE)
    launched = launched[order_of(launch[launched])]
    ran = has_device and row.size > 0
    calls = around.begun_ns, around.ended_ns
    waits = host_waits(calls, around.to_host[row], spans.launch_ns[row], end, launched, by_end) if ran else NO_WAITS
    own_call = spans.collective[row]
    call, span = _spans_of_calls(own_call)
    is_matched = (kind == COMM) & np.append(calls_matched, False)[np.where(own_call == NONE, -1, own_call)]
    on = np.where(by == BY_OTHER_LANE, other, before)
    follows = ((by == BY_LANE) | (by == BY_OTHER_LANE)) & ~is_matched
    return Awaited(
        row=around.rows(row), start_ns=start, end_ns=end, kind=kind, own_call=own_call, is_matched=is_matched,
        by=by.astype(np.int8), on=on, launch_ns=launch, arrived_ns=arrived,
        launched=launched, launched_ns=launch[launched], waits=waits,
        by_end=by_end, ended_ns=end[by_end], computing_longest=_longest(end, kind), call=call, call_span=span,
        next_back=np.where(follows, on, -1).tolist(),
    )  # fmt: skip


def _arrived(launch: Ints, start: Ints, *, on_device: bool) -> Ints:
    """Return when each launch had arrived. What launches take at least is their shortest way, outliers apart."""
    linked = launch != NONE
    if not on_device or not linked.any():
        return np.where(linked, np.minimum(launch, start), NONE)
    shortest = int(np.quantile((start - launch)[linked], QUICK_LAUNCHES, method="lower"))
    takes = min(max(shortest, 0), LAUNCH_TAKES_AT_MOST_NS)
    return np.where(linked, np.minimum(launch + takes, start), NONE)


def _before_on_lane(lane: Ints) -> Ints:
    """Return for each span the one before it on its lane; NONE for the first."""
    by_lane = order_of(lane)
    before = np.full(lane.size, NONE, np.int64)
    same = lane[by_lane[1:]] == lane[by_lane[:-1]]
    before[by_lane[1:][same]] = by_lane[:-1][same]
    return before


def _on_other_lane(
    start: Ints, ends: Ints, by_end: Ints, lane: Ints, launch: Ints, floor: Ints, may_wait: Mask
) -> Ints:
    """Return for each span the latest end on another lane after `floor`, of what was launched before it; else NONE."""
    found = np.full(start.size, NONE, np.int64)
    asking = np.flatnonzero(may_wait)
    at = np.searchsorted(ends, start[asking], side="right")
    for _ in range(LOOK_BACK):
        at -= 1
        late = (at >= 0) & (ends[at] > floor[asking])
        asking, at = asking[late], at[late]
        if not asking.size:
            break
        other = by_end[at]
        in_order = (launch[other] == NONE) | (launch[asking] == NONE) | (launch[other] <= launch[asking])
        fits = (lane[other] != lane[asking]) & in_order & (other < asking)  # by start: no two wait for each other
        found[asking[fits]] = other[fits]
        asking, at = asking[~fits], at[~fits]
    return found


def _longest(end: Ints, kind: Small) -> Ints:
    computes = np.where(kind == COMPUTE, end, LONG_AGO)
    longest = np.maximum.accumulate(computes)
    is_longest = (computes == longest) & (computes != LONG_AGO)
    at: Ints = np.maximum.accumulate(np.where(is_longest, np.arange(end.size), NONE))
    return at


def _spans_of_calls(collective: Ints) -> tuple[Ints, Ints]:
    told = np.flatnonzero(collective != NONE)
    calls, first = np.unique(collective[told], return_index=True)
    return calls, told[first]
