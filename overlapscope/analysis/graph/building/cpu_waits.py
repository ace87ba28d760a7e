"""What the spans of a CPU run waited for: host operations in the order of their threads, collectives on worker threads.

A thread waits for a collective without a call of any runtime: its operations that wait are no compute. So a gap between
two operations in which a collective ended, that was begun before, was a wait for it until then. What the thread did
between that end and its next operation is its own: Python, sleep, or no core. It follows from the collective all the
same.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.building.device_waits import before_on_lane
from overlapscope.analysis.graph.building.host_calls import CALL_TAKES_NS, SILENCE_NS
from overlapscope.analysis.graph.model import (
    HAND_OVER,
    HOST_STRETCH,
    INFERRED,
    LAUNCH,
    NO_GAP,
    NOT_LAUNCHED,
    ON_LANE,
    ORDER,
    OWN_NS,
    RECORDED,
    RUN_COMPUTE,
    SYNC,
    Edges,
    edges_of,
)
from overlapscope.timeline.columns import COMM, NONE, Flags, Ints, Small, Spans
from overlapscope.timeline.rows import unique, values_in

LOOK_BACK: Final = 80
WOKEN_NS: Final = 5_000_000
"""gloo wakes who waits for a call before it marks its end, and either may lose its core for a turn: the operation that
follows may begin so much later than the end, ..."""
OF_PAUSE: Final = 0.1
"""... but for no more than this share of the pause before it; ..."""
MARKED_NS: Final = 10_000_000
"""... or so much earlier, as the thread that marks the end may lose its core twice, ..."""
OF_WAIT: Final = 0.15
"""... for no more than this share of the pause."""
OF_TURN: Final = 0.5
"""What is left of a pause after the last call that ended in it, if it lasts for a turn (WOKEN_NS) or more: the mark may
be a turn late, but no more than this share of it."""
OF_OPEN: Final = 0.05
"""A thread that waits for a message goes on at once if it does so after this share of the time for which it was open,
..."""
AT_ONCE_NS: Final = 1_000_000
"""... up to so much: Python, such as that of a pipeline's schedule, is in that. What is at most so little of it cannot
decide the step."""


class CpuWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Edges of a CPU run, and the moments at which its threads began collectives: calls without length."""

    edges: list[Edges]
    gap: Small
    begun_ns: Ints
    launched_by: Ints
    """For each span the moment that began it; -1 without a record, and for operations."""


def cpu_waits(spans: Spans) -> CpuWaits:
    """Return what the spans of one recording (by start) waited for.

    Nodes are numbered as in a graph of these moments and spans: call begins, call ends, span starts, span ends.
    """
    came, spans = _come_before(spans), replace(spans, lane=_lanes(spans))
    start, end, count = spans.start_ns, spans.end_ns, spans.lane.size
    works = np.flatnonzero(spans.kind != COMM)
    begun = np.flatnonzero((spans.kind == COMM) & (spans.launch_ns != NONE))
    launched_by = np.full(count, -1, np.int64)
    launched_by[begun] = np.arange(begun.size)
    starts, ends = 2 * begun.size, 2 * begun.size + count
    before = before_on_lane(spans.lane)
    at = np.arange(count)

    follows = (before >= 0) & (spans.kind != COMM)
    prev = np.maximum(before, 0)
    pause = np.maximum(start - end[prev], 0)
    awaited = _awaited(spans, np.flatnonzero(follows & (pause > OWN_NS)), prev, came)
    handed = _handed(spans, works, before)
    stretch = np.where(handed >= 0, 0, np.where(awaited >= 0, np.minimum(pause, CALL_TAKES_NS), pause))
    waits, over = np.flatnonzero(awaited >= 0), np.flatnonzero(handed >= 0)
    lag = start[waits] - end[awaited[waits]]

    queued = (before >= 0) & (spans.kind == COMM)
    moment = spans.launch_ns[begun]
    free = np.where(queued, end[prev], NONE)[begun]
    taken = np.maximum(start[begun] - moment, 0)
    idle_lane = free <= moment  # then the start took as long as its thread took to wake
    quickest = int(taken[idle_lane].min()) if idle_lane.any() else 0
    behind = queued & (spans.launch_ns != NONE) & (end[prev] > spans.launch_ns)
    gap = np.full(count, NO_GAP, np.int8)
    gap[(launched_by < 0) & (before < 0)] = NOT_LAUNCHED
    gap[(launched_by < 0) & (spans.kind == COMM)] = NOT_LAUNCHED
    edges = [
        edges_of(ends + prev[follows], starts + at[follows], HOST_STRETCH, ORDER, stretch[follows]),
        edges_of(
            ends + awaited[waits], starts + waits,
            # Where another thread went on meanwhile, both bind: of the two the wait is shown.
            np.where(handed[waits] < 0, _after(lag, pause[waits]), np.int8(SYNC)), INFERRED, lag,
        ),
        edges_of(ends + handed[over], starts + over, HAND_OVER, INFERRED, start[over] - end[handed[over]]),
        edges_of(ends + prev[queued], starts + at[queued], ON_LANE, ORDER, np.where(behind, pause, 0)[queued]),
        edges_of(np.arange(begun.size), begun.size + np.arange(begun.size), HOST_STRETCH, RECORDED, 0),
        edges_of(
            begun.size + np.arange(begun.size), starts + begun, LAUNCH, RECORDED,
            np.where(idle_lane, taken, np.minimum(taken, quickest)),
        ),
        *_moments(spans, works, moment, starts, ends, came),
    ]  # fmt: skip
    return CpuWaits(edges=edges, gap=gap, begun_ns=moment, launched_by=launched_by)


def _come_before(spans: Spans) -> Flags:
    """Return which messages (of spans by start) had come before their thread waited for them, which then went on at
    once: gloo marks their end only there, and nothing followed it."""
    messages, found = _in_flight(spans), np.zeros(spans.lane.size, np.bool_)
    for lane in values_in(spans.lane[messages]).tolist():
        own = messages[spans.lane[messages] == lane]
        worked = np.append(NONE, np.sort(spans.end_ns[(spans.lane == lane) & (spans.kind != COMM)]))
        ends = np.append(NONE, np.sort(spans.end_ns[own]))
        came = worked[np.searchsorted(worked, spans.end_ns[own], side="right") - 1]
        # Of several messages the thread waits for one after the other.
        free = np.maximum(came, ends[np.searchsorted(ends, spans.end_ns[own], side="left") - 1])
        known = came > spans.start_ns[own]  # also of NONE, with which nothing may be computed
        own, opened, late = own[known], (came - spans.start_ns[own])[known], (spans.end_ns[own] - free)[known]
        found[own[late <= np.clip(OF_OPEN * opened, SILENCE_NS, AT_ONCE_NS)]] = True
    return found


def _in_flight(spans: Spans) -> Ints:
    """Return the messages of a CPU rank (its spans are by start) beside which their thread went on."""
    before = before_on_lane(spans.lane)
    went_on = (before >= 0) & (spans.start_ns + OWN_NS < spans.end_ns[np.maximum(before, 0)])
    followed = unique(before[went_on])
    messages: Ints = followed[spans.kind[followed] == COMM]
    return messages


def _lanes(spans: Spans) -> Ints:
    """Return the lanes of the spans (by start), with one of its own for each message in which its thread went on.

    Such a message does not block, and lasts until it is waited for: what its thread did next did not follow its end.
    """
    messages = _in_flight(spans)
    lane = spans.lane.astype(np.int64)
    lane[messages] = int(lane.max(initial=0)) + 1 + np.arange(messages.size)
    return lane


def _moments(spans: Spans, works: Ints, moment: Ints, starts: int, ends: int, came: Flags) -> list[Edges]:
    """Return the edges that lead to the moments at which collectives began: in an operation, or after one; `came` are
    messages that nothing waited for."""
    if not works.size:
        return []
    # Operations may follow on one another without a gap: what begins comes after what ends.
    lasting = works[spans.end_ns[works] > spans.start_ns[works]]
    times = np.concatenate([spans.end_ns[works], spans.start_ns[lasting]])
    node = np.concatenate([ends + works, starts + lasting])
    order = np.argsort(times, kind="stable")
    at = np.searchsorted(times[order], moment, side="right") - 1
    there = np.flatnonzero(at >= 0)
    before = order[at[there]]
    inside = before >= works.size
    kind = np.where(inside, RUN_COMPUTE, HOST_STRETCH).astype(np.int8)
    taken = moment[there] - times[before]
    # Between operations a thread may have waited for a collective, and then begin the next one at once. Where it went
    # on for longer than it can have waited, it did something else, which was not recorded.
    comm = np.flatnonzero((spans.kind == COMM) & ~came)
    by_end = comm[np.argsort(spans.end_ns[comm], kind="stable")]
    last = np.searchsorted(spans.end_ns[by_end], moment[there], side="right") - 1
    awaited = by_end[np.maximum(last, 0)] if by_end.size else there
    ended = np.where(last >= 0, spans.end_ns[awaited], NONE)
    after = moment[there] - ended
    at_once = after <= np.maximum(ended - times[before], SILENCE_NS)
    earlier = spans.start_ns[awaited] < moment[there]  # a collective without length does not wait for itself
    waits = np.flatnonzero(~inside & (taken > OWN_NS) & (ended > times[before]) & at_once & earlier)
    taken[waits] = np.minimum(taken[waits], CALL_TAKES_NS)
    return [
        edges_of(node[before], there, kind, ORDER, taken),
        edges_of(ends + awaited[waits], there[waits], _after(after[waits], 0), INFERRED, after[waits]),
    ]


def _awaited(spans: Spans, asking: Ints, previous: Ints, came: Flags) -> Ints:
    """Return the collective, begun before, that each of `asking` waited for in the gap before it; -1 for none.

    It is the one that ended last in the gap, if that was at its end; else, if there is one, the first whose end was
    marked soon after: a thread that waits for several goes on after each.
    """
    pause = spans.start_ns[asking] - spans.end_ns[previous[asking]]
    found = _nearest_end(spans, asking, previous, np.zeros_like(pause), came, later=False)
    none = found[asking] < 0
    apart = spans.start_ns[asking] - spans.end_ns[found[asking]] > np.maximum(OF_PAUSE * pause, SILENCE_NS)
    rest = np.where(none, pause, spans.start_ns[asking] - spans.end_ns[found[asking]])
    turn = np.where(rest >= WOKEN_NS, np.minimum(OF_TURN * rest, WOKEN_NS), 0.0)
    within = np.maximum(np.minimum(OF_WAIT * pause, MARKED_NS), turn).astype(np.int64)[none | apart]
    marked_later = _nearest_end(spans, asking[none | apart], previous, within, came, later=True)
    return np.where(marked_later >= 0, marked_later, found)


def _nearest_end(spans: Spans, asking: Ints, previous: Ints, within_ns: Ints, came: Flags, *, later: bool) -> Ints:
    """Return the collective, begun before, that ended last in the gap before each of `asking`; or, if `later`, the
    first that ended after the gap, up to so much later. -1 for none."""
    found = np.full(spans.lane.size, -1, np.int64)
    comm = np.flatnonzero((spans.kind == COMM) & ~came)
    by_end = comm[np.argsort(spans.end_ns[comm], kind="stable")]
    ends = spans.end_ns[by_end]
    step = 1 if later else -1
    at = np.searchsorted(ends, spans.start_ns[asking], side="right") - (not later)
    for _ in range(LOOK_BACK):
        there = (at >= 0) & (at < ends.size)
        asking, at, within_ns = asking[there], at[there], within_ns[there]
        inside = (ends[at] > spans.end_ns[previous[asking]]) & (ends[at] <= spans.start_ns[asking] + within_ns)
        asking, at, within_ns = asking[inside], at[inside], within_ns[inside]
        if not asking.size:
            break
        other = by_end[at]
        fits: Flags = (spans.lane[other] != spans.lane[asking]) & (other < asking)
        found[asking[fits]] = other[fits]
        asking, at, within_ns = asking[~fits], at[~fits] + step, within_ns[~fits]
    return found


def _after(lag_ns: Ints, pause_ns: Ints | int) -> Small:
    """Return the kind of edges from the ends of collectives that were waited for to what their thread did next.

    gloo wakes a thread before it marks the end. A silence after it is no wait but a pause of the host, unless it is
    short beside the whole pause of the thread.
    """
    woken = np.minimum(OF_PAUSE * np.asarray(pause_ns), WOKEN_NS)
    return np.where(lag_ns < np.maximum(woken, SILENCE_NS), SYNC, HOST_STRETCH).astype(np.int8)


def _handed(spans: Spans, works: Ints, before: Ints) -> Ints:
    """Return for each operation after a silence of its thread that of another which ended last before it; else -1."""
    found = np.full(spans.lane.size, -1, np.int64)
    last_own = np.where(before >= 0, spans.end_ns[np.maximum(before, 0)], NONE)
    silent = works[(before[works] < 0) | (spans.start_ns[works] - last_own[works] >= SILENCE_NS)]
    by_end = works[np.argsort(spans.end_ns[works], kind="stable")]
    at = np.searchsorted(spans.end_ns[by_end], spans.start_ns[silent], side="right") - 1
    other = by_end[np.maximum(at, 0)] if by_end.size else silent
    fits = (at >= 0) & (spans.lane[other] != spans.lane[silent]) & (spans.end_ns[other] > last_own[silent])
    found[silent[fits]] = other[fits]
    return found
