"""How much longer calls take than the shortest of their like, where wait and transfer could not be separated.

A call of a group of which not all members were recorded lasts until the last of them has come, and then transfers. Its
transfer takes at most as long as the whole of another call that moved as much, or more. Nor is it much slower than a
larger call was. Time that it ran beside other calls of its rank is left out: they may share its link. What is left was
waiting for ranks that were not recorded, or a link or a device shared with others: at least so much of these two.

Calls are alike by what is known of them: of a known group, or of groups that correspond on all recorded ranks, by
operation, type and size; without names of groups, small ones by operation, type, size and number of members; else by
their place, as the n-th call of their kind in steps that compute about as long. What one member sends to all, or
collects, is compared by place alone, in steps that move as much: the same member has that part there.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.exposure.corresponding_groups import UNEVEN, least_of_corresponding
from overlapscope.analysis.exposure.exposed_causes import Causes
from overlapscope.analysis.exposure.owned_comm import OwnedComm
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ROOTED, SYMMETRIC
from overlapscope.timeline.rows import MOST, Column, factorize_rows, smallest_by, sort_order, split_by, sum_by
from overlapscope.timeline.run import RankTimeline, Run

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
LEAST_BYTES: Final = 4 << 20
"""From this size on a call needs at most `OF_LARGER` times as long a byte as a larger one on a device took, and a
latency. A choice: over TCP sockets NCCL takes as long for 1 MiB as for 8 MiB."""
LATENCY_NS: Final = 1_000_000
"""That latency for few members. Of nccl-tests' all-reduces on 8 to 16 devices (A100 over EFA and RoCE, H100 over
NVSwitch, MI300X) each from 4 MiB on lies below its bound by all larger ones, and of 2 ranks over sockets below `LONGER`
times that."""
LATENCY_OF_MEMBER_NS: Final = 30_000
"""At least so much for each member of the group: a ring passes 2 (n - 1) others, in 14 us each over a network (NCCL,
src/graph/tuning.cc)."""
TINY_BYTES: Final = 1 << 20
"""Up to this size calls of groups without names are compared if these have as many members. A choice: such groups may
lie on different links, which differ by less than the latency for so few bytes, and by far more for large ones."""
LONGER: Final = 1.25
"""From so many times what it needs on a call counts as longer than its like. A choice: transfers vary by that alone."""
MAY_WAIT: Final = ("queued", "ahead", "dependency", "host_waited", "tail", "unknown")
"""Causes of exposed time that ends with the call: of the others, other compute, copies or the host decided."""
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


def needs_of_ranks(
    run: Run,
    arrived: Mapping[int, Arrivals],
    compute_ns: Mapping[int, Mapping[tuple[int, int], int]],
) -> Mapping[int, Ints]:
    """Return, for each rank of `arrived`, how long each of its calls needs at most, as calls like it show, on this rank
    or in corresponding groups on the others; NONE where too few are like it.

    `compute_ns` is how long a rank computed in each (recording, step) that is complete.
    """
    own = {
        rank: shortest_of_like(run.ranks[rank], _lasted_ns(run.ranks[rank], arrived[rank]), compute_ns[rank])
        for rank in arrived
    }
    return least_of_corresponding(run.ranks, own, run.groups)


def _lasted_ns(timeline: RankTimeline, arrived: Arrivals) -> Ints:
    """Return how long each call lasted since the last of the recorded members came; NONE without times."""
    calls = timeline.collectives
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    return np.where(timed, calls.end_ns - since_ns(timeline, arrived), NONE)


def since_ns(timeline: RankTimeline, arrived: Arrivals) -> Ints:
    """Return when the last of the recorded members came to each call, for which it waited until then, else its start;
    NONE without times."""
    start_ns = timeline.collectives.start_ns
    return np.where(arrived.arrived_ns != NONE, np.maximum(arrived.arrived_ns, start_ns), start_ns)


def longer_than_like(
    timeline: RankTimeline,
    own_comm: OwnedComm,
    causes: Causes,
    transfers: Transfers,
    arrived: Arrivals,
    needs_ns: Ints,
) -> LongerThanLike:
    """Return what the calls of a rank take longer than what each of them needs at most (`needs_of_ranks`).

    Calls that could be split are compared by their transfer, and are not longer.
    """
    calls = timeline.collectives
    begin, lasted_ns = since_ns(timeline, arrived), _lasted_ns(timeline, arrived)
    timed = lasted_ns != NONE
    # Beside other calls of this rank it may have been slower for these alone.
    in_flight = _several_in_flight(own_comm.start_ns, own_comm.end_ns)
    beside_ns = np.where(timed, in_flight.within(np.where(timed, begin, 0), np.where(timed, calls.end_ns, 0)), 0)
    is_longer = (transfers.transfer_ns == NONE) & (needs_ns != NONE) & (lasted_ns - beside_ns >= LONGER * needs_ns)
    of_calls = np.flatnonzero(own_comm.row != NONE)
    row = own_comm.row[of_calls]
    of_calls, row = of_calls[is_longer[row]], row[is_longer[row]]
    starts = np.maximum(begin[row], own_comm.start_ns[of_calls])
    ends = np.minimum(calls.end_ns[row] - needs_ns[row] - beside_ns[row], own_comm.until_ns[of_calls])
    waited_for = union(*(causes.busy[cause].intervals for cause in MAY_WAIT))
    exposed = BusyTime(intersection(union((starts, ends)), waited_for))
    exposed_ns = np.zeros(lasted_ns.size, np.int64)
    exposed_ns[row] = exposed.within(starts, ends)
    return LongerThanLike(needs_ns=needs_ns, is_longer=is_longer, exposed=exposed, exposed_ns=exposed_ns)


def _several_in_flight(start_ns: Ints, end_ns: Ints) -> BusyTime:
    """Return when at least two of these calls were in flight."""
    order = sort_order(start_ns)
    start, end = start_ns[order], end_ns[order]
    latest = np.maximum.accumulate(end) if end.size else end
    return BusyTime(union((start[1:], np.maximum(np.minimum(end[1:], latest[:-1]), start[1:]))))


def shortest_of_like(timeline: RankTimeline, lasted_ns: Ints, compute_ns: Mapping[tuple[int, int], int]) -> Ints:
    """Return how long each call needs at most, as calls like it show; NONE where too few are like it.

    `lasted_ns` is how long each one lasted, NONE without times.
    """
    calls, names = timeline.collectives, timeline.names
    of_one = rows_named(calls.op, names, ROOTED.__contains__) & (calls.bytes != NONE)
    together = rows_named(calls.op, names, SYMMETRIC.__contains__)
    rows = np.flatnonzero((lasted_ns != NONE) & (together | of_one))
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
    rooted = of_one[rows]
    sized = np.flatnonzero((columns[2] >= 0) & (sizes != NONE) & ~rooted)
    kind, _ = factorize_rows([each[sized] for each in columns])
    found[rows[sized]] = _of_size(kind, sizes[sized], lasted[sized])
    even = np.flatnonzero(~rows_named(columns[0][sized], names, UNEVEN.__eq__))
    at_least = _of_size_or_larger(kind[even], sizes[sized[even]], lasted[sized[even]])
    found[rows[sized[even]]] = np.minimum(found[rows[sized[even]]], at_least)
    large = even[sizes[sized[even]] >= LEAST_BYTES] if timeline.has_device else even[:0]
    members = calls.group_size[rows]
    at_rate = _at_rate_of_larger(kind[large], sizes[sized[large]], lasted[sized[large]], members[sized[large]])
    found[rows[sized[large]]] = np.minimum(found[rows[sized[large]]], at_rate)
    tiny = np.flatnonzero((columns[2] < 0) & (sizes != NONE) & (sizes <= TINY_BYTES) & (members > 0) & ~rooted)
    alike, _ = factorize_rows([each[tiny] for each in (*columns, members)])
    found[rows[tiny]] = _of_tiny(alike, sizes[tiny], lasted[tiny], members[tiny])
    placed = _of_place(timeline, rows, [*columns, sizes], lasted, compute_ns, rooted)
    found[rows] = np.minimum(found[rows], placed)
    return np.where(found == MOST, NONE, found)


def _of_size(kind: Ints, sizes: Ints, lasted: Ints) -> Ints:
    """Return the second shortest of the calls of each one's kind and size; `MOST` of too few."""
    alike, first = factorize_rows([kind, sizes])
    order = sort_order(alike, lasted)
    counts = np.bincount(alike, minlength=first.size)
    seconds = lasted[order][np.minimum(np.cumsum(counts) - counts + 1, max(lasted.size - 1, 0))]
    return np.asarray(np.where(counts >= LIKE_CALLS, seconds, MOST)[alike], np.int64)


def _of_tiny(kind: Ints, sizes: Ints, lasted: Ints, members: Ints) -> Ints:
    """Return the second shortest of the calls of each one's kind and size, and a latency: they may be of other groups;
    `MOST` of too few."""
    second = _of_size(kind, sizes, lasted)
    return np.where(second == MOST, MOST, np.minimum(second, MOST // 2) + _latency_ns(members))


def _latency_ns(members: Ints) -> Ints:
    found: Ints = np.maximum(LATENCY_NS, LATENCY_OF_MEMBER_NS * np.maximum(members, 0))
    return found


def _of_size_or_larger(kind: Ints, sizes: Ints, lasted: Ints) -> Ints:
    """Return `OF_LARGER` times the second shortest of the calls of each one's kind that are as large, or larger; `MOST`
    of too few."""
    return _rounded(OF_LARGER * _second_of_larger(kind, sizes, lasted.astype(np.float64)))


def _at_rate_of_larger(kind: Ints, sizes: Ints, lasted: Ints, members: Ints) -> Ints:
    """Return `OF_LARGER` times as long as each one takes at the second highest rate of such calls, and a latency;
    `MOST` of too few."""
    ns_a_byte = _second_of_larger(kind, sizes, lasted / sizes)
    return _rounded(OF_LARGER * ns_a_byte * sizes + _latency_ns(members))


def _second_of_larger(kind: Ints, sizes: Ints, values: Floats) -> Floats:
    """Return the second smallest value of the calls of each one's kind that are as large, or larger; inf of too few."""
    found = np.full(kind.size, np.inf)
    for alike in split_by(kind):
        own = alike[sort_order(-sizes[alike])]
        smallest = np.minimum.accumulate(values[own])
        second = np.minimum.accumulate(np.append(np.inf, np.maximum(values[own][1:], smallest[:-1])))
        until = np.searchsorted(-sizes[own], -sizes[own], side="right")
        enough = until >= LIKE_CALLS
        found[own[enough]] = second[until[enough] - 1]
    return found


def _rounded(times: Floats) -> Ints:
    known = np.isfinite(times)
    return np.where(known, np.rint(np.where(known, times, 0)).astype(np.int64), MOST)


def _of_place(
    timeline: RankTimeline,
    rows: Ints,
    columns: list[Column],
    lasted: Ints,
    compute_ns: Mapping[tuple[int, int], int],
    in_any_step: Flags,
) -> Ints:
    """Return the shortest of the calls at each one's place: the n-th of its kind, in steps with as many of it that are
    alike, or, for calls `in_any_step`, complete; `MOST` in too few steps."""
    calls, found = timeline.collectives, np.full(rows.size, MOST)
    middle = float(np.median(list(compute_ns.values()))) if compute_ns else 0.0
    alike = {at for at, ns in compute_ns.items() if abs(ns - middle) <= SAME_COMPUTE * middle}
    which, first = factorize_rows([calls.recording[rows], calls.step[rows]])
    steps = zip(calls.recording[rows[first]].tolist(), calls.step[rows[first]].tolist(), strict=True)
    computes = [(each in compute_ns, each in alike) for each in steps]
    complete, same = np.array(computes, np.bool_).reshape(-1, 2).T
    own = np.flatnonzero(np.where(in_any_step, complete[which], same[which]))
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
