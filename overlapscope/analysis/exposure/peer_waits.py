"""Divide the wait for the last member of a call by what that rank did longer since the two last met."""

from collections.abc import Mapping, Set
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.exposure.activities import OF_LATE_RANK, Activities, Did, divided, messages_between_stages
from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.exposure.last_met import Meetings, last_met
from overlapscope.analysis.exposure.own_parts import OwnParts
from overlapscope.analysis.exposure.owned_comm import OwnedComm, cut, of_rows, only
from overlapscope.analysis.exposure.peer_activity import PeerQuery
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.optimizers import launch_times
from overlapscope.timeline.columns import NONE, Flags, Ints, size
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import (
    BusyTime,
    Intervals,
    difference,
    intersection,
    parts_inside,
    union,
)
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import MOST, factorize_rows, smallest_by, sort_order, values_in
from overlapscope.timeline.run import RankTimeline

START: Final = "start_of_recording"


class PeerWaits(msgspec.Struct, frozen=True, kw_only=True):
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
    for_unseen: Intervals
    """Exposed wait for a last member that was not recorded; that of the first calls of a recording is `at_start`."""
    pieces: Intervals
    """The rest of the exposed wait."""
    asked: Ints
    """Which window of the query each piece is about."""
    own: Ints
    """What this rank did in each window until it came, and what its device computed beside its wait: as `divided`
    returns it."""
    own_messages: Ints
    """For how long of that it was in messages between stages of a pipeline alone."""
    accounted: Flags
    """For which windows it is known how long both ranks waited for a core, or stood still."""
    query: PeerQuery
    """From when this rank and the one that arrived last had last met, until that one came."""
    began_later: Ints
    """By how much later than this rank the other one of each window began to record, less what of the wait that
    explains already (`at_start`), for windows since this rank began: the two had not met before; else 0."""
    step_met: Ints
    """For each window, when the two had met before the first call of its step; NONE where that is not known, and
    without a device."""

    @property
    def rows(self) -> int:
        """Number of rows held in memory."""
        return self.exposed.starts.size + self.hidden.starts.size + self.arrived.size + self.pieces.starts.size


def peer_waits(
    timeline: RankTimeline, own: OwnParts, cover: Coverage, transfers: Transfers, arrived_last: Arrivals,
    members: Mapping[str, Ints], waiting: Set[int], did: Activities, meets: Meetings, began_ns: Mapping[int, float],
) -> PeerWaits:  # fmt: skip
    """Return the waits of a rank for the last members of its calls.

    `waiting` are the ranks of which it is known when they waited for a core, `did` is what this one did when
    (`activities_of`), `meets` are the calls in which ranks may have met (`meetings`), `began_ns` when each rank began
    to record, on the common clock, where that is known.
    """
    own_comm, exposed = own.own_comm, difference(cover.comm, cover.compute)
    transfer = of_rows(transfers.transfer_ns, own_comm, NONE)
    of_pipeline = of_rows(messages_between_stages(timeline), own_comm, False) & (transfer == NONE)
    last, arrived, unseen = _who_came_last(own_comm, arrived_last, of_pipeline)
    # Why members came apart to the first call of a recording was before it.
    at_start = unseen & of_rows(_first_calls(timeline), own_comm, False)
    for_unseen = cut(own_comm, own_comm.start_ns, arrived)
    start_wait_ns = of_rows(arrived_last.start_wait_ns, own_comm, 0)
    met = np.minimum(own_comm.start_ns + start_wait_ns, arrived)
    began = of_rows(arrived_last.began_ns, own_comm, NONE)
    came_last = np.where((last != NONE) & (began != NONE), np.clip(began, met, arrived), arrived)
    begin, until = cut(own_comm, met, came_last)
    held = np.flatnonzero((last != NONE) & (until > begin))
    held = held[sort_order(begin[held])]  # owned times are disjoint
    waits = Intervals(begin[held], until[held])
    pieces, asked = parts_inside(waits, exposed)
    before, step_met = _since_they_met(timeline, own_comm, held, cover, last[held], members, meets)
    accounted = np.isin(last[held], list(waiting)) & (timeline.rank in waiting)
    waited_ns = _waited_for_it(timeline, own_comm.row[held], waits, last[held], exposed, before)
    own_did, own_messages = _own_before(timeline, cover, did, before, came_last[held], accounted, waited_ns)
    apart = np.maximum(_began_later(timeline.rank, last[held], began_ns) - start_wait_ns[held], 0)
    return PeerWaits(
        exposed=exposed,
        hidden=intersection(cover.comm, cover.compute),
        transfer=transfer,
        of_pipeline=of_pipeline,
        arrived=arrived,
        at_start=intersection(
            union(only(cut(own_comm, own_comm.start_ns, met), last != NONE), only(for_unseen, at_start)), exposed
        ),
        ended_late=intersection(only(cut(own_comm, came_last, arrived), last != NONE), exposed),
        for_unseen=intersection(only(for_unseen, unseen & ~at_start), exposed),
        pieces=pieces,
        asked=asked,
        own=own_did,
        own_messages=own_messages,
        accounted=accounted,
        query=PeerQuery(windows=Intervals(before.starts, came_last[held]), others=last[held]),
        began_later=np.where(before.starts <= cover.first_ns, apart, 0),
        step_met=step_met,
    )


def _who_came_last(own_comm: OwnedComm, arrived: Arrivals, of_pipeline: Flags) -> tuple[Ints, Ints, Flags]:
    """Return who came last to the call that owns each part of a rank's communication, NONE where that is not known or
    counts as waiting for a pipeline; when, else when the part begins; and whether that one was not recorded."""
    unseen_ns = of_rows(arrived.unseen_ns, own_comm, NONE)
    unseen = unseen_ns != NONE
    last = np.where(of_pipeline | unseen, NONE, of_rows(arrived.last, own_comm, NONE))
    arrived_ns = np.where(last != NONE, of_rows(arrived.arrived_ns, own_comm, NONE), own_comm.start_ns)
    return last, np.where(unseen, unseen_ns, arrived_ns), unseen


def _first_calls(timeline: RankTimeline) -> Flags:
    """Return which calls are the first of their group in a recording, before its first step ended, or before the rank
    had met others in any call: what ranks do later than that was recorded."""
    calls, steps = timeline.collectives, timeline.steps
    order = sort_order(calls.recording, calls.group, calls.start_ns)
    recording, group = calls.recording[order], calls.group[order]
    first = np.zeros(order.size, np.bool_)
    first[order] = np.append(True, (np.diff(recording) != 0) | (np.diff(group) != 0))[: order.size]
    met = (calls.end_ns != NONE) & (calls.group_size != 1)
    recordings = size(timeline.recordings)
    met_ns = smallest_by(calls.recording[met], calls.end_ns[met], recordings)[calls.recording]
    stepped_ns = smallest_by(steps.recording, steps.end_ns, recordings)[calls.recording]
    early = launch_times(timeline, np.arange(order.size)) < np.where(stepped_ns == MOST, NONE, stepped_ns)
    return first & (early | (calls.start_ns < met_ns))


def _began_later(rank: int, others: Ints, began_ns: Mapping[int, float]) -> Ints:
    """Return by how much later than a rank each other one began to record; 0 where that is not known."""
    if rank not in began_ns:
        return np.zeros(others.size, np.int64)
    own_ns, known = began_ns[rank], values_in(others)
    later = [max(round(began_ns.get(other, own_ns) - own_ns), 0) for other in known.tolist()]
    return np.array(later, np.int64)[np.searchsorted(known, others)]


def _since_they_met(
    timeline: RankTimeline, own_comm: OwnedComm, held: Ints, cover: Coverage, others: Ints,
    members: Mapping[str, Ints], meets: Meetings,
) -> tuple[Intervals, Ints]:  # fmt: skip
    """Return the time since a rank and each of the `others` last met until it came to the call of each part `held`; and
    when they had met before the first call of its step, NONE where that is not known."""
    launched = of_rows(timeline.collectives.launch_ns, own_comm, NONE)
    came, rows = when_it_came(timeline, launched, own_comm.start_ns)[held], own_comm.row[held]
    moments = np.stack([came, _began_step(timeline, rows)])
    met, met_before_step = last_met(timeline, cover, rows, moments, others, members, meets)
    # What is no end of a call is the begin of the recording.
    return Intervals(np.minimum(met, came), came), np.where(met_before_step > cover.first_ns, met_before_step, NONE)


def _began_step(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return when the first call of the step of each row began, on a device; NONE where that is not known."""
    calls = timeline.collectives
    if not timeline.has_device or rows.size == 0:
        return np.full(rows.size, NONE, np.int64)
    timed = (calls.start_ns != NONE) & (calls.step != NONE)
    steps, first = factorize_rows([calls.recording, calls.step])
    began = smallest_by(steps[timed], calls.start_ns[timed], first.size)
    return np.where(timed, began[steps], NONE)[rows]


def when_it_came(timeline: RankTimeline, launch_ns: Ints, start_ns: Ints) -> Ints:
    """Return when a rank came to its calls, which were launched and started then.

    Without a device data are ready at the call: what another call delayed, this rank had done before.
    """
    if timeline.has_device:
        return start_ns
    return np.where(launch_ns == NONE, start_ns, np.minimum(launch_ns, start_ns))


def _waited_for_it(
    timeline: RankTimeline, rows: Ints, waits: Intervals, last: Ints, exposed: Intervals, before: Intervals
) -> Ints:
    """Return for how long, within each window `before` a call, a device had waited already for the rank that came last
    to it: in earlier calls, without computing; in no messages, in which ranks wait in turn.

    `waits` are those in each of the calls `rows`, for ranks `last`. 0 without a device: what a host does beside
    its calls decides when it comes to the next.
    """
    found = np.zeros(last.size, np.int64)
    messages = rows_named(timeline.collectives.op, timeline.names, POINT_TO_POINT.__contains__)[rows]
    for rank in values_in(last[~messages]).tolist() if timeline.has_device else ():
        own = (last == rank) & ~messages
        waited = BusyTime(intersection(union((waits.starts[own], waits.ends[own])), exposed))
        found[own] = waited.within(before.starts[own], before.ends[own])
    return found


def _own_before(
    timeline: RankTimeline, cover: Coverage, its: Activities, before: Intervals, came_last: Ints, accounted: Flags,
    waited_ns: Ints,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return what a rank did before it came to calls, as `divided` returns it, and for how long it was in messages.

    For how long it had waited for the other one already, `waited_ns`, is nothing that it did. A device that waits in a
    call may compute and copy beside it, with gaps between: the other rank has that to do, too.
    """
    came = before.ends
    did = Did.within(before.starts, came, its)
    waited_ns = np.minimum(waited_ns, did.communicated)
    length_ns = came - before.starts - waited_ns
    did = replace(did, communicated=did.communicated - waited_ns)
    if timeline.has_device:
        length_ns = length_ns + _until_idle(cover, came, came_last) - came
        did = replace(
            did,
            computed=did.computed + its["computed"].within(came, came_last),
            copied=did.copied + its["copied"].within(came, came_last),
        )
    return divided(length_ns, did, accounted), did.messaged


def _until_idle(cover: Coverage, since: Ints, until: Ints) -> Ints:
    """Return when a device last computed or copied between two moments; the first where it did not."""
    busy = union(cover.compute, cover.copy)
    at = np.searchsorted(busy.starts, until, side="left") - 1
    last: Ints = np.append(busy.ends, NONE)[at]
    return np.maximum(np.minimum(last, until), since)


def longer_than_waiting(waits: PeerWaits, theirs: Ints, did: Did) -> Ints:
    """Return what the rank that arrived last did longer than the waiting rank since they last met, in each window, in
    ns: one row for each of `OF_LATE_RANK`; then how long what it did was not recorded yet, which is no idling; and how
    much longer it was in messages between stages, which is no part of what it communicated longer then: while a
    pipeline drains, each stage waits for the one behind it, and comes to the next collective after it.

    `theirs` is what that rank `did`, as `divided` returns it.

    The waiting rank may have been in a call, or have copied beside one, while the late rank had a gap between two
    kernels: only what it idled, communicated and copied less than the late rank idled is of that one's host.
    """
    more = theirs - waits.own
    communicated, copied, idled = (OF_LATE_RANK.index(each) for each in ("peer_comm", "peer_copy", "peer_host"))
    more[idled] += np.minimum(more[communicated], 0) + np.minimum(more[copied], 0)
    longer: Ints = np.maximum(more, 0)
    unrecorded = np.minimum(np.maximum(waits.began_later, did.unrecorded), longer[idled])
    longer[idled] -= unrecorded
    messages = np.clip(did.messaged - waits.own_messages, 0, longer[communicated])
    longer[communicated] -= messages
    return np.concatenate([longer, unrecorded[None], messages[None]])


def by_what_the_last_did_longer(waits: PeerWaits, longer: Ints) -> dict[str, Intervals]:
    """Divide exposed wait by what the rank that arrived last did `longer`, as `longer_than_waiting` returns it."""
    until = np.cumsum(longer, axis=0) / np.maximum(longer.sum(axis=0), 1)
    begin, length = waits.pieces.starts, waits.pieces.ends - waits.pieces.starts
    cuts = [begin, *(begin + np.rint(length * share[waits.asked]).astype(np.int64) for share in until[:-1])]
    causes = (*OF_LATE_RANK, START, PIPELINE)
    return {cause: union(each) for cause, each in zip(causes, pairwise([*cuts, waits.pieces.ends]), strict=True)}
