"""Limit the delays of calls to what they cost their group: no call begins before every member launched it and has its
data, whatever holds it on one rank."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.exposure.own_parts import OwnParts
from overlapscope.analysis.exposure.owned_comm import cut, of_rows, only
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import EMPTY, Intervals, difference, intersection, union

NO_LIMIT: Final = np.iinfo(np.int64).max // 4
"""Longer than any recording; sums of it and a time are no overflow."""


def within_group(parts: Mapping[int, OwnParts], arrived: Mapping[int, Arrivals]) -> dict[int, OwnParts]:
    """Return the parts of each rank with the delays of its calls as far as they delayed the group.

    Measured from a call's begin, a queue delays it until the member whose call was launched and had its data last could
    have begun; a late launch, until the member whose data were ready last could have. A member of which that is not
    known could not have begun earlier than it did. So it is of a call that ran ahead of it: only from when on the call
    could have begun on all members. What is left is no delay: by the graph it is `dependency`. Calls with members that
    were not recorded stay as they are.
    """
    calls = 1 + max((int(each.call.max(initial=-1)) for each in arrived.values()), default=-1)
    queued, delayed = (np.full(calls + 1, NO_LIMIT) for _ in range(2))  # the last is of calls that are not known
    numbers = {}
    for rank, own in parts.items():
        number, waited = _waited(own, arrived[rank])
        numbers[rank], known = np.where(number == NONE, calls, number), number != NONE
        for least, delay in ((queued, own.queued_ns), (delayed, own.late_ns + own.queued_ns)):
            np.minimum.at(least, number[known], (waited + delay)[known])
    return {
        rank: _limited(_with_ahead_limited(own, arrived[rank], queued), queued[numbers[rank]], delayed[numbers[rank]])
        for rank, own in parts.items()
    }


def _waited(own: OwnParts, arrived: Arrivals) -> tuple[Ints, Ints]:
    """Return for each owner the number of its call, NONE where it is not known, and how long it waited in it for the
    last member."""
    number, came = (of_rows(each, own.own_comm, NONE) for each in (arrived.call, arrived.arrived_ns))
    return np.where(came == NONE, NONE, number), np.maximum(came, own.own_comm.start_ns) - own.own_comm.start_ns


def _with_ahead_limited(own: OwnParts, arrived: Arrivals, queued: Ints) -> OwnParts:
    """Return the parts with the cause `ahead` from when on the call that was held could have begun on all members: so
    long before the last one came as a queue delayed it, by number of the call in `queued`."""
    if own.ahead is None or own.by_graph is None:
        return own
    number, came = (np.append(each, NONE)[np.where(own.ahead.needed == NONE, -1, own.ahead.needed)]
                    for each in (arrived.call, arrived.arrived_ns))  # fmt: skip
    known = (number != NONE) & (came != NONE)
    since = np.where(known, came - queued[np.where(known, number, -1)], own.ahead.start_ns)
    limited = replace(own.ahead, start_ns=np.minimum(np.maximum(own.ahead.start_ns, since), own.ahead.end_ns))
    times = union((limited.start_ns, limited.end_ns))
    left = difference(own.by_graph.get("ahead", EMPTY), times)
    by_graph = {**own.by_graph, "ahead": times, "dependency": union(own.by_graph.get("dependency", EMPTY), left)}
    return replace(own, by_graph=by_graph, ahead=limited)


def _ahead_ns(own: OwnParts) -> Ints:
    """Return how long calls that held each owner were exposed as `ahead` of it."""
    if own.ahead is None:
        return np.zeros_like(own.late_ns)
    rows = np.flatnonzero(own.ahead.needed != NONE)
    sums = np.zeros(1 + max(int(each.max(initial=-1)) for each in (own.ahead.needed, own.own_comm.row)), np.int64)
    np.add.at(sums, own.ahead.needed[rows], (own.ahead.end_ns - own.ahead.start_ns)[rows])
    return np.asarray(of_rows(sums, own.own_comm, 0), np.int64)


def _limited(own: OwnParts, queued: Ints, delayed: Ints) -> OwnParts:
    late_ns, start = np.minimum(own.late_ns, delayed), own.own_comm.start_ns
    limited = replace(own, late_ns=late_ns, queued_ns=np.minimum(own.queued_ns, queued))
    if own.by_graph is None:
        return limited
    by_graph: dict[str, Intervals] = dict(own.by_graph)
    until_queued = start + late_ns + np.maximum(queued - _ahead_ns(own), 0)
    for cause, until in (("late_launch", start + delayed), ("queued", until_queued)):
        if cause in by_graph:
            times, within = by_graph[cause], only(cut(own.own_comm, start, until))
            by_graph[cause] = intersection(times, within)
            by_graph["dependency"] = union(by_graph.get("dependency", EMPTY), difference(times, within))
    return replace(limited, by_graph=by_graph)
