"""What is known of the lost time of a rank: its causes, and what its host decided of its idle time."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import NoCauses
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_marks import COLLECTS_GARBAGE
from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.timeline.columns import NONE, Columns, Flags, Ints
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

LossKind = Literal[
    "launch_rate",
    "pause",
    "long_pause",
    "data_loading",
    "garbage_collection",
    "allocation",
    "blocking_call",
    "poll",
    "awaited_communication",
]
"""`launch_rate`: one launch after the other, without a pause of 0.2 ms. `pause`: longer host stretches, as of slow
operations; `long_pause`: those from 3 ms on. `allocation`:
calls that allocate or free device memory. `blocking_call`: other calls that wait for the device, and what they had
emptied. `poll`: a wait without such a call. `awaited_communication`: no idle time, but exposed communication for which
such a call waited, and the compute launched after it did not."""


class HostLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Lost time of a rank that its host decided: of one kind, and of one call where calls are its cause."""

    kind: LossKind
    call: str | None = None
    """Name of the call; None for kinds without one."""
    op: str | None = None
    """Innermost recorded operation around the call of the longest piece."""
    when: Intervals
    """On the rank's own clock."""
    longest: tuple[int, int]
    """Start and end of the longest piece, on the rank's own clock."""
    chain: tuple[Link, ...] = ()
    """What the span after the longest piece waited for, the latest first."""
    after: Intervals | None = None
    """Of `when`, what lies after such calls: they had emptied the device, and the host launched again; None for
    nothing."""


class Ahead(Columns, frozen=True, kw_only=True):
    """Disjoint times of the cause `ahead`, on the rank's own clock."""

    start_ns: Ints
    end_ns: Ints
    needed: Ints
    """The call that was held: row in `Collectives`; NONE for a span that belongs to none."""


class OwnCauses(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank was idle and when exposed, by cause, on its own clock; None where `reason` says why not."""

    idle: Mapping[str, Intervals] | None = None
    exposed: Mapping[str, Intervals] | None = None
    ahead: Ahead | None = None
    """Of what is exposed as `ahead`, which call that held; None where the graph may not say."""
    finishing: Ints | None = None
    """Spans (rows) that only finish calls, and that no later call needs; None where the graph may not say."""
    host_losses: tuple[HostLoss, ...] = ()
    """Of the idle time, what its host decided."""
    reason: NoCauses | None = None
    polled: Intervals | None = None
    """Silences of its host that hold a poll, or what may be one; how much of each it worked is not known."""


def marked_losses(idle: Intervals, timeline: RankTimeline) -> tuple[HostLoss, ...]:
    """Return the idle times in which marks show that a batch was fetched, that garbage was collected, or that the host
    waited for the device, and of the rest those in which the span that ended them was not launched yet.

    For a rank without host events: what its host did else is not known.
    """
    notes, names = timeline.annotations, timeline.names
    loads = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    named = _times(timeline, rows_named(notes.name, names, COLLECTS_GARBAGE.search))
    collecting = union(recorded_pauses(timeline, COLLECTOR), named)
    found = [
        _idle_in(idle, collecting, "garbage_collection"),
        _idle_in(idle, difference(_times(timeline, loads), collecting), "data_loading"),
    ]
    waits = rows_named(notes.name, names, WAITS_FOR_DEVICE.fullmatch)
    for code in unique(notes.name[waits].astype(np.int64)).tolist():
        times = _times(timeline, waits & (notes.name == code))
        found.append(_idle_in(idle, times, "blocking_call", names[code]))
    rest = difference(idle, union(*(each.when for each in found)))
    late = _not_launched(idle, timeline)
    taken = late.ends - late.starts
    of_kinds: tuple[tuple[LossKind, Flags], ...] = (
        ("launch_rate", taken < SILENCE_NS),
        ("pause", (taken >= SILENCE_NS) & (taken < LONG_PAUSE_NS)),
        ("long_pause", taken >= LONG_PAUSE_NS),
    )
    found += [_idle_in(rest, Intervals(late.starts[rows], late.ends[rows]), kind) for kind, rows in of_kinds]
    return tuple(each for each in found if each.when.starts.size)


def _times(timeline: RankTimeline, marks: Flags) -> Intervals:
    return union((timeline.annotations.start_ns[marks], timeline.annotations.end_ns[marks]))


def _not_launched(idle: Intervals, timeline: RankTimeline) -> Intervals:
    """Return the begin of each idle time, until the span that ended it was launched."""
    spans = timeline.spans
    order = np.argsort(spans.start_ns, kind="stable")
    at = np.searchsorted(spans.start_ns[order], idle.ends, side="left")
    launch = np.append(spans.launch_ns[order], NONE)[at]
    late = launch > idle.starts
    return Intervals(idle.starts[late], np.minimum(launch, idle.ends)[late])


def _idle_in(idle: Intervals, times: Intervals, kind: LossKind, call: str | None = None) -> HostLoss:
    when = intersection(idle, times)
    if not when.starts.size:
        return HostLoss(kind=kind, call=call, when=when, longest=(0, 0))
    at = int((when.ends - when.starts).argmax())
    return HostLoss(kind=kind, call=call, when=when, longest=(int(when.starts[at]), int(when.ends[at])))
