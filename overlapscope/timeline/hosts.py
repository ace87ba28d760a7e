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


def share_host_clock(timelines: Iterable[RankTimeline]) -> bool:
    """Return whether ranks are of CPU runs that name one host: their clock may be set, but for all of them at once."""
    every = list(timelines)
    hosts = {host_of(each) for each in every}
    return len(hosts) == 1 and None not in hosts and not any(each.has_device for each in every)
