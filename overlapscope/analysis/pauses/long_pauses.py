"""Find long pauses of the hosts of devices: times in a step, or a recording without marks of steps, in which no thread
that launches begins or ends anything; and apart from these, those in no whole step.

A host that waits for its device, or for others in a collective of hosts, or computes in an operation without others in
it, does not pause.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.user_ranges import range_of_pause
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import COLLECTS_GARBAGE
from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.analysis.pauses.host_collectives import times_in_host_collectives
from overlapscope.analysis.stragglers.shared_cores import HostTimes
from overlapscope.timeline.columns import NONE, OPERATION, OVERHEAD, RUNTIME, Flags, HostSpans, Ints, size, take
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.rows import is_one_of, sort_order, unique
from overlapscope.timeline.run import RankTimeline

BEGIN, END = "the begin", "the end"
"""What is before or after a pause where a recording has no operation there."""
LATEST: Final = np.iinfo(np.int64).max
COSTS: Final = 0.1
"""A pause costs something if the device is idle for this share of it. A choice: behind others it had work enough."""
IN_OPERATIONS: Final = 0.5
"""Operations name the places of pauses if this share of what a host launches is in them; else calls do as well: a
library's own ranges may be far apart. A choice."""


class LongPauses(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses of a rank's host that left its device idle, by begin, on its own clock; one row each."""

    start_ns: Ints
    end_ns: Ints
    idle_ns: Ints
    """For how long the device was idle in it, and what it did next had not been launched."""
    step: Ints
    """NONE for all where no steps are marked."""
    into_step_ns: Ints
    """How long after the begin of its step, or recording, on the host it began."""
    between: tuple[tuple[str, str], ...]
    """Names of the operations before and after it, or of the runtime's calls where few of them are in operations."""
    lane: tuple[int, ...]
    """The thread (row in `Lanes`) that goes on after it, else the one that ended something before it; -1 for none."""
    inside: tuple[str | None, ...]
    """The range of the user that it is in."""
    steps: int
    """Whole steps that the host recorded, or recordings where none are marked."""
    begun: int
    """The same, and as one each what was launched in a recording before its whole steps and after them."""
    outside: "LongPauses | None" = None
    """Those in no whole step, before the last launch of their recording; `step` is the last whole one that had begun in
    it, NONE for none. None without such, and where no steps are marked."""


def long_pauses(timeline: RankTimeline, times: HostTimes | None, idle: Intervals) -> LongPauses | None:
    """Return the long pauses in the whole steps of a rank, or in its recordings where no steps are marked; None where
    it has no whole step, or what its host did is not known.

    `times` are those of its host, `idle` is when its device was idle. Raises HostEventsError.
    """
    windows = _windows(timeline)
    begins, ends = windows.start_ns, windows.end_ns
    if times is None or not begins.size:
        return None
    host = without_functions(timeline.host)
    mine = acting(timeline, host)
    moments = unique(np.concatenate([mine.start_ns, mine.end_ns]))
    quiet = _without_waits(_longest(moments[:-1], moments[1:]), times)
    held = times_in_host_collectives(timeline, mine)
    talking = (held.start_ns, held.end_ns)
    quiet = difference(quiet, union(times.waiting, times.fetching, _long_leaves(host), _collecting(timeline), talking))
    start, end = _longest(*quiet)
    at = np.searchsorted(begins, start, side="right") - 1
    idle_ns = BusyTime(_until_launched(timeline, idle)).within(start, end)
    costs = idle_ns >= COSTS * (end - start)
    whole = (at >= 0) & (end <= ends[np.maximum(at, 0)])
    found, outside = (
        _Found(start_ns=start[rows], end_ns=end[rows], idle_ns=idle_ns[rows], at=at[rows])
        for rows in (costs & whole, costs & ~whole)
    )
    pauses = _pauses(timeline, mine, windows, found)
    if not size(timeline.steps):
        return pauses
    outside = _before_last_launch(timeline, windows, outside)
    return replace(pauses, outside=_pauses(timeline, mine, windows, outside) if outside.at.size else None)


class _Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The whole steps of a rank, by begin; recordings, without a number, where no steps are marked."""

    start_ns: Ints
    end_ns: Ints
    """On the host, as `start_ns`."""
    number: Ints
    recording: Ints


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """Long pauses, by begin."""

    start_ns: Ints
    end_ns: Ints
    idle_ns: Ints
    at: Ints
    """The last whole step (row in `_Windows`) that had begun; -1 for none."""


def _pauses(timeline: RankTimeline, mine: HostSpans, windows: _Windows, found: _Found) -> LongPauses:
    lanes, between = _places(timeline, mine, found.start_ns, found.end_ns)
    each_at = zip(lanes, found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return LongPauses(
        start_ns=found.start_ns, end_ns=found.end_ns, idle_ns=found.idle_ns,
        step=np.where(found.at < 0, NONE, windows.number[found.at]),
        into_step_ns=found.start_ns - windows.start_ns[np.maximum(found.at, 0)], between=between, lane=lanes,
        inside=tuple(range_of_pause(timeline, *each) for each in each_at), steps=windows.number.size,
        begun=windows.number.size + _incomplete(timeline, windows),
    )  # fmt: skip


def _before_last_launch(timeline: RankTimeline, windows: _Windows, found: _Found) -> _Found:
    """Return the pauses that lie in one recording, before a launch in it: after the last one the profiler may stop. The
    steps of other recordings are none of theirs."""
    recordings = timeline.recordings
    order = sort_order(recordings.start_ns)
    place = np.searchsorted(recordings.start_ns[order], found.start_ns, side="right") - 1
    own = order[np.maximum(place, 0)]
    kept = (place >= 0) & (found.end_ns <= recordings.last_launch_ns[own])
    at = np.where(windows.recording[found.at] == own, found.at, -1)
    return _Found(
        start_ns=found.start_ns[kept], end_ns=found.end_ns[kept], idle_ns=found.idle_ns[kept], at=at[kept]
    )  # fmt: skip


def _incomplete(timeline: RankTimeline, windows: _Windows) -> int:
    """Return in how many recordings something was launched before the whole steps, and after them, in sum; 0 where no
    steps are marked."""
    spans = timeline.spans
    found = 0
    for recording in range(size(timeline.recordings)) if size(timeline.steps) else ():
        own = windows.recording == recording
        launches = spans.launch_ns[(spans.recording == recording) & (spans.launch_ns != NONE)]
        if launches.size:
            found += bool(launches.min() < windows.start_ns[own].min(initial=LATEST))
            found += bool(own.any() and launches.max() >= windows.end_ns[own].max())
    return found


def _windows(timeline: RankTimeline) -> _Windows:
    steps, recordings = timeline.steps, timeline.recordings
    if not size(steps):
        order = sort_order(recordings.start_ns)
        return _Windows(
            start_ns=recordings.start_ns[order], end_ns=recordings.end_ns[order], number=np.full(order.size, NONE),
            recording=order,
        )  # fmt: skip
    whole = np.flatnonzero(~steps.cut)
    whole = whole[sort_order(steps.start_ns[whole])]
    return _Windows(
        start_ns=steps.start_ns[whole], end_ns=steps.end_ns[whole], number=steps.step[whole],
        recording=steps.recording[whole],
    )  # fmt: skip


def acting(timeline: RankTimeline, host: HostSpans) -> HostSpans:
    """Return the host spans of the threads that make the step."""
    return take(host, np.isin(host.lane, unique(host.lane[_acts(timeline, host)])))


def _acts(timeline: RankTimeline, host: HostSpans) -> Flags:
    """Return which host spans show that their thread makes the step: others, as a watchdog's, only look at events."""
    return np.asarray(launching(timeline, host) | (host.kind == OPERATION), np.bool_)


def launching(timeline: RankTimeline, host: HostSpans) -> Flags:
    """Return which host spans are calls that launched what the device of the rank did."""
    return np.asarray((host.kind == RUNTIME) & np.isin(host.correlation, timeline.spans.correlation), np.bool_)


def _until_launched(timeline: RankTimeline, idle: Intervals) -> Intervals:
    """Return the idle time until the span that ended it was launched: what follows is no delay by the host. Where its
    launch is not known, or no span ends it, all of it."""
    spans = timeline.spans
    order = sort_order(spans.start_ns, spans.launch_ns)  # of several that begin at once, the one launched first
    at = np.searchsorted(spans.start_ns[order], idle.ends)
    starts = np.append(spans.start_ns[order], NONE)[at]
    launch = np.append(spans.launch_ns[order], NONE)[at]
    ends = np.where((starts == idle.ends) & (launch != NONE), np.minimum(launch, idle.ends), idle.ends)
    kept = ends > idle.starts
    return Intervals(idle.starts[kept], ends[kept])


def _longest(start: Ints, end: Ints) -> Intervals:
    long = end - start >= LONG_PAUSE_NS
    return Intervals(start[long], end[long])


def _without_waits(quiet: Intervals, times: HostTimes) -> Intervals:
    """Leave out what ended as a wait for the device did: all of it may have been one."""
    waits = BusyTime(times.waiting).within(quiet.ends - SILENCE_NS, quiet.ends) > 0
    return Intervals(quiet.starts[~waits], quiet.ends[~waits])


def _long_leaves(host: HostSpans) -> Intervals:
    """Return the long operations and calls that nothing else was recorded in: there the host was in them.

    The table is sorted by thread and start.
    """
    nested = (host.lane[1:] == host.lane[:-1]) & (host.start_ns[1:] < host.end_ns[:-1])
    leaf = is_one_of(host.kind, (OPERATION, RUNTIME, OVERHEAD)) & ~np.append(nested, False)[: host.lane.size]
    return union(_longest(host.start_ns[leaf], host.end_ns[leaf]))


def _collecting(timeline: RankTimeline) -> Intervals:
    """Return the garbage collections that were recorded: they are named as such."""
    notes = timeline.annotations
    named = rows_named(notes.name, timeline.names, COLLECTS_GARBAGE.search)
    return union(recorded_pauses(timeline, COLLECTOR), (notes.start_ns[named], notes.end_ns[named]))


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a host did before and after each of its pauses."""

    before_ns: Ints
    """When what ended last before it ended; NONE for nothing."""
    after_ns: Ints
    """When what began first after it began; `LATEST` for nothing."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    lane: Ints
    """The thread that goes on after it, else the one that ended something before it; -1 for none."""


def around(timeline: RankTimeline, named: HostSpans, start: Ints, end: Ints) -> Around:
    """Return what is around pauses, of these host spans that name places, the outermost.

    The thread is the one that goes on after it; nothing may follow the last pause of a recording, as an optimizer's.
    """
    ended, begun = np.lexsort((-named.start_ns, named.end_ns)), np.lexsort((-named.end_ns, named.start_ns))
    before = np.searchsorted(named.end_ns[ended], start, side="right") - 1
    after = np.searchsorted(named.start_ns[begun], end, side="left")
    lanes = np.append(named.lane[begun], -1)[after]
    first, last = (np.append(named.name[order], -1) for order in (ended, begun))  # -1, at the end, stands for none
    return Around(
        before_ns=np.append(named.end_ns[ended], NONE)[before],
        after_ns=np.append(named.start_ns[begun], LATEST)[after],
        before=tuple(timeline.name(each) or BEGIN for each in first[before].tolist()),
        after=tuple(timeline.name(each) or END for each in last[after].tolist()),
        lane=np.where(lanes < 0, np.append(named.lane[ended], -1)[before], lanes),
    )


def place_names(timeline: RankTimeline, host: HostSpans) -> HostSpans:
    """Return the host spans that name places: operations, or calls as well where few of these are in operations."""
    operations = host.kind == OPERATION
    begins = host.start_ns[launching(timeline, host)]
    inside = BusyTime(union((host.start_ns[operations], host.end_ns[operations]))).within(begins, begins + 1) > 0
    few = inside.sum() <= IN_OPERATIONS * inside.size
    return take(host, is_one_of(host.kind, (OPERATION, RUNTIME)) if few else operations)


def _places(
    timeline: RankTimeline, host: HostSpans, start: Ints, end: Ints
) -> tuple[tuple[int, ...], tuple[tuple[str, str], ...]]:
    found = around(timeline, place_names(timeline, host), start, end)
    return tuple(found.lane.tolist()), tuple(zip(found.before, found.after, strict=True))
