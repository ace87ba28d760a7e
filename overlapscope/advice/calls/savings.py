"""What of the exposed time of calls can be saved, by overlapping them or by sending half: an upper bound.

Waiting for a rank that comes late is not saved by either, nor is time that the next compute spends on the host, a copy
or other compute whatever the calls do.
"""

from collections.abc import Iterable
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.binding_calls import AT_ONCE_NS, DIRECTLY_NS, saved_of, streams_of_calls
from overlapscope.advice.calls.message_rates import at_most_by_messages_ns
from overlapscope.advice.rule_input import RuleInput, Windows, ms, time_of
from overlapscope.analysis.cross_rank.wait_transfer import BASELINE_QUANTILE
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.fast_calls import of_many_calls
from overlapscope.analysis.exposure.longer_than_like import OF_LARGER, since_ns
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by, sum_by
from overlapscope.timeline.run import RankTimeline

SAVED: Final = ("slow_transfer", "queued", "ahead", "dependency", "host_waited", "tail", "unknown")
"""Causes of exposed time that ends with the calls; in others the next compute would not have begun earlier."""
AS_FAST: Final = "that compute beside them takes as long as now: by how much they slow it could not be measured"
ANY: Final = float(np.iinfo(np.int64).max // 4)


class Transferring(msgspec.Struct, frozen=True, kw_only=True):
    """From when on each call of a rank transfers, at the earliest, one row for each of its `Collectives`."""

    since_ns: Ints
    """NONE of calls without times."""
    known: Flags
    """Whether all waiting is known; it lies before `since_ns`."""


def transferring(given: RuleInput, timeline: RankTimeline) -> Transferring:
    """Return from when on calls of a rank transfer: once the last recorded member has come; where others were not
    recorded, for at most as long as `transfers_at_most` says, and messages between them."""
    calls = timeline.collectives
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    since = since_ns(timeline, given.arrivals[timeline.rank])
    known = given.transfers[timeline.rank].transfer_ns != NONE
    for at_most in (given.transfers_at_most_ns[timeline.rank], at_most_by_messages_ns(given, timeline)):
        rows = np.flatnonzero(timed & ~known & (at_most != NONE))
        since[rows] = np.maximum(since[rows], calls.end_ns[rows] - at_most[rows])
    return Transferring(since_ns=np.where(timed, since, NONE), known=known)


def saved_by_overlap_ns(given: RuleInput, rows: Iterable[CollectiveRow]) -> float:
    """Return what overlap of calls of these rows can save of a step, at most: as `saved_without_ns`, and no more than
    is left of a step beside the work of its host."""
    return min(saved_without_ns(given, rows), given.host_free_ns)


def kept_by_hosts(given: RuleInput, at_most_ns: float) -> list[str]:
    """Return what is assumed of hosts where their work bounds what a change of communication saves; else nothing."""
    if at_most_ns < given.host_free_ns:
        return []
    return [f"that hosts work as long as recorded, which leaves {ms(given.host_free_ns)} of a {given.per}"]


def of_read_ranks(given: RuleInput) -> list[str]:
    """Return what is assumed of the rank that saves most, where rules do not read all ranks; else nothing."""
    read, every = sum(1 for _ in given.some_ranks()), len(given.windows)
    return [f"that no rank saves more than the {read} of {every} that were read"] if read < every else []


def saved_without_ns(given: RuleInput, rows: Iterable[CollectiveRow]) -> float:
    """Return in how much of a step calls of these rows transfer and the next compute waits for it, mean over ranks at
    hand: what a step without them, and without their launches, can save at most."""
    asked = list(rows)
    each = [
        length(_saved(given, timeline, own := given.calls_of(timeline, asked), own)) / max(len(windows), 1)
        for timeline, windows in given.some_ranks()
        if asked
    ]
    return fmean(each) if each else 0.0


def saved_time(given: RuleInput, timeline: RankTimeline, own: Flags | None = None) -> Intervals:
    """Return when any call of a rank, or of its `own` ones, transfers and the next compute waits for it.

    Of `own` calls it is time that ends with one of them, or with a call that stands behind one, while no other stream
    decides when the step ends: their exposed time beside others is saved with these alone.
    """
    every = np.ones(timeline.collectives.op.size, np.bool_)
    return _saved(given, timeline, every, every if own is None else own)


def _saved(given: RuleInput, timeline: RankTimeline, moved: Flags, own: Flags) -> Intervals:
    """Return when `moved` calls transfer in time that may be saved, as far as `own` ones bind the next compute."""
    calls, since = timeline.collectives, transferring(given, timeline).since_ns
    cover, moved = given.coverage[timeline.rank], moved & (since != NONE)
    times = intersection(union((since[moved], calls.end_ns[moved])), time_of(given.windows[timeline.rank]))
    exposed = difference(times, cover.compute)
    parts = given.parts[timeline.rank]
    if (causes := parts.by_graph) is not None:
        exposed = intersection(exposed, union(*(causes[each] for each in SAVED if each in causes)))
    last_ones, known = np.zeros(own.size, np.bool_), parts.own_comm.row != NONE
    last_ones[parts.own_comm.row[known]] = (parts.optimizer_seen & parts.before_optimizer)[known]
    return saved_of(timeline, own, since, exposed, difference(cover.comm, cover.compute), last_ones)


def saved_by_half_ns(
    given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints, transfer_ns: Ints | Floats
) -> float:
    """Return what is saved of exposed time in a step of a rank, at most, if these calls transfer half as long.

    A call ends earlier by half of its transfer, and begins earlier as the call before it on its stream does, as far as
    it had stood behind that. Of calls of which each stands behind the one before it, all save at most half of what they
    transfer in sum, and those with no compute between them what the last of them ends earlier; and calls on several
    streams at once save no more than the time that they cover.
    """
    calls = timeline.collectives
    half = np.zeros(calls.op.size)
    half[rows] = transfer_ns / 2
    every = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    if not rows.size:
        return 0.0
    lane = streams_of_calls(timeline)
    every = every[sort_order(lane[every], calls.start_ns[every])]
    behind, half = _behind_ns(timeline, every, lane[every]), half[every]
    sums = np.cumsum(half)
    # Each one's is half + min(that of the one before, behind), from the first on.
    earlier = sums + np.minimum.accumulate(behind - (sums - half))
    asked = np.zeros(calls.op.size, np.bool_)
    asked[rows] = True
    saved, start, end = saved_time(given, timeline, asked), calls.start_ns[every], calls.end_ns[every]
    own = BusyTime(saved).within(start, end)
    row = np.cumsum(behind == 0) - 1
    # The compute that waits for several of a row, with none between them, begins as the last of these ends.
    computed = np.searchsorted(given.coverage[timeline.rank].compute.starts, end)
    is_last = np.append((row[1:] != row[:-1]) | (computed[1:] != computed[:-1]), True)
    part = np.append(0, np.cumsum(is_last[:-1]))
    of_parts = np.minimum(np.bincount(part, np.minimum(own, earlier)), earlier[is_last])
    of_rows = np.minimum(np.bincount(row[is_last], of_parts), np.bincount(row, half))
    moved = earlier > 0
    covered = length(intersection(saved, union((start[moved], end[moved]))))
    return min(float(of_rows.sum()), covered) / max(len(windows), 1)


def faster_beside_half_ns(given: RuleInput, timeline: RankTimeline, rows: Ints, transfer_ns: Ints | Floats) -> float:
    """Return what compute beside these calls saves in a step of a rank, at most, if they transfer half as long: it is
    slowed for half as long. Where by how much was not measured, nothing is counted (`as_fast_beside`)."""
    end, windows = timeline.collectives.end_ns[rows], given.windows[timeline.rank]
    since = end - np.rint(transfer_ns).astype(np.int64)
    beside = intersection(intersection(union((since, end)), time_of(windows)), given.coverage[timeline.rank].compute)
    found = next(each.interference for each in given.analysis.ranks if each.rank == timeline.rank)
    slower = max(found.high if found else 1.0, 1.0)
    return length(beside) / 2 * (1 - 1 / slower) / max(len(windows), 1)


def as_fast_beside(given: RuleInput) -> list[str]:
    """Return what is assumed of compute beside calls where there is some, and it was not measured by how much they
    slow it; else nothing."""
    measured = {each.rank for each in given.analysis.ranks if each.interference is not None}
    covers = [(given.coverage[each.rank], own) for each, own in given.some_ranks() if each.rank not in measured]
    beside = any(length(intersection(intersection(one.comm, one.compute), time_of(own))) for one, own in covers)
    return [AS_FAST] if beside else []


def moving_ns(timeline: RankTimeline, rows: Ints, transfer_ns: Ints) -> Ints:
    """Return for how long each of these calls moves its bytes, at most: the rest of its transfer is latency.

    A byte takes at most `OF_LARGER` times as long as one of the fast calls of its group, operation and type that are as
    large, or larger.
    """
    calls = timeline.collectives
    known = np.flatnonzero((calls.group[rows] >= 0) & (calls.bytes[rows] > 0))
    sizes, took = calls.bytes[rows[known]], transfer_ns[known]
    columns = [each[rows[known]] for each in (calls.op, calls.group, calls.dtype)]
    kind, first = factorize_rows([*columns, sizes])
    ns_a_byte = np.full(first.size, np.inf)
    for own in of_many_calls(kind):
        ns_a_byte[kind[own[0]]] = np.quantile(took[own], BASELINE_QUANTILE) / sizes[own[0]]
    for of_group in split_by(factorize_rows([each[first] for each in columns])[0]):
        own = of_group[sort_order(-sizes[first[of_group]])]
        ns_a_byte[own] = np.minimum.accumulate(ns_a_byte[own])
    found = transfer_ns.copy()
    found[known] = np.minimum(took, np.ceil(OF_LARGER * ns_a_byte[kind] * sizes)).astype(np.int64)
    return found


def _behind_ns(timeline: RankTimeline, rows: Ints, lane: Ints) -> Floats:
    """Return for how long each of these calls, sorted by stream and start, had stood behind the one before it, at most,
    where it directly follows: since its launch, and since compute launched before it had ended, if no call of its
    stream began while such compute went on; `ANY` where no launch is known."""
    calls = timeline.collectives
    launch, start = calls.launch_ns[rows], calls.start_ns[rows]
    gap = start[1:] - calls.end_ns[rows[:-1]]
    computed = _computed_before_ns(timeline, launch)
    waits = ~np.isin(lane, lane[(launch != NONE) & (computed > start + AT_ONCE_NS)])
    since = np.where(waits, np.maximum(launch, computed), launch)[1:]
    behind = np.where(launch[1:] == NONE, ANY, np.maximum(start[1:] - since, 0))
    return np.append(0.0, np.where((gap <= DIRECTLY_NS) & (lane[1:] == lane[:-1]), behind, 0.0))


def _computed_before_ns(timeline: RankTimeline, launch: Ints) -> Ints:
    """Return when all compute launched before each of these launches, on the stream with most compute, had ended: calls
    mostly wait for what was launched there before them (`syncStream` in torch's ProcessGroupNCCL); NONE for none."""
    spans = timeline.spans
    computes = (spans.kind == COMPUTE) & (spans.launch_ns != NONE)
    if not timeline.has_device or not computes.any():
        return np.full(launch.size, NONE)
    took = sum_by(spans.lane[computes], (spans.end_ns - spans.start_ns)[computes], int(spans.lane.max()) + 1)
    rows = np.flatnonzero(computes & (spans.lane == took.argmax()))
    rows = rows[sort_order(spans.launch_ns[rows])]
    ended = np.append(NONE, np.maximum.accumulate(spans.end_ns[rows]))
    return ended[np.searchsorted(spans.launch_ns[rows], launch, side="left")]
