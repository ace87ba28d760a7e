"""How much longer calls take than the shortest of their like, where wait and transfer could not be separated.

A call of a group of which not all members were recorded lasts until the last of them has come, and then transfers. It
transfers for no longer than another call that moved as much, or more, took in all. What it takes beyond that is waiting
for ranks that were not recorded, or sharing a link or a device with other traffic: a bound from below of these two.

Calls are alike by what is known of them: of a known group by operation, type and size; else by their place, as the n-th
call of their kind in steps that compute about as long.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.exposure.exposed_causes import Causes, OwnedComm
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import BusyTime, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SYMMETRIC
from overlapscope.timeline.rows import MOST, Column, factorize_rows, smallest_by, sort_order, sum_by
from overlapscope.timeline.run import RankTimeline

LIKE_CALLS: Final = 5
"""Fewest calls of one kind, itself included, of which the second shortest says what it needs: one that is too short may
be damage. As few as a baseline needs (`BASELINE_CALLS`)."""
LIKE_STEPS: Final = 3
"""Fewest steps whose n-th calls are compared. A choice: recordings often have three."""
SAME_COMPUTE: Final = 0.1
"""Steps are alike whose compute differs from the median by at most this share: of calls without sizes nothing else says
that they move as much, and steps of a server differ. A choice."""
OF_LARGER: Final = 1.5
"""A call needs at most so many times as long as a larger one took. A choice: where a library changes its algorithm, or
a size is not aligned, the larger one may be faster."""
LONGER: Final = 1.25
"""From so many times what it needs on a call counts as longer than its like. A choice: transfers vary by that alone."""
MAY_WAIT: Final = ("queued", "dependency", "tail", "unknown")
"""Causes of exposed time that ends with the call: of the others, other compute, copies or the host decided."""
UNEVEN: Final = "all_to_all"
"""Members of such a call may send different sizes: a larger one of this rank may have been the smaller one in all."""
WITHOUT_SIZE: Final = "barrier"


class LongerThanLike(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one rank take longer than their like; rows are those of its `Collectives`."""

    needs_ns: Ints
    """What a call needs at most; NONE where too few are like it."""
    is_longer: Flags
    exposed: BusyTime
    """Exposed time beyond what calls need."""
    exposed_ns: Ints
    """That time of each call."""


def longer_than_like(
    timeline: RankTimeline,
    own_comm: OwnedComm,
    causes: Causes,
    transfers: Transfers,
    arrived: Arrivals,
    compute_ns: Mapping[tuple[int, int], int],
) -> LongerThanLike:
    """Return what the calls of a rank take longer than the shortest of their like.

    `compute_ns` is how long it computed in each (recording, step) that is complete. Calls that could be split are
    compared by their transfer, and are not longer.
    """
    calls = timeline.collectives
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    # Until the last of the recorded members came it waited for that one.
    begin = np.where(arrived.arrived_ns != NONE, np.maximum(arrived.arrived_ns, calls.start_ns), calls.start_ns)
    lasted_ns = np.where(timed, calls.end_ns - begin, NONE)
    needs_ns = shortest_of_like(timeline, lasted_ns, compute_ns)
    is_longer = (transfers.transfer_ns == NONE) & (needs_ns != NONE) & (lasted_ns >= LONGER * needs_ns)
    of_calls = np.flatnonzero(own_comm.row != NONE)
    row = own_comm.row[of_calls]
    of_calls, row = of_calls[is_longer[row]], row[is_longer[row]]
    starts = np.maximum(begin[row], own_comm.start_ns[of_calls])
    ends = np.minimum(calls.end_ns[row] - needs_ns[row], own_comm.until_ns[of_calls])
    waited_for = union(*(causes.busy[cause].intervals for cause in MAY_WAIT))
    exposed = BusyTime(intersection(union((starts, ends)), waited_for))
    exposed_ns = np.zeros(lasted_ns.size, np.int64)
    exposed_ns[row] = exposed.within(starts, ends)
    return LongerThanLike(needs_ns=needs_ns, is_longer=is_longer, exposed=exposed, exposed_ns=exposed_ns)


def shortest_of_like(timeline: RankTimeline, lasted_ns: Ints, compute_ns: Mapping[tuple[int, int], int]) -> Ints:
    """Return how long each call needs at most, as calls like it show; NONE where too few are like it.

    `lasted_ns` is how long each one lasted, NONE without times.
    """
    calls, names = timeline.collectives, timeline.names
    rows = np.flatnonzero((lasted_ns != NONE) & rows_named(calls.op, names, SYMMETRIC.__contains__))
    found = np.full(lasted_ns.size, MOST)
    columns: list[Column] = [
        calls.op[rows],
        calls.executed_op[rows],
        calls.group[rows],
        calls.dtype[rows],
        calls.received_bytes[rows],
    ]
    lasted, sizes = lasted_ns[rows], calls.bytes[rows]
    sizes = np.where(rows_named(columns[0], names, WITHOUT_SIZE.__eq__), 0, sizes)
    sized = np.flatnonzero((columns[2] >= 0) & (sizes != NONE))
    kind, _ = factorize_rows([each[sized] for each in columns])
    found[rows[sized]] = _of_size(kind, sizes[sized], lasted[sized])
    even = np.flatnonzero(~rows_named(columns[0][sized], names, UNEVEN.__eq__))
    at_least = _of_size_or_larger(kind[even], sizes[sized[even]], lasted[sized[even]])
    found[rows[sized[even]]] = np.minimum(found[rows[sized[even]]], at_least)
    placed = _of_place(timeline, rows, [*columns, sizes], lasted, compute_ns)
    found[rows] = np.minimum(found[rows], placed)
    return np.where(found == MOST, NONE, found)


def _of_size(kind: Ints, sizes: Ints, lasted: Ints) -> Ints:
    """Return the second shortest of the calls of each one's kind and size; `MOST` of too few."""
    alike, first = factorize_rows([kind, sizes])
    order = sort_order(alike, lasted)
    counts = np.bincount(alike, minlength=first.size)
    seconds = lasted[order][np.minimum(np.cumsum(counts) - counts + 1, max(lasted.size - 1, 0))]
    return np.asarray(np.where(counts >= LIKE_CALLS, seconds, MOST)[alike], np.int64)


def _of_size_or_larger(kind: Ints, sizes: Ints, lasted: Ints) -> Ints:
    """Return `OF_LARGER` times the second shortest of the calls of each one's kind that are as large, or larger; `MOST`
    of too few."""
    found = np.full(kind.size, MOST)
    for each in range(int(kind.max(initial=-1)) + 1):
        own = np.flatnonzero(kind == each)
        own = own[sort_order(-sizes[own])]
        shortest = np.minimum.accumulate(lasted[own])
        second = np.minimum.accumulate(np.append(MOST, np.maximum(lasted[own][1:], shortest[:-1])))
        until = np.searchsorted(-sizes[own], -sizes[own], side="right")
        enough = until >= LIKE_CALLS
        found[own[enough]] = np.rint(OF_LARGER * second[until[enough] - 1])
    return found


def _of_place(
    timeline: RankTimeline, rows: Ints, columns: list[Column], lasted: Ints, compute_ns: Mapping[tuple[int, int], int]
) -> Ints:
    """Return the shortest of the calls at each one's place: the n-th of its kind, in alike steps with as many of it;
    `MOST` in too few steps."""
    calls, found = timeline.collectives, np.full(rows.size, MOST)
    middle = float(np.median(list(compute_ns.values()))) if compute_ns else 0.0
    alike = {at for at, ns in compute_ns.items() if abs(ns - middle) <= SAME_COMPUTE * middle}
    which, first = factorize_rows([calls.recording[rows], calls.step[rows]])
    steps = zip(calls.recording[rows[first]].tolist(), calls.step[rows[first]].tolist(), strict=True)
    own = np.flatnonzero(np.array([each in alike for each in steps], np.bool_)[which])
    if not own.size:
        return found
    began = np.where(calls.launch_ns == NONE, calls.start_ns, calls.launch_ns)[rows[own]]
    kind, _ = factorize_rows([each[own] for each in columns])
    of_step, _ = factorize_rows([kind, which[own]])
    order = sort_order(of_step, began)
    counts = np.bincount(of_step)
    nth = np.empty(own.size, np.int64)
    nth[order] = np.arange(own.size) - np.repeat(np.cumsum(counts) - counts, counts)
    place, places = factorize_rows([kind, counts[of_step], nth])
    shortest = smallest_by(place, lasted[own], places.size)
    enough = sum_by(place, np.ones(own.size, np.int64), places.size) >= LIKE_STEPS
    found[own] = np.where(enough, shortest, MOST)[place]
    return found
