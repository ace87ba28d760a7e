"""Find what a host waited for on its device: from its recorded synchronization calls, else inferred from times."""

import re
from typing import Final, Self

import msgspec
import numpy as np

from overlapscope.timeline.columns import COPY, NONE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

TO_HOST: Final = re.compile(r"DtoH|Device-to-Host|DeviceToHost", re.IGNORECASE)
CLOCKS_AGREE_NS: Final = 5_000
"""A span may seem to end this much after the call that waited for it: device and host have different clocks."""
CALL_TAKES_NS: Final = 20_000
"""A synchronization call takes up to this where there is nothing to wait for."""
LOOK_BACK: Final = 32
"""Span ends before the end of a call that are checked, latest first, for the one that the call waited for."""
STOOD_STILL_NS: Final = 200_000
"""A host that launched nothing for this long ..."""
WENT_ON_WITHIN: Final = 0.05
"""... and launched again within this share of that time after its device became idle, had waited for the device."""
LONG_AGO: Final = int(np.iinfo(np.int64).min) // 2


class HostWaits(msgspec.Struct, frozen=True, kw_only=True):
    """When a host continued after waiting for its device, in order of time, and for which span it had waited."""

    resumed_ns: Ints
    span: Ints
    dry_ns: Ints
    """For each launch after which the host launched nothing for long, and it is not known whether it waited: when its
    device became idle, before which it may have waited; else NONE."""

    def before(self, moment_ns: int) -> int | None:
        """Return the span that the host last waited for before a moment; None where it waited for none."""
        at = int(np.searchsorted(self.resumed_ns, moment_ns, side="right")) - 1
        return int(self.span[at]) if at >= 0 else None


class WaitNames(msgspec.Struct, frozen=True, kw_only=True):
    """The spans and annotations of a rank whose names show that its host waited."""

    to_host: Flags
    """For each span, whether it is a copy to the host."""
    calls: Ints
    """Rows in `Annotations` of synchronization calls."""

    @classmethod
    def of(cls, timeline: RankTimeline) -> Self:
        """Search a rank's names; the result holds for all of its windows."""
        spans, names = timeline.spans, timeline.names
        to_host = spans.kind == COPY
        to_host[to_host] = rows_named(spans.name[to_host], names, TO_HOST.search)
        calls = rows_named(timeline.annotations.name, names, WAITS_FOR_DEVICE.fullmatch)
        return cls(to_host=to_host, calls=np.flatnonzero(calls))


_NOTHING: Final = np.empty(0, np.int64)
NO_WAITS: Final = HostWaits(resumed_ns=_NOTHING, span=_NOTHING, dry_ns=_NOTHING)


def host_waits(
    calls: tuple[Ints, Ints], to_host: Flags, launch: Ints, end: Ints, launched: Ints, by_end: Ints
) -> HostWaits:
    """Return the waits of a host, from its synchronization calls (begins, ends) and the spans of its device.

    `to_host`, `launch` and `end` have one value a span; `by_end` holds the spans sorted by end, `launched` those with a
    launch, sorted by launch. A recording with any synchronization call holds all of them. In other recordings a wait is
    assumed where the host launched nothing for long and continued as soon as its device became idle. A copy to the host
    that had ended before the next launch is assumed to have been waited for.
    """
    copies, after_copies = _copies(to_host, launch, end, launched)
    begun, ended = calls
    if begun.size:
        span, resumed = _by_calls(begun, ended, launch, end, launched, by_end)
        dry = np.full(launched.size, NONE, np.int64)
    else:
        span, resumed, dry = _by_standing_still(launch, end, launched, after_copies)
    span, resumed = np.concatenate([copies, span]), np.concatenate([after_copies, resumed])
    order = sort_order(resumed)
    span, resumed = span[order], resumed[order]
    # A wait for a span that ended earlier than one waited for before adds nothing.
    latest = np.maximum.accumulate(end[span]) if span.size else span
    of_latest = np.maximum.accumulate(np.where(end[span] == latest, np.arange(span.size), 0))
    return HostWaits(resumed_ns=resumed, span=span[of_latest], dry_ns=dry)


def _copies(to_host: Flags, launch: Ints, end: Ints, launched: Ints) -> tuple[Ints, Ints]:
    """Return the copies to the host that had ended when the host launched again, and the time of that launch."""
    of = launched[:-1]
    at, then = launch[of], launch[launched][1:]
    waited = to_host[of] & (end[of] <= then) & (end[of] > at)
    return of[waited], then[waited]


def _by_calls(begun: Ints, ended: Ints, launch: Ints, end: Ints, launched: Ints, by_end: Ints) -> tuple[Ints, Ints]:
    """Return for each call that waited: the span that ended last in it and was launched before it; when it returned.

    Where another thread launched meanwhile, the host as a whole did not wait.
    """
    launches = launch[launched]
    alone = np.searchsorted(launches, ended, side="left") <= np.searchsorted(launches, begun, side="right")
    asking = np.flatnonzero(alone & (ended - begun > CALL_TAKES_NS))
    found = np.full(begun.size, NONE, np.int64)
    ends = end[by_end]
    at = np.searchsorted(ends, ended[asking] + CLOCKS_AGREE_NS, side="right")
    for _ in range(LOOK_BACK):
        at -= 1
        meanwhile = (at >= 0) & (ends[at] > begun[asking])
        asking, at = asking[meanwhile], at[meanwhile]
        if not asking.size:
            break
        fits = launch[by_end[at]] <= begun[asking]
        found[asking[fits]] = by_end[at[fits]]
        asking, at = asking[~fits], at[~fits]
    waited = found != NONE
    return found[waited], ended[waited]


def _by_standing_still(launch: Ints, end: Ints, launched: Ints, after_copies: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (spans that the host waited for, the launches with which it continued, uncertain waits).

    An uncertain wait is, for each launch, when the device became idle, where it is not known whether the host waited
    for that; else NONE.
    """
    at, then = launch[launched][:-1], launch[launched][1:]
    ends = end[launched]
    done = np.maximum.accumulate(ends)
    last = np.maximum.accumulate(np.where(ends == done, np.arange(ends.size), 0))
    dry = done[:-1]
    stood_still = (then - at >= STOOD_STILL_NS) & (dry > at) & (dry <= then) & ~np.isin(then, after_copies)
    waited = stood_still & (then - dry <= WENT_ON_WITHIN * (then - at))
    unsure = stood_still & ~waited
    return launched[last[:-1][waited]], then[waited], np.append(np.where(unsure, dry, NONE), NONE)[: launched.size]
