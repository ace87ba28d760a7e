"""Compute what a rank's own spans show of the causes of its exposed communication: delays of its calls, and what
follows them."""

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import EVENTS_MISSING
from overlapscope.analysis.cross_rank.optimizer_cycles import own_cycle_ends
from overlapscope.analysis.exposure.core_waiting import CoreWaiting
from overlapscope.analysis.exposure.last_met import at_end_ns, computed_on
from overlapscope.analysis.exposure.owned_comm import OwnedComm, of_rows, own_communication
from overlapscope.analysis.graph.call_queue import Queue
from overlapscope.analysis.graph.found_causes import Ahead, OwnCauses
from overlapscope.analysis.per_rank.following_compute import Following, cycles_at, following
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints, take
from overlapscope.timeline.intervals import (
    BusyTime,
    Intervals,
    union,
)
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import sort_order, sum_by, values_in
from overlapscope.timeline.run import RankTimeline


class OwnParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's own spans show of the causes of its exposed communication; one row for each owner."""

    own_comm: OwnedComm
    late_ns: Ints
    """Time from data ready to launch."""
    queued_ns: Ints
    """For how long from both to the start calls of another operation or group held it on its stream."""
    optimizer_seen: Flags
    """Whether the optimizer of its step was recorded, or of its cycle where no step is marked; without it, `depends` is
    not known, but of serial calls. So it is of `before_optimizer` and the next ones: a cycle is the step there."""
    before_optimizer: Flags
    """Whether the optimizer, and nothing else before that has ended, follows in its step
    (`Following.before_optimizer`)."""
    last_before_optimizer_ns: Ints
    """When the last compute of its step other than the optimizer's began, before the optimizer ended; NONE without any.
    Before it, what some compute waits for is not for the optimizer alone, though a call in flight ends later: another
    call may have held it."""
    depends: Flags
    """Whether other compute than the optimizer's follows in its step, and not behind the optimizer; where that has
    nothing left, whether compute of a later step waits for the call: as it follows on its stream, or begins at its
    end."""
    others_until_ns: Ints
    """Until when collectives of its group that began earlier were in flight, where no device queues them; else NONE."""
    serial: Flags
    """Whether it runs on the stream of the rank's compute: nothing there runs beside it, whenever it is launched."""
    by_graph: Mapping[str, Intervals] | None
    """All exposed time by cause, as the rank's graph alone says; None where it may not."""
    ahead: Ahead | None = None
    """Of that the cause `ahead`, with the calls that were held."""
    waiting: CoreWaiting | None = None
    """When it waited for a core, or slept though it seemed to compute; None where neither is known."""


def own_parts(timeline: RankTimeline, causes: OwnCauses, waiting: CoreWaiting | None = None) -> OwnParts:
    """Compute how long each call of a rank waited on the rank itself, and what follows it.

    `causes` are those of its graph (`own_causes`), `waiting` is the result of `core_waiting`.
    """
    own_comm = own_communication(timeline)
    launch = of_rows(timeline.collectives.launch_ns, own_comm, NONE)
    ready = _ready(timeline, launch, causes.finishing)
    # Where compute was not recorded, as in graphs without their nodes, nobody knows when data were ready.
    known = (launch != NONE) & (ready != NONE) & (causes.reason not in (*EVENTS_MISSING, "unexplained_waits"))
    step, after = _followed(timeline, own_comm, causes.finishing)
    serial, next_ns = _serial(timeline, own_comm), _next_compute_ns(timeline, own_comm)
    before_optimizer = after.before_optimizer(step, own_comm.start_ns, own_comm.end_ns)
    awaited = (next_ns != NONE) & (serial | _ends_with_it(timeline, own_comm, next_ns))
    return OwnParts(
        own_comm=own_comm,
        late_ns=np.where(known & ~serial & _computed_beside(timeline, own_comm), np.maximum(launch - ready, 0), 0),
        queued_ns=np.where(known & ~serial, _queued_ns(timeline, own_comm, np.maximum(launch, ready)), 0),
        optimizer_seen=(step != NONE) & after.known(step),
        before_optimizer=before_optimizer,
        last_before_optimizer_ns=after.last_before_optimizer_of(step),
        depends=after.depends(step, own_comm.end_ns) | (awaited & ~before_optimizer),
        others_until_ns=_others_until(timeline, own_comm),
        serial=serial,
        by_graph=causes.exposed,
        ahead=causes.ahead,
        waiting=waiting,
    )


def _followed(timeline: RankTimeline, own_comm: OwnedComm, finishing: Ints | None) -> tuple[Ints, Following]:
    """Return the step of each owner, NONE where none is known, and what steps compute, but for what only finishes calls
    (`finishing`, rows); where none is marked, steps are the cycles of the optimizer: what follows its gradients alone
    is then known as well."""
    ends_ns = own_cycle_ends(timeline)
    step = cycles_at(ends_ns, own_comm.start_ns) if ends_ns.size else of_rows(timeline.collectives.step, own_comm, NONE)
    if finishing is not None and finishing.size:
        rest = np.delete(np.arange(timeline.num_spans), finishing)
        timeline = replace(timeline, spans=take(timeline.spans, rest))
    return step, following(timeline, ends_ns if ends_ns.size else None)


def _computed_beside(timeline: RankTimeline, own_comm: OwnedComm) -> Flags:
    """Return beside which calls anything was computed: launched earlier, another one would have hidden nothing."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    computing = BusyTime(union((spans.start_ns[rows], spans.end_ns[rows])))
    return np.asarray(computing.within(own_comm.start_ns, own_comm.end_ns) > 0, np.bool_)


def _next_compute_ns(timeline: RankTimeline, own_comm: OwnedComm) -> Ints:
    """Return when the next compute begins after the end of each call; NONE without any."""
    begins = np.sort(timeline.spans.start_ns[timeline.spans.kind == COMPUTE])
    return np.append(begins, NONE)[np.searchsorted(begins, own_comm.end_ns, side="left")]


def _ends_with_it(timeline: RankTimeline, own_comm: OwnedComm, next_ns: Ints) -> Flags:
    """Return for which calls the next compute, at `next_ns`, begins at the end, or at the end of communication that
    directly follows; not where compute runs beside the end: it goes on whatever the call does."""
    spans, until = timeline.spans, np.maximum(next_ns, own_comm.end_ns)
    computes, sends = spans.kind == COMPUTE, spans.kind == COMM
    computing = BusyTime(union((spans.start_ns[computes], spans.end_ns[computes])))
    sending = BusyTime(union((spans.start_ns[sends], spans.end_ns[sends])))
    nothing_ns = until - own_comm.end_ns - sending.within(own_comm.end_ns, until)
    beside = computed_on(timeline, computing, own_comm.start_ns, own_comm.end_ns)
    return np.asarray((nothing_ns <= at_end_ns(timeline)) & ~beside, np.bool_)


def _queued_ns(timeline: RankTimeline, own_comm: OwnedComm, since_ns: Ints) -> Ints:
    """Return for how long calls of another operation or group held each call on its stream, from a moment on."""
    spans = timeline.spans
    sends = np.flatnonzero(spans.kind == COMM)
    sends = sends[sort_order(-spans.start_ns[sends])]
    first = np.full(timeline.collectives.op.size, NONE, np.int64)
    of_call = np.flatnonzero(spans.collective[sends] != NONE)
    first[spans.collective[sends[of_call]]] = of_call
    asked = of_rows(first, own_comm, NONE)
    known = np.flatnonzero(asked != NONE)
    queue = Queue.of(timeline, sends, (spans.start_ns[sends], spans.end_ns[sends]))
    found = np.zeros(asked.size, np.int64)
    found[known] = queue.held_ns(asked[known], since_ns[known])
    return found


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


def _ready(timeline: RankTimeline, launch: Ints, finishing: Ints | None) -> Ints:
    """Return when the data of each launch was ready: when the compute launched before it, on any stream, had ended,
    but for what only finishes calls (`finishing`, rows).

    On a CPU the caller has the data when it calls. A recording of CUDA events marks the readiness itself and shows no
    queue, so the result is NONE.
    """
    if timeline.basis == "events":
        return np.full(launch.size, NONE, np.int64)
    if not timeline.has_device:
        return launch
    spans = timeline.spans
    produces = (spans.kind == COMPUTE) & (spans.launch_ns != NONE)
    if finishing is not None:
        produces[finishing] = False
    rows = np.flatnonzero(produces)
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
    return np.asarray(of_rows(found, own_comm, False), np.bool_)
