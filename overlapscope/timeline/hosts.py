"""The host on which a rank ran, as its source states it."""

from collections.abc import Iterable
from typing import Final

from overlapscope.timeline.run import RankTimeline

NO_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain"})
"""Host names that tell no hosts apart."""


def host_of(timeline: RankTimeline) -> str | None:
    """Return the host that a rank's own source states; None without one. Capture records it, and traces may name it."""
    settings = timeline.recorded.get("settings")
    host = settings.get("host") if isinstance(settings, dict) else timeline.recorded.get("host")
    return host if isinstance(host, str) and host not in NO_NAMES else None


def clock_of(timeline: RankTimeline) -> str | None:
    """Return the name of the clock that all times of a rank are of, where one profiler recorded several ranks with it;
    None where no source states one."""
    clock = timeline.recorded.get("clock")
    return clock if isinstance(clock, str) and clock else None


def share_host_clock(timelines: Iterable[RankTimeline]) -> bool:
    """Return whether ranks have one clock, or are of CPU runs that name one host: it may be set, but for all of them at
    once."""
    every = list(timelines)
    clocks = {clock_of(each) for each in every}
    if len(clocks) == 1 and None not in clocks:
        return True
    hosts = {host_of(each) for each in every}
    return len(hosts) == 1 and None not in hosts and not any(each.has_device for each in every)
