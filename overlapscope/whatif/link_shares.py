"""How much of their link calls took that ran at once, where calls like them were seen alone.

A link is not fair: a small transfer under way goes on at its pace while a large one that joins it is held up. Shares of
a moment (`own_times`) then charge the large one with what was the small one's. What two calls took together is known
exactly, from the first's begin to the last's end; where calls of both kinds were also seen with their link for
themselves, that time is split between them as they took it then.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from overlapscope.timeline.columns import Floats, Ints
from overlapscope.whatif.recorded_link import own_times

Kind = TypeVar("Kind")


def alone_times(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints) -> dict[Kind, list[float]]:
    """Give for each kind of call the times of those that had their link for themselves."""
    found: dict[Kind, list[float]] = {}
    period = _periods(begun_ns, done_ns)
    many = np.bincount(period, minlength=1)
    for at in np.flatnonzero(many[period] == 1).tolist():
        if done_ns[at] > begun_ns[at]:
            found.setdefault(kinds[at], []).append(float(done_ns[at] - begun_ns[at]))
    return found


def times_of_link(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints, alone_ns: Mapping[Kind, float]) -> Floats:
    """Give the time of their link that calls took for themselves; they sum to the time that it was busy.

    `alone_ns` is what calls of a kind take with their link for themselves, where that was seen.
    """
    own = own_times(begun_ns.astype(np.float64), done_ns.astype(np.float64))
    period = _periods(begun_ns, done_ns)
    order = np.argsort(period, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(period[order])) + 1):
        if mine.size > 1:
            usual = np.array([alone_ns.get(kinds[at], 0.0) for at in mine.tolist()])
            if usual.all():
                own[mine] = own[mine].sum() * usual / usual.sum()
    return own


def _periods(begun_ns: Ints, done_ns: Ints) -> Ints:
    """Number the stretches in which the link was busy without a break; calls of one stretch share its number."""
    order = np.argsort(begun_ns, kind="stable")
    reached = np.maximum.accumulate(done_ns[order])
    new = np.concatenate(([True], begun_ns[order][1:] >= reached[:-1])) if order.size else np.empty(0, np.bool_)
    period = np.empty(order.size, np.int64)
    period[order] = np.cumsum(new) - 1
    return period
