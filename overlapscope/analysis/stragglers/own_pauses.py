"""Find pauses of a host at one place of its program, again and again, where the hosts of its peers do not pause.

A log, a tracker or a checkpoint that one rank alone writes comes back in each step at the same place: chance does not,
even where a device that is behind hides most of the pauses.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.user_ranges import family
from overlapscope.analysis.stragglers.shared_cores import HostTimes
from overlapscope.timeline.columns import ANNOTATION, NONE, OPERATION, RUNTIME, HostSpans, Ints, take
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.rows import is_one_of, sort_order, unique
from overlapscope.timeline.run import RankTimeline, Run

LONG_NS: Final = 3_000_000
"""A pause that is named. A choice: schedulers take a core for less."""
FEWEST: Final = 3
"""Pauses at a place. A choice: what comes back so often where no peer has any is no chance."""
AS_LONG: Final = 0.5
"""A peer pauses there, too, if for this share of the shortest one."""
EXPLAINS: Final = 0.5
"""They are the reason if they last for this share of what the rank delays others by."""
MOST_PEERS: Final = 64
"""Peers looked at: of more, evenly chosen ones."""


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of a host, and the outermost that ended last before it and began first after it, by name."""

    before: str
    after: str
    lasted_ns: int
    places: tuple[tuple[str, str], ...]
    """What it is at: between both; before or after a range, whatever is on the other side (empty)."""


def own_pauses(
    rank: int, peers: Sequence[int], run: Run, hosts: Mapping[int, HostTimes], delayed_ns: int
) -> dict[str, Any]:
    """Return between which ranges, operations or calls a host pauses again and again, and none of its peers does: as
    `paused_between` (names, an empty one where these differ), with how often (`pauses`), and the shortest and the
    longest one (`pauses_ns`).

    Empty where there is no such place, where what the hosts did is not known, and where the pauses do not explain the
    delays. Waiting for the device, and loading of batches, is no pause (`HostTimes.paused`).
    """
    if rank not in hosts or not hosts.keys() >= set(peers):
        return {}
    at: dict[tuple[str, str], list[_Pause]] = {}
    for each in _pauses(run.ranks[rank], hosts[rank], LONG_NS):
        for place in each.places:
            at.setdefault(place, []).append(each)
    lasted = {place: [each.lasted_ns for each in own] for place, own in at.items() if len(own) >= FEWEST}
    lasted = {place: ns for place, ns in lasted.items() if sum(ns) >= EXPLAINS * delayed_ns}
    if not lasted:
        return {}
    place = max(lasted, key=lambda each: sum(lasted[each]))
    ns = lasted[place]
    chosen = peers[:: max(-(-len(peers) // MOST_PEERS), 1)]
    theirs = (each for peer in chosen for each in _pauses(run.ranks[peer], hosts[peer], round(AS_LONG * min(ns))))
    if any(place in each.places for each in theirs):
        return {}
    between = [{each.before for each in at[place]}, {each.after for each in at[place]}]
    names = [each.pop() if len(each) == 1 else "" for each in between]
    return {"paused_between": names, "pauses": len(ns), "pauses_ns": [min(ns), max(ns)]}


def _pauses(timeline: RankTimeline, times: HostTimes, least_ns: int) -> Iterator[_Pause]:
    """Yield the pauses of so long or longer between what the threads that launch do; none in an operation or call, or
    at an end."""
    long = times.paused.ends - times.paused.starts >= least_ns
    pauses = Intervals(times.paused.starts[long], times.paused.ends[long])
    if not pauses.starts.size:
        return
    host = _launching(timeline)
    inside = is_one_of(host.kind, (OPERATION, RUNTIME))
    working = BusyTime(union((host.start_ns[inside], host.end_ns[inside]))).within(*pauses)
    ended, begun = sort_order(host.end_ns, -host.start_ns), sort_order(host.start_ns, -host.end_ns)
    # Of those that end at once the outermost is the last.
    before = np.searchsorted(host.end_ns[ended], pauses.starts, side="right") - 1
    after = np.searchsorted(host.start_ns[begun], pauses.ends, side="left")
    for at in np.flatnonzero((working == 0) & (before >= 0) & (after < begun.size)).tolist():
        rows = int(ended[before[at]]), int(begun[after[at]])
        first, last = (family(timeline, int(host.name[row])) for row in rows)
        sides = ((first, ""), ("", last))
        of_ranges = (side for side, row in zip(sides, rows, strict=True) if host.kind[row] == ANNOTATION)
        yield _Pause(
            before=first, after=last, lasted_ns=int(pauses.ends[at] - pauses.starts[at]),
            places=((first, last), *of_ranges),
        )  # fmt: skip


def _launching(timeline: RankTimeline) -> HostSpans:
    """Return the ranges, operations and calls of the threads that launch what the device does."""
    host = select_host_spans(timeline.host, (OPERATION, ANNOTATION, RUNTIME))
    launches = (host.kind == RUNTIME) & np.isin(host.correlation, _launched(timeline))
    return take(host, np.isin(host.lane, unique(host.lane[launches])))


def _launched(timeline: RankTimeline) -> Ints:
    correlation = timeline.spans.correlation
    return unique(correlation[correlation != NONE])
