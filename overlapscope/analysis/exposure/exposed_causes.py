"""Assign exactly one cause to every exposed nanosecond of communication (docs/definitions.md).

Each moment belongs to the collective in flight that ends last (ties: the one that began first). A collective is divided
from its start on: wait for the last member, but for gaps between kernels that follow each other without the call
(`behind_compute`, which is no exposed wait), by what that rank did longer since the two last met, or began to record
(as much later as it began is nobody's lateness; where the system's account of both is known, waiting for a core is
neither computing nor idling, and sleep in what seems to be compute is idling; where it was longer in messages between
stages of a pipeline, the wait is the pipeline's, as while that drains; without it hosts that take turns on cores
wait for one where they pause in operations); what it ended later than another rank, where one clock shows that its last
member had begun; transfer beyond the baseline, without a device after those of its group that began earlier; and the
rest as the rank's dependency graph says, by what the next compute waited for. Where the graph may not say: delay by a
late launch; delay by queueing, both as far as they delay its group; and the rest, by what the step computes after it,
or a later one at its end; where the transfer time of a call is not known, the time until the last member arrived is
still wait, and the rest is `unknown`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import CAUSES, EXPOSED_WAIT
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.activities import Activities, Did, activities_of, divided
from overlapscope.analysis.exposure.arrivals import Arrivals, arrivals
from overlapscope.analysis.exposure.core_waiting import NOT_KNOWN, core_waiting, in_turn
from overlapscope.analysis.exposure.group_delays import within_group
from overlapscope.analysis.exposure.last_met import meetings
from overlapscope.analysis.exposure.own_parts import OwnParts, own_parts
from overlapscope.analysis.exposure.owned_comm import OwnedComm, cut, of_rows, only
from overlapscope.analysis.exposure.peer_activity import peer_activity
from overlapscope.analysis.exposure.peer_waits import (
    START,
    PeerWaits,
    by_what_the_last_did_longer,
    longer_than_waiting,
    peer_waits,
)
from overlapscope.analysis.exposure.put_off_work import without_put_off_work
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.own_causes import own_causes
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_runs import readable_host_runs
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import (
    EMPTY,
    Activity,
    BusyTime,
    Intervals,
    WindowSets,
    difference,
    intersection,
    length,
    union,
)
from overlapscope.timeline.run import RankTimeline, Run

LATE_END: Final = "late_end"
UNSEEN: Final = "peer_unrecorded"
GAPS: Final = "behind_compute"
DELAYS: Final = ("late_launch", "queued")
"""Causes before a call began."""
ROWS_AT_ONCE: Final = 250_000
"""Rows (calls, pieces of exposed and overlapped communication) held at a time; this limits the ranks of a batch."""


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed time of one rank by cause and by collective, and its overlapped wait time."""

    busy: Mapping[str, BusyTime]
    exposed_ns: Ints
    """Exposed nanoseconds that each row of the rank's `Collectives` owns, without `start_of_recording`."""
    unsplit_ns: Mapping[str, int]
    """Nanoseconds of each cause, of the whole recording, in calls that are not split into wait and transfer."""
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
        found: list[dict[str, int]] = [{} for _ in range(sets.sets)]
        for cause in CAUSES:
            for own, ns in zip(found, sets.within(self.busy[cause]), strict=True):
                if ns:
                    own[cause] = ns
        return found

    def exposed_wait_ns(self, sets: WindowSets, causes: Sequence[Mapping[str, int]]) -> list[int | None]:
        """Return the exposed wait time in each set, but for pipelines; None where an exposed call has none known.
        `causes` are those of each set."""
        unknown = sets.within(self.exposed_unknown)
        waits = (sum(own.get(cause, 0) for cause in EXPOSED_WAIT) for own in causes)
        return [None if some else wait for some, wait in zip(unknown, waits, strict=True)]

    def hidden_wait_ns(self, sets: WindowSets) -> list[int | None]:
        """Return the overlapped wait time in each set; None where an overlapped call has no known wait time."""
        unknown, waits = sets.within(self.hidden_unknown), sets.within(self.hidden_wait)
        return [None if some else wait for some, wait in zip(unknown, waits, strict=True)]


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
    arrived: Mapping[int, Arrivals] | None = None,
) -> Iterator[tuple[int, Causes]]:
    """Yield (rank, causes), rank by rank; spans are not needed any more. `arrived` are the `arrivals`, where the caller
    has them.

    Ranks are processed in batches: what the ranks of a batch waited for is looked up in one other rank after the other.
    """
    arrived = arrived or arrivals(run, cross_rank)
    parts = within_group(parts, arrived)
    members = {group.name: np.array(group.ranks, np.int64) for group in run.groups if group.ranks}
    meets = meetings(run, cross_rank, coverage)
    waiting = {rank: own.waiting for rank, own in parts.items() if own.waiting is not None}
    did = {
        rank: activities_of(timeline, coverage[rank], waiting.get(rank, NOT_KNOWN))
        for rank, timeline in run.ranks.items()
    }
    waits: dict[int, PeerWaits] = {}
    rows = 0
    for rank, timeline in run.ranks.items():
        waits[rank] = peer_waits(
            timeline, parts[rank], coverage[rank], transfers[rank], arrived[rank], members, waiting.keys(), did[rank],
            meets[rank], cross_rank.began_ns,
        )  # fmt: skip
        rows += waits[rank].rows
        if rows >= ROWS_AT_ONCE:
            yield from _causes_of(run, parts, coverage, transfers, waits, did, cross_rank.clocks)
            waits, rows = {}, 0
    yield from _causes_of(run, parts, coverage, transfers, waits, did, cross_rank.clocks)


def _causes_of(
    run: Run,
    parts: Mapping[int, OwnParts],
    coverage: Mapping[int, Coverage],
    transfers: Mapping[int, Transfers],
    waits: Mapping[int, PeerWaits],
    did: Mapping[int, Activities],
    clocks: Clocks,
) -> Iterator[tuple[int, Causes]]:
    query = {rank: each.query for rank, each in waits.items()}

    def when(rank: int, name: str) -> Activity:
        return did[rank][name]

    found = peer_activity(query, {name: partial(when, name=name) for name in Did.__struct_fields__}, clocks)
    longer = {}
    for rank, its in waits.items():
        windows = its.query.windows
        theirs = Did(**found[rank])
        longer[rank] = longer_than_waiting(its, divided(windows.ends - windows.starts, theirs, its.accounted), theirs)
    longer = without_put_off_work(longer, waits, coverage, parts, did, clocks)
    for rank, its in waits.items():
        waited = by_what_the_last_did_longer(its, longer[rank])
        yield rank, _of_rank(run.ranks[rank], parts[rank], transfers[rank], its, waited)


def _of_rank(
    timeline: RankTimeline, own: OwnParts, transfers: Transfers, waits: PeerWaits, waited: Mapping[str, Intervals]
) -> Causes:
    own_comm, exposed, hidden, arrived = own.own_comm, waits.exposed, waits.hidden, waits.arrived
    transfer, of_pipeline = waits.transfer, waits.of_pipeline
    matched = transfer != NONE
    parts: dict[str, list[Intervals]] = {cause: [] for cause in CAUSES}
    # Between kernels that follow each other without the call nobody is waited for.
    gaps = (own.by_graph or {}).get(GAPS, EMPTY)
    others = ((START, waits.at_start), (LATE_END, waits.ended_late), (UNSEEN, waits.for_unseen))
    for cause, found in (*waited.items(), *others):
        parts[cause].append(difference(found, gaps))
        parts[GAPS].append(intersection(found, gaps))
    slow, late, queued, rest = _transfer_parts(own, transfers, arrived, transfer, matched)
    parts["slow_transfer"].append(intersection(only(cut(own_comm, arrived, slow)), exposed))
    if own.by_graph is not None:
        for cause, times in _as_the_graph_says(own, own.by_graph, slow, of_pipeline):
            parts[cause].append(times)
    else:
        for cause, begin, end in (("late_launch", slow, late), ("queued", late, queued)):
            parts[cause].append(intersection(only(cut(own_comm, begin, end)), exposed))
        for cause, chosen in _rest_causes(own, matched, of_pipeline).items():
            parts[cause].append(intersection(only(cut(own_comm, queued, rest), chosen), exposed))
    unknown = only(cut(own_comm, own_comm.start_ns, own_comm.end_ns), ~matched)
    # Until a device had worked off what was launched before the recording, nothing that is known waited for a call.
    before = (own.by_graph or {}).get(START, EMPTY)
    by_cause = {cause: difference(union(*found), before) for cause, found in parts.items()}
    by_cause[START] = union(by_cause[START], before)
    known = difference(exposed, by_cause[START])
    unsplit = {cause: length(intersection(found, unknown)) for cause, found in by_cause.items()}
    return Causes(
        unsplit_ns={cause: ns for cause, ns in unsplit.items() if ns},
        busy={cause: BusyTime(found) for cause, found in by_cause.items()},
        exposed_ns=_by_row(timeline, own_comm, known),
        exposed_unknown=BusyTime(intersection(unknown, known)),
        hidden_wait=BusyTime(intersection(only(cut(own_comm, own_comm.start_ns, arrived)), hidden)),
        hidden_unknown=BusyTime(intersection(unknown, hidden)),
    )


def _transfer_parts(
    own: OwnParts,
    transfers: Transfers,
    arrived: Ints,
    transfer: Ints,
    matched: Flags,
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the ends of the parts after `arrived`: slow transfer, late launch, queueing, and the collective itself."""
    own_comm = own.own_comm
    baseline = of_rows(transfers.baseline_ns, own_comm, NONE)
    # Beside calls that began earlier it takes its turn.
    alone = own_comm.end_ns - np.maximum(arrived, own.others_until_ns)
    slow = np.where(matched & (baseline != NONE), np.maximum(alone - baseline, 0), 0)
    ends = []
    at = arrived
    # Of a delay what the call would have waited anyway is no part.
    launched = own_comm.start_ns + own.late_ns
    for until in (arrived + slow, launched, launched + own.queued_ns):
        at = np.minimum(np.maximum(at, until), own_comm.end_ns)
        ends.append(at)
    return ends[0], ends[1], ends[2], own_comm.end_ns


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

    Of a pipeline's calls only delays are told apart. What depends on a call is `tail` where it is the step's optimizer
    alone: from when on no other compute begins in the step.
    """
    left = cut(own.own_comm, since_ns, own.own_comm.end_ns)
    ends_step = own.before_optimizer & ~of_pipeline
    others, pipeline = (only(left, chosen) for chosen in (~of_pipeline & ~ends_step, of_pipeline))
    only_tail = only((np.maximum(left[0], own.last_before_optimizer_ns), left[1]), ends_step)
    before = only((left[0], np.minimum(left[1], own.last_before_optimizer_ns)), ends_step)
    for cause, times in by_graph.items():
        delay = cause in DELAYS
        yield cause, intersection(others, times)
        yield cause, intersection(before, times)
        yield "tail" if cause in ("dependency", "host_waited", "ahead") else cause, intersection(only_tail, times)
        yield cause if delay else PIPELINE, intersection(pipeline, times)


def _by_row(timeline: RankTimeline, own_comm: OwnedComm, exposed: Intervals) -> Ints:
    found = np.zeros(timeline.collectives.op.size, np.int64)
    own = own_comm.row != NONE
    found[own_comm.row[own]] = BusyTime(exposed).within(own_comm.start_ns[own], own_comm.until_ns[own])
    return found
