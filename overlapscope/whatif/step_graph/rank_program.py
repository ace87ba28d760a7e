"""Derive the programme of one rank's step from the times of its compute and its collectives.

A stretch without compute in which a collective ended is a wait for it. Where a collective ended while the rank
computed, no wait was recorded: `needed_times` then infers from the kind of collective when its result is needed, at the
latest.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime, Intervals, complement, intersection
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.replay.graph import Busy, Call, Item, LateEnd
from overlapscope.whatif.replay.replay import Gap, Launch, Wait

LEAST_STALL_NS: Final = 10_000
"""Shorter gaps between kernels are normal and do not count as stalls."""
TOGETHER_NS: Final = 10_000
"""Collectives whose ends differ by no more count as ending together."""
SEEN_LATE: Final = 0.05
"""A collective may be recorded as ending after its wait by this share of the wait ..."""
SEEN_LATE_NS: Final = 50_000
"""... plus this time, because a callback marks its end, and clock offsets are estimated."""


class RankTimes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The recorded times of one rank in a step, in ns from the start of the first rank."""

    on_device: bool
    start_ns: int
    end_ns: int
    busy: Intervals
    moving: Intervals
    """When its collectives moved data."""
    call: Ints
    """Call numbers of its collectives; the following arrays have the same order."""
    launch_ns: Ints
    """When compute reached the launch of the call."""
    end_of_call_ns: Ints
    """When this rank saw the call end ..."""
    done_ns: Ints
    """... and when it had ended for all ranks: a rank may wake up later."""
    needed_ns: Ints
    """From when on compute needs the result, where no stall shows it; NONE for never."""
    span_start_ns: Ints
    """Launch of each compute span by the host, in the order of `span_start_ns`; NONE where the host itself computes."""
    span_launch_ns: Ints


class _Stall(msgspec.Struct, frozen=True):
    start: int
    end: int
    calls: Ints
    """Indices of the collectives that are waited for."""


def rank_program(lane: RankTimes) -> tuple[Item, ...]:
    """Return the programme of a rank: its compute, gaps, launches and waits, in order."""
    items = list(_merged(_items(lane)))
    return tuple(items if lane.on_device else _handed_over(items))


def _handed_over(items: list[Item]) -> Iterator[Item]:
    """Remove a host's gaps between a launch and its wait, where nothing is between: the thread was inside the call.

    Such a gap depends on the transfer, which uses the core that the thread needs.
    """
    gone: set[int] = set()
    for at, each in enumerate(items):
        if isinstance(each, Launch):
            follows = next((k for k in range(at + 1, len(items)) if isinstance(items[k], Launch | Wait)), None)
            if follows is not None and items[follows] == Wait(each.collective):
                gone.update(range(at + 1, follows))
    return (each for at, each in enumerate(items) if at not in gone or not isinstance(each, Gap))


def _items(lane: RankTimes) -> Iterator[Item]:
    stalls, waited = _stalls(lane)
    marks: list[tuple[int, int, int]] = []
    """(time, kind, index): kind 0 is a wait, 1 a stall, 2 a launch, 3 a wait after launches at the same instant, 4 the
    end; index of the call or of the stall."""
    inside: list[list[int]] = [[] for _ in stalls]
    starts = np.array([each.start for each in stalls], np.int64)
    for place, at in enumerate(lane.launch_ns.tolist()):
        number = int(np.searchsorted(starts, at, side="right")) - 1
        if number >= 0 and at < stalls[number].end:
            inside[number].append(place)
        else:
            marks.append((at, 2, place))
    ends = np.array([each.end for each in stalls], np.int64)
    for place in np.flatnonzero(~waited & (lane.needed_ns != NONE) & (lane.needed_ns <= lane.end_ns)).tolist():
        at = max(int(lane.needed_ns[place]), int(lane.launch_ns[place]))
        number = int(np.searchsorted(starts, at, side="right")) - 1
        at = int(ends[number]) if number >= 0 and at < ends[number] else at
        # At the same instant a launch comes before its wait.
        marks.append((at, 0 if at > lane.launch_ns[place] else 3, place))
    marks += [(each.start, 1, number) for number, each in enumerate(stalls)]
    marks.sort()
    marks.append((lane.end_ns, 4, 0))
    times = np.unique([0, *(each[0] for each in marks), *ends.tolist()])
    place_of = {time: at for at, time in enumerate(times.tolist())}
    busy = BusyTime(lane.busy).before(times).tolist()
    beside = BusyTime(intersection(lane.busy, lane.moving)).before(times).tolist()
    now = 0
    for at, kind, place in marks:
        if at > now:
            first, last = place_of[now], place_of[at]
            worked = busy[last] - busy[first]
            if worked:
                yield Busy(ns=float(worked), beside_ns=float(beside[last] - beside[first]))
            yield Gap(float(at - now - worked))
            now = at
        if kind == 2:
            yield Launch(int(lane.call[place]))
        elif kind in (0, 3):
            yield Wait(int(lane.call[place]))
        elif kind == 1:
            yield from _stall_items(lane, stalls[place], inside[place])
            now = stalls[place].end


def _stall_items(lane: RankTimes, stall: _Stall, launched: list[int]) -> Iterator[Item]:
    """Yield the items of a stall: launches during it, the host's time, the waits, and the remaining gap."""
    latest = min(max(int(lane.done_ns[stall.calls].max()), stall.start), stall.end)
    launched = sorted(launched, key=lambda place: int(lane.launch_ns[place]))
    needed_times = set(stall.calls.tolist())
    before = [each for each in launched if lane.launch_ns[each] < latest or each in needed_times]
    now = stall.start
    for place in before:
        at = min(max(int(lane.launch_ns[place]), now), latest)
        yield Gap(float(at - now))
        yield Launch(int(lane.call[place]))
        now = at
    host = _host_until(lane, stall)
    yield Gap(float(max(host - now, 0)))
    now = max(now, host)
    for place in stall.calls.tolist():
        yield Wait(int(lane.call[place]))
    now = max(now, latest)
    seen = min(int(lane.end_of_call_ns[stall.calls].max()), stall.end)
    if seen > now and not lane.on_device:
        yield LateEnd(ns=float(seen - now), collective=int(lane.call[stall.calls[-1]]))
        now = seen
    for place in [each for each in launched if each not in before]:
        at = max(int(lane.launch_ns[place]), now)
        yield Gap(float(at - now))
        yield Launch(int(lane.call[place]))
        now = at
    yield Gap(float(max(stall.end - now, 0)))


def _host_until(lane: RankTimes, stall: _Stall) -> int:
    """Return when the host had launched the compute after a stall: the device could not continue before that."""
    at = int(np.searchsorted(lane.span_start_ns, stall.end, side="left"))
    if at == lane.span_start_ns.size or lane.span_launch_ns[at] == NONE:
        return stall.start
    return int(min(max(lane.span_launch_ns[at], stall.start), stall.end))


def _stalls(lane: RankTimes) -> tuple[list[_Stall], Flags]:
    """Return the stalls (a collective that was launched before ended in it), and which collectives have one."""
    waited = np.zeros(lane.call.size, np.bool_)
    free = complement(lane.busy, lane.start_ns, lane.end_ns)
    if not lane.on_device:
        free = _cut(free, lane.launch_ns)
    if not free.starts.size or not lane.call.size:
        return [], waited
    ended = lane.end_of_call_ns
    lasted = free.ends - free.starts
    late = np.minimum(lasted * SEEN_LATE, SEEN_LATE_NS * 20).astype(np.int64) + SEEN_LATE_NS * (lasted > SEEN_LATE_NS)
    number = np.searchsorted(free.starts, ended, side="left") - 1
    at = np.maximum(number, 0)
    # A call that was launched before a cut and ends just after it was waited for before the cut.
    cut = (at > 0) & (free.ends[at - 1] == free.starts[at]) & (ended - free.starts[at] <= SEEN_LATE_NS)
    at = np.where(cut & (lane.launch_ns < free.starts[at]), at - 1, at)
    found = (number >= 0) & (ended <= free.ends[at] + late[at]) & (ended > free.starts[at])
    found &= (lasted[at] >= LEAST_STALL_NS) & (lane.launch_ns < free.ends[at])
    # Of several calls that ended in a stall, only the last is known to have been waited for.
    last = np.full(free.starts.size, NONE, np.int64)
    np.maximum.at(last, at[found], ended[found])
    found &= ended >= last[at] - TOGETHER_NS
    waited |= found
    stalls = []
    for each in np.unique(at[found]).tolist():
        calls = np.flatnonzero(found & (at == each))
        stalls.append(_Stall(int(free.starts[each]), int(free.ends[each]), calls[np.argsort(ended[calls])]))
    return stalls, waited


def _cut(free: Intervals, launch_ns: Ints) -> Intervals:
    """Split gaps at launches inside them: a thread that launches is not waiting."""
    at = np.searchsorted(free.starts, launch_ns, side="right") - 1
    inside = launch_ns[(at >= 0) & (launch_ns < free.ends[at]) & (launch_ns > free.starts[at])] if at.size else at
    cuts = np.unique(inside)
    return Intervals(np.sort(np.concatenate((free.starts, cuts))), np.sort(np.concatenate((free.ends, cuts))))


def _merged(items: Iterator[Item]) -> Iterator[Item]:
    """Drop gaps of no time, and join adjacent gaps."""
    gap = 0.0
    for each in items:
        if isinstance(each, Gap):
            gap += each.ns
            continue
        if gap:
            yield Gap(gap)
            gap = 0.0
        yield each
    if gap:
        yield Gap(gap)


def needed_times(
    timeline: RankTimeline,
    calls: Sequence[Call],
    launch_ns: Ints,
    end_of_call_ns: Ints,
    span_start_ns: Ints,
    busy: Intervals,
    end_ns: int,
    zero_ns: int,
) -> Ints:
    """Return for each of a rank's calls when its result is needed, in ns; never before it ended. NONE for never.

    Reduced gradients are needed by the next reduce-scatter (FSDP2 then frees its buffer), at the latest by the
    optimizer. Gathered parameters are needed at the launch of the next gather of the same phase, if (on a
    device) compute ran beside that gather: FSDP2 launched it ahead, when it had them. Other results are needed by the
    next computation that begins after them; that is a bound, and may be too early with a slower link.
    """
    found = np.empty(len(calls), np.int64)
    optimizer = _optimizer(timeline, span_start_ns, end_ns, zero_ns)
    scatters = np.sort(launch_ns[[each.op == "reduce_scatter" for each in calls]])
    ahead = {
        phase: _launched_ahead([each.op == "all_gather" and each.phase == phase for each in calls], launch_ns,
                               end_of_call_ns, busy if timeline.has_device else None)
        for phase in {each.phase for each in calls}
    }  # fmt: skip
    for at, each in enumerate(calls):
        ended = int(end_of_call_ns[at])
        if each.op == "reduce_scatter":
            found[at] = min(_next(scatters, ended, end_ns), max(optimizer, ended))
        elif each.op == "all_reduce" and each.dimension == DATA:
            found[at] = max(optimizer, ended)
        else:
            follows = _next(span_start_ns, ended, end_ns)
            found[at] = _next_ahead(*ahead[each.phase], ended, follows) if each.op == "all_gather" else follows
    return np.where(found > end_ns, NONE, found)


def _next(times: Ints, after: int, otherwise: int) -> int:
    at = int(np.searchsorted(times, after, side="left"))
    return int(times[at]) if at < times.size else max(otherwise, after)


def _launched_ahead(
    chosen: Sequence[bool], launch_ns: Ints, ended_ns: Ints, busy: Intervals | None
) -> tuple[Ints, Flags]:
    """Return the launches of the chosen calls in order of time, and beside which of the calls compute ran from then on;
    all without `busy`."""
    rows = np.flatnonzero(np.array(chosen, np.bool_))
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    if busy is None:
        return launch_ns[rows], np.ones(rows.size, np.bool_)
    return launch_ns[rows], BusyTime(busy).within(launch_ns[rows], ended_ns[rows]) > LEAST_STALL_NS


def _next_ahead(launches: Ints, ahead: Flags, after: int, otherwise: int) -> int:
    at = int(np.searchsorted(launches, after, side="left"))
    return int(launches[at]) if at < launches.size and ahead[at] else otherwise


def main_stream(timeline: RankTimeline) -> Flags:
    """Return which spans are compute of the stream of a device that computes longest; of a host all compute."""
    spans = timeline.spans
    computes: Flags = spans.kind == COMPUTE
    if not timeline.has_device or not computes.any():
        return computes
    lanes, place = np.unique(spans.lane[computes], return_inverse=True)
    took = np.bincount(place, (spans.end_ns - spans.start_ns)[computes].astype(np.float64))
    main: Flags = computes & (spans.lane == lanes[np.argmax(took)])
    return main


def _optimizer(timeline: RankTimeline, span_start_ns: Ints, end_ns: int, zero_ns: int) -> int:
    """Return when the optimizer's first computation of the step began; `end_ns` where that is not known."""
    if not span_start_ns.size:
        return end_ns
    begin = int(span_start_ns[0])
    codes = [code for code, name in enumerate(timeline.names) if OPTIMIZER_MARK.match(name)]
    notes, spans = timeline.annotations, timeline.spans
    marked = notes.start_ns[np.isin(notes.name, codes)] - zero_ns
    marked = marked[(marked >= begin) & (marked < end_ns)]
    if marked.size:
        after = spans.launch_ns - zero_ns if timeline.has_device else spans.start_ns - zero_ns
        # What a side stream casts for the next step begins before the optimizer.
        known = main_stream(timeline) & (spans.launch_ns != NONE if timeline.has_device else after >= 0)
        mine = known & (after >= marked.min()) & (after < end_ns)
        return int((spans.start_ns[mine] - zero_ns).min(initial=end_ns))
    own = spans.start_ns[(spans.kind == COMPUTE) & np.isin(spans.name, codes)] - zero_ns
    own = own[(own >= begin) & (own < end_ns)]
    return int(own.min(initial=end_ns))
