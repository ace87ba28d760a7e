"""Assign exactly one cause to every exposed nanosecond of communication (docs/definitions.md).

Each moment belongs to the collective in flight that ends last (ties: the one that began first). A collective is divided
from its start on: wait for the last member, by what that rank did longer since the two last met (where the system's
account of both is known, waiting for a core is neither computing nor idling, and sleep in what seems to be compute is
idling; without it hosts that take turns on cores wait for one where they pause in operations); what
it ended later than another rank, where one clock shows that its last member had begun; transfer beyond the baseline,
without a device after those of its group that began earlier; and the rest as the rank's dependency graph says, by what
the next compute waited for. Where the graph may not say: delay by a late launch; delay by queueing; and the rest, by
what the step computes after it; where the transfer time of a call is not known, the time until the last member arrived
is still wait, and the rest is `unknown`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.common.cause_table import CAUSES, EXPOSED_WAIT
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.exposure.arrivals import Arrivals, arrivals
from overlapscope.analysis.exposure.core_waiting import NEVER, NOT_KNOWN, CoreWaiting, core_waiting, in_turn
from overlapscope.analysis.exposure.peer_activity import PeerQuery, peer_activity
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.analysis.graph.own_causes import own_causes
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.following_compute import following
from overlapscope.analysis.per_rank.host_runs import readable_host_runs
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.intervals import (
    Activity,
    BusyTime,
    Intervals,
    WindowSets,
    difference,
    intersection,
    parts_inside,
    union,
)
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.rows import sort_order, sum_by, values_in
from overlapscope.timeline.run import RankTimeline, Run

PIPELINE: Final = "pipeline"
START: Final = "start_of_recording"
LATE_END: Final = "late_end"
DELAYS: Final = ("late_launch", "queued")
"""Causes before a call began."""
OF_LATE_RANK: Final = ("peer_compute", "peer_core", "peer_comm", "peer_host")
"""Causes of waiting for the last member, by what it did longer."""
AT_END_NS: Final = 1_000_000
"""Before the end of a call without a device: its host waited for it if it mostly computed nothing there. A choice: ends
are marked some 0.1 ms late, and small buckets take as long as this."""
AT_END_OF_DEVICE_NS: Final = 10_000
"""As much of the end of a call on a device, whose marks are exact. A choice: longer than the pauses between kernels."""
ROWS_AT_ONCE: Final = 250_000
"""Rows (calls, pieces of exposed and overlapped communication) held at a time; this limits the ranks of a batch."""


class OwnedComm(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of one rank, each moment owned by one collective or lone span: it owns `[start, until)`."""

    row: Ints
    """Row in `Collectives`; NONE for a span that belongs to no collective."""
    start_ns: Ints
    end_ns: Ints
    until_ns: Ints


class OwnParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's own spans show of the causes of its exposed communication; one row for each owner."""

    own_comm: OwnedComm
    late_ns: Ints
    """Time from data ready to launch."""
    queued_ns: Ints
    """Time from both to the start."""
    optimizer_seen: Flags
    """Whether the optimizer of its step was recorded; without it, `depends` is not known."""
    depends: Flags
    """Whether other compute than the optimizer's follows in the step; of a serial call whose step's optimizer was not
    recorded, whether any compute follows."""
    others_until_ns: Ints
    """Until when collectives of its group that began earlier were in flight, where no device queues them; else NONE."""
    serial: Flags
    """Whether it runs on the stream of the rank's compute: nothing there runs beside it, whenever it is launched."""
    by_graph: Mapping[str, Intervals] | None
    """All exposed time by cause, as the rank's graph alone says; None where it may not."""
    waiting: CoreWaiting | None = None
    """When it waited for a core, or slept though it seemed to compute; None where neither is known."""


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed time of one rank by cause and by collective, and its overlapped wait time."""

    busy: Mapping[str, BusyTime]
    exposed_ns: Ints
    """Exposed nanoseconds that each row of the rank's `Collectives` owns."""
    exposed_unknown: BusyTime
    """Exposed communication whose wait time is not known."""
    hidden_wait: BusyTime
    hidden_unknown: BusyTime
    """Overlapped communication whose wait time is not known."""

    def within(self, *windows: tuple[int, int]) -> dict[str, int]:
        """Return the nanoseconds of each cause, summed over the windows; causes without any are left out."""
        return self.within_each(WindowSets.of([windows]))[0]

    def within_each(self, sets: WindowSets) -> list[dict[str, int]]:
        """Return the nanoseconds of each cause for each of several sets of windows."""
        columns = [sets.within(self.busy[cause]) for cause in CAUSES]
        return [
            {cause: total for cause, total in zip(CAUSES, sums, strict=True) if total}
            for sums in zip(*columns, strict=True)
        ]

    def exposed_wait_ns(self, sets: WindowSets) -> list[int | None]:
        """Return the exposed wait time in each set, but for pipelines; None where an exposed call has none known."""
        waits = np.sum([sets.within(self.busy[cause]) for cause in EXPOSED_WAIT], axis=0).tolist()
        unknown = sets.within(self.exposed_unknown)
        return [None if some else wait for some, wait in zip(unknown, waits, strict=True)]

    def hidden_wait_ns(self, sets: WindowSets) -> list[int | None]:
        """Return the overlapped wait time in each set; None where an overlapped call has no known wait time."""
        unknown, waits = sets.within(self.hidden_unknown), sets.within(self.hidden_wait)
        return [None if some else wait for some, wait in zip(unknown, waits, strict=True)]


def own_communication(timeline: RankTimeline) -> OwnedComm:
    """Assign each moment of a rank's communication to one owner.

    Owners are sorted by end, latest first. One that ends later owns everything from its start on, so each owns the time
    before the earliest start of those that end later.
    """
    calls, spans = timeline.collectives, timeline.spans
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    lone = np.flatnonzero((spans.kind == COMM) & (spans.collective == NONE))
    row = np.concatenate([timed, np.full(lone.size, NONE, np.int64)])
    start = np.concatenate([calls.start_ns[timed], spans.start_ns[lone]])
    end = np.concatenate([calls.end_ns[timed], spans.end_ns[lone]])
    order = sort_order(-end, start)
    row, start, end = row[order], start[order], end[order]
    earliest = np.minimum.accumulate(start) if start.size else start
    taken_from = np.concatenate([np.full(min(1, start.size), np.iinfo(np.int64).max), earliest[:-1]])
    until = np.maximum(np.minimum(end, taken_from), start)
    return OwnedComm(row=row, start_ns=start, end_ns=end, until_ns=until)


def own_parts(timeline: RankTimeline, causes: OwnCauses, waiting: CoreWaiting | None = None) -> OwnParts:
    """Compute how long each call of a rank waited on the rank itself, and what follows it.

    `causes` are those of its graph (`own_causes`), `waiting` is the result of `core_waiting`.
    """
    own_comm = own_communication(timeline)
    launch = _of_rows(timeline.collectives.launch_ns, own_comm, NONE)
    ready = _ready(timeline, launch)
    # Where compute was not recorded, as in graphs without their nodes, nobody knows when data were ready.
    known = (launch != NONE) & (ready != NONE) & (causes.reason != "unexplained_waits")
    step, after = _of_rows(timeline.collectives.step, own_comm, NONE), following(timeline)
    serial, optimizer_seen = _serial(timeline, own_comm), (step != NONE) & after.known(step)
    last_compute_ns = timeline.spans.start_ns[timeline.spans.kind == COMPUTE].max(initial=NONE)
    return OwnParts(
        own_comm=own_comm,
        late_ns=np.where(known & ~serial & _computed_beside(timeline, own_comm), np.maximum(launch - ready, 0), 0),
        queued_ns=np.where(known & ~serial, np.maximum(own_comm.start_ns - np.maximum(launch, ready), 0), 0),
        optimizer_seen=optimizer_seen,
        depends=np.where(
            serial & ~optimizer_seen, last_compute_ns >= own_comm.end_ns, after.depends(step, own_comm.end_ns)
        ),
        others_until_ns=_others_until(timeline, own_comm),
        serial=serial,
        by_graph=causes.exposed,
        waiting=waiting,
    )


def _computed_beside(timeline: RankTimeline, own_comm: OwnedComm) -> Flags:
    """Return beside which calls anything was computed: launched earlier, another one would have hidden nothing."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    computing = BusyTime(union((spans.start_ns[rows], spans.end_ns[rows])))
    return np.asarray(computing.within(own_comm.start_ns, own_comm.end_ns) > 0, np.bool_)


def _others_until(timeline: RankTimeline, own_comm: OwnedComm) -> Ints:
    """Return until when collectives of the same group that began before each one were in flight; NONE on a device,
    which queues its calls, and for messages, which may last until they are waited for."""
    found = np.full(own_comm.start_ns.size, NONE, np.int64)
    if timeline.has_device:
        return found
    calls, names = timeline.collectives, timeline.names
    messages = np.append(rows_named(calls.op, names, POINT_TO_POINT.__contains__), True)
    rows = np.flatnonzero(~messages[np.where(own_comm.row == NONE, -1, own_comm.row)])
    group = calls.group[own_comm.row[rows]]
    for each in values_in(group).tolist():
        own = rows[group == each]
        own = own[sort_order(own_comm.start_ns[own])]
        starts = own_comm.start_ns[own]
        latest = np.append(NONE, np.maximum.accumulate(own_comm.end_ns[own]))
        found[own] = latest[np.searchsorted(starts, starts, side="left")]
    return found


def causes_of(
    run: Run,
    cross_rank: CrossRank,
    coverage: Mapping[int, Coverage],
    graphs: BuiltGraphs | None = None,
    turns: Mapping[int, Intervals] | None = None,
) -> dict[int, Causes]:
    """Return the causes of every rank; `graphs` are those of the run, where the caller has them, and `turns` is when
    hosts that take turns on cores, by rank, waited for one."""
    graphs = graphs or BuiltGraphs(run)
    parts = {}
    for rank, timeline in run.ranks.items():
        host = readable_host_runs(timeline, coverage[rank])
        waited = (turns or {}).get(rank)
        if host is None or waited is None:
            waiting = core_waiting(timeline, coverage[rank], host)
        else:
            waiting = in_turn(host, waited)
        parts[rank] = own_parts(timeline, own_causes(timeline, graphs), waiting)
    return dict(each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run)))


def each_causes(
    run: Run,
    cross_rank: CrossRank,
    coverage: Mapping[int, Coverage],
    parts: Mapping[int, OwnParts],
    transfers: Mapping[int, Transfers],
) -> Iterator[tuple[int, Causes]]:
    """Yield (rank, causes), rank by rank; spans are not needed any more.

    Ranks are processed in batches: what the ranks of a batch waited for is looked up in one other rank after the other.
    """
    arrived = arrivals(run, cross_rank)
    members = {group.name: np.array(group.ranks, np.int64) for group in run.groups if group.ranks}
    meets = _meetings(run, cross_rank, coverage)
    waiting = {rank: own.waiting for rank, own in parts.items() if own.waiting is not None}
    waits: dict[int, _Waits] = {}
    rows = 0
    for rank, timeline in run.ranks.items():
        waits[rank] = _waits_of(
            timeline, parts[rank], coverage[rank], transfers[rank], arrived[rank], members, waiting, meets[rank]
        )
        rows += waits[rank].rows
        if rows >= ROWS_AT_ONCE:
            yield from _causes_of(run, parts, coverage, transfers, waits, waiting, cross_rank.clocks)
            waits, rows = {}, 0
    yield from _causes_of(run, parts, coverage, transfers, waits, waiting, cross_rank.clocks)


class _Waits(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of one rank, before it is known what the other ranks did meanwhile."""

    exposed: Intervals
    hidden: Intervals
    transfer: Ints
    of_pipeline: Flags
    arrived: Ints
    at_start: Intervals
    """Exposed wait that the spread of the recordings' starts explains."""
    ended_late: Intervals
    """Exposed time between the begin of the last member and what is left for the transfer."""
    pieces: Intervals
    """The rest of the exposed wait."""
    asked: Ints
    """Which window of the query each piece is about."""
    own: Ints
    """What this rank did in each window until it came, and what its device computed beside its wait: as `divided`
    returns it."""
    accounted: Flags
    """For which windows it is known how long both ranks waited for a core, or stood still."""
    query: PeerQuery
    """From when this rank and the one that arrived last had last met, until that one came."""

    @property
    def rows(self) -> int:
        """Number of rows held in memory."""
        return self.exposed.starts.size + self.hidden.starts.size + self.arrived.size + self.pieces.starts.size


def _waits_of(
    timeline: RankTimeline, own: OwnParts, cover: Coverage, transfers: Transfers, arrived_last: Arrivals,
    members: Mapping[str, Ints], waiting: Mapping[int, CoreWaiting], meets: Flags,
) -> _Waits:  # fmt: skip
    own_comm, comm, compute = own.own_comm, cover.comm, cover.compute
    exposed = difference(comm, compute)
    transfer = _of_rows(transfers.transfer_ns, own_comm, NONE)
    of_pipeline = _of_rows(_pipeline_rows(timeline), own_comm, False) & (transfer == NONE)
    last = np.where(of_pipeline, NONE, _of_rows(arrived_last.last, own_comm, NONE))
    arrived = np.where(last != NONE, _of_rows(arrived_last.arrived_ns, own_comm, NONE), own_comm.start_ns)
    met = np.minimum(own_comm.start_ns + _of_rows(arrived_last.start_wait_ns, own_comm, 0), arrived)
    began = _of_rows(arrived_last.began_ns, own_comm, NONE)
    came_last = np.where((last != NONE) & (began != NONE), np.clip(began, met, arrived), arrived)
    begin, until = _cut(own_comm, met, came_last)
    held = np.flatnonzero((last != NONE) & (until > begin))
    held = held[sort_order(begin[held])]  # owned times are disjoint
    pieces, asked = parts_inside(Intervals(begin[held], until[held]), exposed)
    # Without a device data are ready at the call: what another call delayed, this rank had done before.
    ready = NONE if timeline.has_device else _of_rows(timeline.collectives.launch_ns, own_comm, NONE)
    came = np.where(ready == NONE, own_comm.start_ns, np.minimum(ready, own_comm.start_ns))[held]
    met_before = np.minimum(last_met(timeline, cover, own_comm.row[held], came, last[held], members, meets), came)
    accounted = np.isin(last[held], list(waiting)) & (timeline.rank in waiting)
    core = waiting.get(timeline.rank, NOT_KNOWN)
    did = [each.within(met_before, came) for each in activities_of(timeline, cover, core)]
    # A device that waits in a call may compute beside it: the other rank has that to compute, too.
    beside = BusyTime(compute).within(came, came_last[held]) if timeline.has_device else np.zeros_like(came)
    did[0] = did[0] + beside
    return _Waits(
        exposed=exposed,
        hidden=intersection(comm, compute),
        transfer=transfer,
        of_pipeline=of_pipeline,
        arrived=arrived,
        at_start=intersection(_only(_cut(own_comm, own_comm.start_ns, met), last != NONE), exposed),
        ended_late=intersection(_only(_cut(own_comm, came_last, arrived), last != NONE), exposed),
        pieces=pieces,
        asked=asked,
        own=divided(came - met_before + beside, did, accounted),
        accounted=accounted,
        query=PeerQuery(windows=Intervals(met_before, came_last[held]), others=last[held]),
    )


def activities_of(timeline: RankTimeline, cover: Coverage, core: CoreWaiting) -> Sequence[Activity]:
    """Return what a rank did, as `divided` takes it."""
    exposed = BusyTime(difference(cover.comm, cover.compute))
    return _computing(timeline, cover), core.computing, _slept(core), exposed, core.idling


def _computing(timeline: RankTimeline, cover: Coverage) -> BusyTime:
    """Return when a rank computed, as others see it that wait for it: no host while it was seen to collect garbage."""
    if timeline.has_device:
        return BusyTime(cover.compute)
    return BusyTime(difference(cover.compute, recorded_pauses(timeline, COLLECTOR)))


def _slept(core: CoreWaiting) -> Activity:
    """Return when a rank slept though it seemed to compute, by the system's account: an operation that takes longer
    than in other steps computes longer, for what is known."""
    return core.sleeping if core.by_account else NEVER


def last_met(
    timeline: RankTimeline, cover: Coverage, rows: Ints, came: Ints, others: Ints, members: Mapping[str, Ints],
    meets: Flags | None = None,
) -> Ints:  # fmt: skip
    """Return when the latest earlier call with each other rank ended; without one, when the rank's first span began.

    Two ranks meet in calls of the group in question, and of each group that is known to hold both; not in messages,
    which others of the group exchange; only where the rank waited for the call, which it did not beside backward; and
    only in calls that `meets` allows.
    """
    calls, spans = timeline.collectives, timeline.spans
    met = np.full(rows.size, spans.start_ns.min(initial=np.iinfo(np.int64).max), np.int64)
    timed = calls.end_ns != NONE if meets is None else (calls.end_ns != NONE) & meets
    timed[timed] = ~_computed_on(timeline, cover, calls.start_ns[timed], calls.end_ns[timed])
    messages = rows_named(calls.op, timeline.names, POINT_TO_POINT.__contains__)
    for code in values_in(calls.group[timed]).tolist():
        name = timeline.names[code] if code != NONE else None
        both = (calls.group[rows] == code) | np.isin(others, members.get(name or "", ()))
        for kind in (False, True):  # a message is between two ranks of its group alone
            ends = np.sort(calls.end_ns[timed & (calls.group == code) & (messages == kind)])
            before = np.searchsorted(ends, came, side="right") - 1
            found = both & (before >= 0) & (messages[rows] | (not kind))
            met[found] = np.maximum(met[found], ends[before[found]])
    return met


def _meetings(run: Run, cross_rank: CrossRank, coverage: Mapping[int, Coverage]) -> dict[int, Flags]:
    """Return for each row of a rank's `Collectives` whether its members may have met in it.

    Not where the device that came last mostly computed beside its end: it still had to do what the others had done
    before, beside their wait.
    """
    found = {rank: np.ones(timeline.collectives.op.size, np.bool_) for rank, timeline in run.ranks.items()}
    computed_on: dict[int, Flags] = {}
    for split in (*cross_rank.splits, *cross_rank.uneven):
        block = split.block
        meets = np.ones(block.calls, np.bool_)
        for row in values_in(split.last).tolist():
            timeline, mine = run.ranks[block.ranks[row]], split.last == row
            if timeline.has_device:
                if timeline.rank not in computed_on:
                    calls = timeline.collectives
                    computed_on[timeline.rank] = _computed_on(
                        timeline, coverage[timeline.rank], calls.start_ns, calls.end_ns
                    )
                meets[mine] = ~computed_on[timeline.rank][block.rows[row, mine]]
        for rank, rows in zip(block.ranks, block.rows, strict=True):
            found[rank][rows] = meets
    return found


def _computed_on(timeline: RankTimeline, cover: Coverage, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return beside which calls a rank mostly computed at their end: it did not wait for them there."""
    since = np.maximum(start_ns, end_ns - (AT_END_OF_DEVICE_NS if timeline.has_device else AT_END_NS))
    return np.asarray(2 * BusyTime(cover.compute).within(since, end_ns) > end_ns - since, np.bool_)


def _causes_of(
    run: Run,
    parts: Mapping[int, OwnParts],
    coverage: Mapping[int, Coverage],
    transfers: Mapping[int, Transfers],
    waits: Mapping[int, _Waits],
    waiting: Mapping[int, CoreWaiting],
    clocks: Clocks,
) -> Iterator[tuple[int, Causes]]:
    query = {rank: each.query for rank, each in waits.items()}
    did: tuple[Callable[[int], Activity], ...] = (
        lambda rank: _computing(run.ranks[rank], coverage[rank]),
        lambda rank: waiting.get(rank, NOT_KNOWN).computing,
        lambda rank: _slept(waiting.get(rank, NOT_KNOWN)),
        lambda rank: BusyTime(difference(coverage[rank].comm, coverage[rank].compute)),
        lambda rank: waiting.get(rank, NOT_KNOWN).idling,
    )
    found = [peer_activity(query, each, clocks) for each in did]
    for rank, its in waits.items():
        windows = its.query.windows
        theirs = divided(windows.ends - windows.starts, [each[rank] for each in found], its.accounted)
        waited = _by_what_the_last_did_longer(its, theirs)
        yield rank, _of_rank(run.ranks[rank], parts[rank], transfers[rank], its, waited)


def _of_rank(
    timeline: RankTimeline, own: OwnParts, transfers: Transfers, waits: _Waits, waited: Mapping[str, Intervals]
) -> Causes:
    own_comm, exposed, hidden, arrived = own.own_comm, waits.exposed, waits.hidden, waits.arrived
    transfer, of_pipeline = waits.transfer, waits.of_pipeline
    matched = transfer != NONE
    parts: dict[str, list[Intervals]] = {cause: [] for cause in CAUSES}
    for cause, found in (*waited.items(), (START, waits.at_start), (LATE_END, waits.ended_late)):
        parts[cause].append(found)
    slow, late, queued, rest = _transfer_parts(own, transfers, arrived, transfer, matched)
    parts["slow_transfer"].append(intersection(_only(_cut(own_comm, arrived, slow)), exposed))
    if own.by_graph is not None:
        for cause, times in _as_the_graph_says(own, own.by_graph, slow, of_pipeline):
            parts[cause].append(times)
    else:
        for cause, begin, end in (("late_launch", slow, late), ("queued", late, queued)):
            parts[cause].append(intersection(_only(_cut(own_comm, begin, end)), exposed))
        for cause, chosen in _rest_causes(own, matched, of_pipeline).items():
            parts[cause].append(intersection(_only(_cut(own_comm, queued, rest), chosen), exposed))
    unknown = _only(_cut(own_comm, own_comm.start_ns, own_comm.end_ns), ~matched)
    return Causes(
        busy={cause: BusyTime(union(*found)) for cause, found in parts.items()},
        exposed_ns=_by_row(timeline, own_comm, exposed),
        exposed_unknown=BusyTime(intersection(unknown, exposed)),
        hidden_wait=BusyTime(intersection(_only(_cut(own_comm, own_comm.start_ns, arrived)), hidden)),
        hidden_unknown=BusyTime(intersection(unknown, hidden)),
    )


def _of_rows(column: npt.NDArray[Any], own_comm: OwnedComm, otherwise: int | bool) -> npt.NDArray[Any]:
    """Return the value of a `Collectives` column for each owner, and `otherwise` for a lone span."""
    return np.append(column, otherwise)[np.where(own_comm.row == NONE, -1, own_comm.row)].astype(column.dtype)


def _cut(own_comm: OwnedComm, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the part of [begin, end) that each owner owns; an empty part has begin >= end."""
    return np.maximum(begin, own_comm.start_ns), np.minimum(end, own_comm.until_ns)


def _only(parts: tuple[Ints, Ints], chosen: Flags | None = None) -> Intervals:
    return union(parts) if chosen is None else union((parts[0][chosen], parts[1][chosen]))


def divided(length_ns: Ints, activities: Sequence[Ints], accounted: Flags) -> Ints:
    """Return for how long a rank computed, waited for a core, communicated without computing, and did none of these.

    One row for each, in the order of `OF_LATE_RANK`. `activities` are how long, in windows of this length, it seemed to
    compute, waited for a core and slept meanwhile, communicated, and waited for a core while it seemed to idle: waiting
    and sleep count only where they are `accounted`.
    """
    computed, in_compute, asleep, communicated, in_idle = activities
    in_compute, asleep, in_idle = in_compute * accounted, asleep * accounted, in_idle * accounted
    idled = length_ns - computed - communicated - in_idle + asleep
    return np.array([computed - in_compute - asleep, in_compute + in_idle, communicated, idled])


def _by_what_the_last_did_longer(waits: _Waits, theirs: Ints) -> dict[str, Intervals]:
    """Divide exposed wait by what the rank that arrived last did longer than the waiting rank since they last met.

    The waiting rank may have been in a call while it did nothing else: only what it idled and communicated less than
    the late rank idled is of that one's host.
    """
    more = theirs - waits.own
    communicated, idled = (OF_LATE_RANK.index(each) for each in ("peer_comm", "peer_host"))
    more[idled] += np.minimum(more[communicated], 0)
    longer = np.maximum(more, 0)
    until = np.cumsum(longer, axis=0) / np.maximum(longer.sum(axis=0), 1)
    begin, length = waits.pieces.starts, waits.pieces.ends - waits.pieces.starts
    cuts = [begin, *(begin + np.rint(length * share[waits.asked]).astype(np.int64) for share in until[:-1])]
    return {cause: union(each) for cause, each in zip(OF_LATE_RANK, pairwise([*cuts, waits.pieces.ends]), strict=True)}


def _transfer_parts(
    own: OwnParts,
    transfers: Transfers,
    arrived: Ints,
    transfer: Ints,
    matched: Flags,
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the ends of the parts after `arrived`: slow transfer, late launch, queueing, and the collective itself."""
    own_comm = own.own_comm
    baseline = _of_rows(transfers.baseline_ns, own_comm, NONE)
    # Beside calls that began earlier it takes its turn.
    alone = own_comm.end_ns - np.maximum(arrived, own.others_until_ns)
    slow = np.where(matched & (baseline != NONE), np.maximum(alone - baseline, 0), 0)
    ends = []
    at = arrived
    for part in (slow, own.late_ns, own.queued_ns):
        at = np.minimum(at + part, own_comm.end_ns)
        ends.append(at)
    return ends[0], ends[1], ends[2], own_comm.end_ns


def _ready(timeline: RankTimeline, launch: Ints) -> Ints:
    """Return when the data of each launch was ready: when the compute launched before it, on any stream, had ended.

    On a CPU the caller has the data when it calls. A recording of CUDA events marks the readiness itself and shows no
    queue, so the result is NONE.
    """
    if timeline.basis == "events":
        return np.full(launch.size, NONE, np.int64)
    if not timeline.has_device:
        return launch
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.launch_ns != NONE))
    rows = rows[sort_order(spans.launch_ns[rows])]
    if rows.size == 0:
        return np.full(launch.size, NONE, np.int64)
    done = np.maximum.accumulate(spans.end_ns[rows])
    before = np.searchsorted(spans.launch_ns[rows], launch, side="left") - 1
    return np.where(before >= 0, done[np.maximum(before, 0)], NONE)


def _serial(timeline: RankTimeline, own_comm: OwnedComm) -> Flags:
    """Return for each owner whether it is a call that runs on the lane with the most compute time."""
    found = np.zeros(timeline.collectives.op.size, np.bool_)
    spans = timeline.spans
    computes = spans.kind == COMPUTE
    if timeline.has_device and computes.any():
        taken = sum_by(spans.lane[computes], (spans.end_ns - spans.start_ns)[computes], int(spans.lane.max()) + 1)
        found[spans.collective[(spans.collective != NONE) & (spans.lane == taken.argmax())]] = True
    return np.asarray(_of_rows(found, own_comm, False), np.bool_)


def _rest_causes(own: OwnParts, matched: Flags, of_pipeline: Flags) -> dict[str, Flags]:
    known = (matched & own.optimizer_seen) | (own.serial & ~of_pipeline)
    return {
        PIPELINE: of_pipeline,
        "dependency": known & own.depends,
        "tail": known & ~own.depends,
        "unknown": ~known & ~of_pipeline,
    }


def _as_the_graph_says(
    own: OwnParts, by_graph: Mapping[str, Intervals], since_ns: Ints, of_pipeline: Flags
) -> Iterator[tuple[str, Intervals]]:
    """Yield the causes of what is left of each call from a moment on.

    Of a pipeline's calls only delays are told apart. What depends on a call is `tail` where the step's optimizer was
    recorded and alone follows.
    """
    left = _cut(own.own_comm, since_ns, own.own_comm.end_ns)
    ends_step = own.optimizer_seen & ~own.depends & ~of_pipeline
    others, only_tail, pipeline = (
        _only(left, chosen) for chosen in (~of_pipeline & ~ends_step, ends_step, of_pipeline)
    )
    for cause, times in by_graph.items():
        delay = cause in DELAYS
        yield cause, intersection(others, times)
        yield "tail" if cause == "dependency" else cause, intersection(only_tail, times)
        yield cause if delay else PIPELINE, intersection(pipeline, times)


def _pipeline_rows(timeline: RankTimeline) -> Flags:
    """Return for each collective whether it is a send or receive of a pipeline group."""
    calls, names = timeline.collectives, timeline.names
    of_pipeline = rows_named(calls.dimension, names, PIPELINE.__eq__)
    return of_pipeline & rows_named(calls.op, names, POINT_TO_POINT.__contains__)


def _by_row(timeline: RankTimeline, own_comm: OwnedComm, exposed: Intervals) -> Ints:
    found = np.zeros(timeline.collectives.op.size, np.int64)
    own = own_comm.row != NONE
    found[own_comm.row[own]] = BusyTime(exposed).within(own_comm.start_ns[own], own_comm.until_ns[own])
    return found
