"""What a rank did in windows of time, and how these are divided into what others may have waited for."""

from collections.abc import Mapping
from typing import Final, Self

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.exposure.core_waiting import NEVER, CoreWaiting
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import Activity, BusyTime, difference, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import RankTimeline

OF_LATE_RANK: Final = ("peer_compute", "peer_core", "peer_comm", "peer_copy", "peer_host")
"""Causes of waiting for the last member, by what it did longer."""
AHEAD_NS: Final = 1_000_000
"""A device that starts what it was given so much later was still busy with earlier work. A choice: far longer than a
launch takes, even the first one of a kernel that has to be loaded."""


Activities = Mapping[str, Activity]
"""When a rank did several things, by name."""


class Did(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a rank seemed to do something in windows, in ns; one row for each window."""

    computed: Ints
    waited_computing: Ints
    """It waited for a core while it seemed to compute ..."""
    slept: Ints
    """... or slept."""
    communicated: Ints
    """Without computing or copying ..."""
    messaged: Ints
    """... and of that, in messages between stages of a pipeline."""
    copied: Ints
    """Without computing."""
    waited_idling: Ints
    """It waited for a core while it seemed to idle."""
    unrecorded: Ints
    """Before its first span, while its device still did what had been launched before the recording."""

    @classmethod
    def within(cls, starts_ns: Ints, ends_ns: Ints, activities: Activities) -> Self:
        """Return what a rank did in windows [start, end), by its `activities_of`."""
        return cls(**{name: activity.within(starts_ns, ends_ns) for name, activity in activities.items()})


def activities_of(timeline: RankTimeline, cover: Coverage, core: CoreWaiting) -> Activities:
    """Return when a rank did what each field of `Did` is about."""
    return {
        "computed": computing(timeline, cover),
        "waited_computing": core.computing,
        "slept": slept(core),
        "communicated": communicating(cover),
        "messaged": messaging(timeline, cover),
        "copied": copying(cover),
        "waited_idling": core.idling,
        "unrecorded": before_recorded_work(timeline, cover),
    }


def computing(timeline: RankTimeline, cover: Coverage) -> BusyTime:
    """Return when a rank computed, as others see it that wait for it: no host while it was seen to collect garbage."""
    if timeline.has_device:
        return BusyTime(cover.compute)
    return BusyTime(difference(cover.compute, recorded_pauses(timeline, COLLECTOR)))


def communicating(cover: Coverage) -> BusyTime:
    """Return when a rank communicated, and did nothing else."""
    return BusyTime(difference(cover.comm, union(cover.compute, cover.copy)))


def messages_between_stages(timeline: RankTimeline) -> Flags:
    """Return for each collective whether it is a send or receive of a pipeline group."""
    calls, names = timeline.collectives, timeline.names
    of_pipeline = rows_named(calls.dimension, names, PIPELINE.__eq__)
    return of_pipeline & rows_named(calls.op, names, POINT_TO_POINT.__contains__)


def messaging(timeline: RankTimeline, cover: Coverage) -> Activity:
    """Return when a rank was in messages between stages of a pipeline, or waited in them, and did nothing else."""
    calls, messages = timeline.collectives, messages_between_stages(timeline)
    messages &= (calls.start_ns != NONE) & (calls.end_ns != NONE)
    if not messages.any():
        return NEVER
    times = union((calls.start_ns[messages], calls.end_ns[messages]))
    return BusyTime(difference(times, union(cover.compute, cover.copy)))


def copying(cover: Coverage) -> BusyTime:
    """Return when the device of a rank copied without computing: as long, whether beside a call or not."""
    return BusyTime(difference(cover.copy, cover.compute))


def slept(core: CoreWaiting) -> Activity:
    """Return when a rank slept though it seemed to compute, by the system's account: an operation that takes longer
    than in other steps computes longer, for what is known."""
    return core.sleeping if core.by_account else NEVER


def before_recorded_work(timeline: RankTimeline, cover: Coverage) -> Activity:
    """Return when a device was busy with what had been launched before the recording, beside what is recorded.

    Its first span, or the first one of the stream that computes most, had been launched, and waited for `AHEAD_NS` and
    longer while nothing that is recorded ran. It is found once, and kept with what the rank's spans cover.
    """
    if cover.before_recorded is None:
        cover.before_recorded = _before_recorded(timeline, cover)
    return cover.before_recorded


def _before_recorded(timeline: RankTimeline, cover: Coverage) -> Activity:
    spans = timeline.spans
    known = timeline.has_device and (spans.launch_ns != NONE).any()
    main = compute_lane(spans.lane, spans.kind, spans.end_ns - spans.start_ns) if known else NONE
    if main == NONE:
        return NEVER
    on_main = np.flatnonzero(spans.lane == main)
    first = np.array([spans.start_ns.argmin(), on_main[spans.start_ns[on_main].argmin()]])
    start, launch = spans.start_ns[first], spans.launch_ns[first]
    busy = union(cover.compute, cover.comm, cover.copy)
    waited = start - launch - BusyTime(busy).within(launch, start)
    behind = (launch != NONE) & (waited >= AHEAD_NS)
    if not behind.any():
        return NEVER
    return BusyTime(difference(union((timeline.recordings.start_ns[:1], start[behind].max()[None])), busy))


def divided(length_ns: Ints, did: Did, accounted: Flags) -> Ints:
    """Return for how long a rank computed, waited for a core, communicated without computing, copied, and did none of
    these, in windows of this length: one row for each, in the order of `OF_LATE_RANK`.

    Waiting for a core and sleep count only where they are `accounted`.
    """
    waited, asleep, waited_idle = (each * accounted for each in (did.waited_computing, did.slept, did.waited_idling))
    idled = length_ns - did.computed - did.communicated - did.copied - waited_idle + asleep
    return np.array([did.computed - waited - asleep, waited + waited_idle, did.communicated, did.copied, idled])
