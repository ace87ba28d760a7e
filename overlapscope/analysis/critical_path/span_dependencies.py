"""Infer from times what each span of a rank waited for before it began; recordings seldom hold the waits.

A device span begins when its lane (stream) is free, its launch has arrived, and the spans on other lanes that it has to
wait for have ended: the latest of these is its dependency. A span on another lane can be a dependency only if it was
launched earlier, and only where the lane was idle before. The host does not wait, except for copies to the host and in
its recorded synchronization calls.
"""

from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.critical_path.span_windows import SpanWindow, Window, in_window
from overlapscope.analysis.per_rank.host_waits import LONG_AGO, NO_WAITS, HostWaits, host_waits
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints, Small
from overlapscope.timeline.rows import sort_order

BY_NOTHING, BY_LANE, BY_OTHER_LANE, BY_LAUNCH = range(4)
BACK_TO_BACK_NS: Final = 5_000
"""Spans of one lane with a smaller gap follow each other directly: the second waited for nothing else."""
LAUNCH_TAKES_AT_MOST_NS: Final = 20_000
"""Upper bound of the launch latency; the latency itself is measured as the shortest of the launches."""
QUICK_LAUNCHES: Final = 0.01
LOOK_BACK: Final = 32
"""Span ends that are checked, latest first, for a dependency on another lane."""


class SpanDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The spans in a window, sorted by start, with their dependencies. Positions (such as `on`) are in this order."""

    row: Ints
    """Row in the rank's `Spans`."""
    start_ns: Ints
    end_ns: Ints
    kind: Small
    own_call: Ints
    """Row of each span in the rank's `Collectives`; NONE for all but communication."""
    is_matched: Flags
    """Whether it is communication with a known last member."""
    by: Small
    """What the begin depended on: the span before it on its lane, one on another lane, its launch, or nothing."""
    on: Ints
    """The span that it depended on, for BY_LANE and BY_OTHER_LANE."""
    launch_ns: Ints
    arrived_ns: Ints
    """When its launch had arrived: launch time plus launch latency."""
    launched: Ints
    """Spans with a launch, sorted by launch."""
    launched_ns: Ints
    """Launch times of `launched`."""
    waits: HostWaits
    """The waits of the host."""
    by_end: Ints
    """All spans, sorted by end."""
    ended_ns: Ints
    """Ends of `by_end`."""
    computing_longest: Ints
    """For each position, the compute span up to it that ends last; NONE before the first."""
    call: Ints
    """Rows of `Collectives`, sorted ..."""
    call_span: Ints
    """... and the first span of each."""
    next_back: list[int]
    """The span that each depended on within its device; -1 for none, and for matched communication."""

    def chain(self, position: int) -> Ints:
        """Return a span, the span that it depended on, and so on to the end of the chain."""
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
        """Return the span that the host of a CPU run was in just before a moment, else the last ended; None before all.

        A compute span around the moment counts, unless another span ended in the same nanosecond. A communication span
        around it runs on another thread.
        """
        begun = int(np.searchsorted(self.start_ns, moment_ns, side="left"))
        ended = int(np.searchsorted(self.ended_ns, moment_ns, side="right"))
        last = int(self.by_end[ended - 1]) if ended else None
        if begun and (last is None or int(self.end_ns[last]) < moment_ns):
            around = int(self.computing_longest[begun - 1])
            if around != NONE and self.end_ns[around] > moment_ns:
                return around
        return last


def span_dependencies(
    around: SpanWindow, window: Window, calls_matched: Flags, *, has_device: bool
) -> SpanDependencies:
    """Return the dependencies of the spans that ran or were launched in [begin, end) on the rank's own clock.

    `around` holds at least these spans; `calls_matched` holds, for each of the rank's calls, whether its last member is
    known.
    """
    spans = around.spans
    row = np.flatnonzero(in_window(spans, window))
    row = row[sort_order(spans.start_ns[row], spans.end_ns[row])]
    start, end, kind = spans.start_ns[row], spans.end_ns[row], spans.kind[row]
    # On a CPU, compute is not launched; communication on a library's thread is.
    launch = spans.launch_ns[row] if has_device else np.where(kind == COMM, spans.launch_ns[row], NONE)
    arrived = _arrived(launch, start, on_device=has_device)
    before = _before_on_lane(spans.lane[row])
    free = np.where(before == NONE, LONG_AGO, np.minimum(end[np.maximum(before, 0)], start))
    floor = np.maximum(free, np.where(launch == NONE, LONG_AGO, arrived))
    may_wait = (start - free > BACK_TO_BACK_NS) & (has_device | (launch == NONE))
    by_end = sort_order(end)
    other = _on_other_lane(start, end[by_end], by_end, spans.lane[row], launch, floor, may_wait)
    by = np.where(
        other != NONE,
        BY_OTHER_LANE,
        np.where(floor == LONG_AGO, BY_NOTHING, np.where(free >= floor, BY_LANE, BY_LAUNCH)),
    )
    launched = np.flatnonzero(launch != NONE)
    launched = launched[sort_order(launch[launched])]
    ran = has_device and row.size > 0
    calls = around.begun_ns, around.ended_ns
    waits = host_waits(calls, around.to_host[row], spans.launch_ns[row], end, launched, by_end) if ran else NO_WAITS
    own_call = spans.collective[row]
    call, span = _spans_of_calls(own_call)
    is_matched = (kind == COMM) & np.append(calls_matched, False)[np.where(own_call == NONE, -1, own_call)]
    on = np.where(by == BY_OTHER_LANE, other, before)
    follows = ((by == BY_LANE) | (by == BY_OTHER_LANE)) & ~is_matched
    return SpanDependencies(
        row=around.rows(row), start_ns=start, end_ns=end, kind=kind, own_call=own_call, is_matched=is_matched,
        by=by.astype(np.int8), on=on, launch_ns=launch, arrived_ns=arrived,
        launched=launched, launched_ns=launch[launched], waits=waits,
        by_end=by_end, ended_ns=end[by_end], computing_longest=_longest(end, kind), call=call, call_span=span,
        next_back=np.where(follows, on, -1).tolist(),
    )  # fmt: skip


def _arrived(launch: Ints, start: Ints, *, on_device: bool) -> Ints:
    """Return when each launch had arrived: launch plus the shortest launch latency (1 % quantile, without outliers)."""
    linked = launch != NONE
    if not on_device or not linked.any():
        return np.where(linked, np.minimum(launch, start), NONE)
    shortest = int(np.quantile((start - launch)[linked], QUICK_LAUNCHES, method="lower"))
    takes = min(max(shortest, 0), LAUNCH_TAKES_AT_MOST_NS)
    return np.where(linked, np.minimum(launch + takes, start), NONE)


def _before_on_lane(lane: Ints) -> Ints:
    """Return for each span the one before it on its lane; NONE for the first."""
    by_lane = sort_order(lane)
    before = np.full(lane.size, NONE, np.int64)
    same = lane[by_lane[1:]] == lane[by_lane[:-1]]
    before[by_lane[1:][same]] = by_lane[:-1][same]
    return before


def _on_other_lane(
    start: Ints, ends: Ints, by_end: Ints, lane: Ints, launch: Ints, floor: Ints, may_wait: Flags
) -> Ints:
    """Return for each span the one on another lane, launched before it, that ended last after `floor`; else NONE."""
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
    with_call = np.flatnonzero(collective != NONE)
    calls, first = np.unique(collective[with_call], return_index=True)
    return calls, with_call[first]
