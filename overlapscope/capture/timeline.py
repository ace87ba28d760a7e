"""Convert the records of `events` mode to columns: collectives from ready to done, phases without their waits.

What the job does on its training thread outside forward, backward and optimizer (clipping, scaling, averaging, a loss
beside the model, overlap by hand) is the phase `other`: without a device, where that thread ran on a core; on a device
between the phases, where nothing tells computation from idling, and no communication counts as exposed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from overlapscope.capture.bucket_waits import bucket_waits
from overlapscope.capture.other_work import OTHER, other_on_host
from overlapscope.capture.records import COMM_REGION, CollectiveCall, MarkedRange, StepRecord
from overlapscope.capture.timestamps import Clock
from overlapscope.capture.transfer_times import TransferTime, TransferTimes, share_queues
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    DEVICE,
    HOST,
    NONE,
    STEP_TIME,
    Annotations,
    Collectives,
    Ints,
    Lanes,
    Recordings,
    Spans,
    Steps,
    Telemetry,
    make,
    or_missing,
)
from overlapscope.timeline.intervals import EMPTY, Intervals, clip, complement, difference, intersection, length, union
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT, volume_bytes
from overlapscope.timeline.run import RankTimeline

BucketCopies = Literal["copied", "viewed", "hooked"]
"""Whether DDP copies its buckets out to the gradients, the gradients are views of them, or a hook of the user's own
communicates, in as many calls as it likes."""
BUILT_IN_HOOKS = frozenset(
    {None, "ALLREDUCE", "FP16_COMPRESS", "allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"}
)
"""What DDP reports as its communication hook where each bucket is one all-reduce."""
NEVER_NS = 1 << 62
UNDETERMINED_NS = 20_000
"""Two ends of a transfer that lie closer together are one."""
TRAINING = "training"
"""Name of the lane of the phases: the device's compute stream, or the training thread."""


class _TimedCall(NamedTuple):
    """A call with its times."""

    call: CollectiveCall
    handed_over_ns: int
    """When the training thread, or the compute stream behind the call, went on."""
    time: TransferTime


class _TimedRange(NamedTuple):
    """A phase, wait or region with its times."""

    name: str
    begin_ns: int
    end_ns: int
    launch_ns: int
    """Host time at which it began."""


class _TimelineBuilder(msgspec.Struct, kw_only=True):
    """Columns of spans, collectives and annotations under construction, and what all steps share."""

    clock: Clock
    names: NameTable
    lane_of: Mapping[str, int]
    """Row of each group's lane."""
    unnumbered: frozenset[str]
    """Groups whose calls may have another sequence number on each member: gloo also counts sends and receives."""
    buckets: BucketCopies | None
    spans: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Spans))
    calls: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Collectives))
    notes: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Annotations))
    marked: "_Marks"
    transfers: TransferTimes
    busy: list[tuple[int, int, int, int, int]] = []
    """(step, begin, end, latest begin, latest end) of each transfer, and of each region that communicates."""
    extents: list[tuple[int, int, int, int, int]] = []
    """(begin, end, host time of the first launch, step, window) of the phases of each step on a device."""
    blocked: list[Intervals] = []
    """When the device's compute stream waited."""
    undetermined: list[Intervals] = []
    """Where it is not determined whether the step computed."""
    unfinished: int = 0
    cut: dict[int, str] = {}
    """Why steps are not whole."""


class Carried(msgspec.Struct):
    """What a part of a recording leaves to the next one: what was under way on a device, and which groups exchange."""

    transfers: TransferTimes | None = None
    """Where the transfers of each lane ended."""
    unnumbered: frozenset[str] = frozenset()
    """Groups in which sends and receives were seen."""
    until_ns: int | None = None
    """Where the part ended: at the begin of the first phase of the step after it."""
    busy: list[tuple[int, int, int, int, int]] = []
    """As in `_TimelineBuilder`, of the steps whose transfers ran on after that."""
    possible: Intervals = EMPTY
    """When these steps may have computed, from the begin of their transfers on ..."""
    unsure: Intervals = EMPTY
    """... and where that is not determined."""


def timeline_of(
    rank: int,
    records: Sequence[StepRecord],
    clock: Clock,
    readings: Sequence[tuple[str, int, float]],
    recorded: Mapping[str, Any],
    *,
    buckets: BucketCopies | None,
    step_times: Sequence[tuple[int, int, int]] = (),
    carried: Carried | None = None,
    following: StepRecord | None = None,
) -> RankTimeline:
    """Return the timeline of the observed steps; `readings` are (name, monotonic ns, value).

    `step_times` are (number, begin in monotonic ns, duration) of all steps, recorded or not. Where the steps are a part
    of a recording, `carried` is what the part before left, and is changed to what this one leaves; `following` is the
    step after the part.

    With `buckets` (the model is DistributedDataParallel) backward waits at its end for buckets in flight: see
    `bucket_waits`. Steps with consecutive numbers form one recording window: the time between windows was not recorded.
    """
    carried = Carried() if carried is None else carried
    names = NameTable()
    observed = [record for record in records if record.observed and record.end_ns]
    marked = _Marks(observed if following is None else [*observed, following], clock)
    carried.unnumbered |= {call.group for record in observed for call in record.calls if call.op in POINT_TO_POINT}
    carried.transfers = TransferTimes(
        marked, serial=clock.on_device, shared=share_queues(_connections(recorded)), before=carried.transfers
    )
    groups = sorted({call.group for record in observed for call in record.calls} | {""})
    rows = _TimelineBuilder(
        clock=clock,
        names=names,
        lane_of={group: 1 + at for at, group in enumerate(groups)},
        unnumbered=carried.unnumbered,
        buckets=buckets,
        marked=marked,
        transfers=carried.transfers,
        busy=list(carried.busy),
        undetermined=[carried.unsure],
    )
    until_ns = _first_begin(following, marked)
    windows = _windows(observed)
    for record, window in zip(observed, windows, strict=True):
        _add_step(rows, record, window)
    if clock.on_device:
        _add_beside(rows, carried.until_ns, until_ns)
    exposed = _exposed_between(rows, carried, until_ns)
    reasons = Counter(rows.cut.values())
    return RankTimeline(
        rank=rank,
        basis="events",
        has_device=clock.on_device,
        recordings=_recordings(observed, windows, clock, marked),
        spans=make(Spans, len(rows.spans["start_ns"]), **rows.spans),
        collectives=make(Collectives, len(rows.calls["start_ns"]), **rows.calls),
        steps=_steps(observed, windows, clock, rows.cut),
        lanes=_lanes(groups, clock, names),
        annotations=make(Annotations, len(rows.notes["start_ns"]), **rows.notes),
        telemetry=telemetry_of(observed, readings, clock, names, step_times),
        names=tuple(names.to_list()),
        recorded={
            **recorded,
            "unfinished_collectives": rows.unfinished,
            "cut_steps": dict(reasons),
            "exposed_between_ns": exposed,
        },
    )


class _Marks:
    """The times of all marks of the recording, in nanoseconds since the epoch; None for one that was not read."""

    def __init__(self, records: Sequence[StepRecord], clock: Clock) -> None:
        self._clock = clock
        marks = [mark for record in records for mark in _marks(record) if not isinstance(mark, int | None)]
        self._known = dict(zip(map(id, marks), clock.times(marks), strict=True))

    def __call__(self, mark: Any) -> int | None:
        """Return the time of a mark."""
        return self._clock.epoch_ns(mark) if isinstance(mark, int) else self._known.get(id(mark))


def _marks(record: StepRecord) -> list[Any]:
    ranges = (*record.phases, *record.waits, *record.host_waits, *record.regions)
    transfers = [call.transfer for call in record.calls]
    waits = [each.waited for each in transfers if each.waited is not None]
    return (
        [mark for each in (*ranges, *waits) for mark in (each.begin, each.end)]
        + [mark for each in transfers for mark in (each.ready, each.done)]
        + [call.left for call in record.calls]
    )


def _connections(recorded: Mapping[str, Any]) -> str | None:
    """Return CUDA_DEVICE_MAX_CONNECTIONS as this process had it; None where it was not set."""
    value: str | None = (recorded.get("settings") or {}).get("environment", {}).get("CUDA_DEVICE_MAX_CONNECTIONS")
    return value


def telemetry_of(
    records: Sequence[StepRecord],
    readings: Sequence[tuple[str, int, float]],
    clock: Clock,
    names: NameTable,
    step_times: Sequence[tuple[int, int, int]] = (),
) -> Telemetry:
    """Return the readings of the steps and of the sampler, and the times of steps, as one table, sorted by time."""
    rows = [(time_ns, record.number, name, value) for record in records for name, time_ns, value in record.readings]
    rows += [(time_ns, NONE, name, value) for name, time_ns, value in readings]
    rows += [(begin_ns, number, STEP_TIME, float(lasted_ns)) for number, begin_ns, lasted_ns in step_times]
    rows.sort(key=lambda row: row[0])
    return make(
        Telemetry,
        len(rows),
        time_ns=[clock.epoch_ns(row[0]) for row in rows],
        step=[row[1] for row in rows],
        name=names.encode([row[2] for row in rows]),
        value=[row[3] for row in rows],
    )


def _windows(records: Sequence[StepRecord]) -> list[int]:
    """Return the window number of each step: consecutive steps share one."""
    windows: list[int] = []
    for at, record in enumerate(records):
        follows = at > 0 and record.number == records[at - 1].number + 1
        windows.append((windows[-1] if windows else 0) + (at > 0 and not follows))
    return windows


def _recordings(observed: Sequence[StepRecord], windows: Sequence[int], clock: Clock, marked: "_Marks") -> Recordings:
    by_window = [list(each) for _, each in groupby(range(len(windows)), windows.__getitem__)]
    return make(
        Recordings,
        len(by_window),
        start_ns=[clock.epoch_ns(observed[rows[0]].begin_ns) for rows in by_window],
        end_ns=[_end_ns(observed[rows[-1]], clock, marked) for rows in by_window],
    )


def _end_ns(record: StepRecord, clock: Clock, marked: "_Marks") -> int:
    """Return the end of a window's last step: its own end, or that of a collective or phase that ends later."""
    known = [time_ns for mark in _marks(record) if (time_ns := marked(mark)) is not None]
    return max([clock.epoch_ns(record.end_ns), *known])


def _steps(observed: Sequence[StepRecord], windows: Sequence[int], clock: Clock, cut: Mapping[int, str]) -> Steps:
    return make(
        Steps,
        len(observed),
        recording=windows,
        step=[record.number for record in observed],
        start_ns=[clock.epoch_ns(record.begin_ns) for record in observed],
        end_ns=[clock.epoch_ns(record.end_ns) for record in observed],
        cut=[record.number in cut for record in observed],
    )


def _lanes(groups: Sequence[str], clock: Clock, names: NameTable) -> Lanes:
    labels = [TRAINING, *(f"collectives of group {group}" if group else "collectives" for group in groups)]
    return make(Lanes, len(labels), kind=DEVICE if clock.on_device else HOST, label=names.encode(labels))


def _columns(table: type[Spans] | type[Collectives] | type[Annotations]) -> dict[str, list[int]]:
    chosen = {
        Spans: ("recording", "lane", "kind", "name", "start_ns", "end_ns", "launch_ns", "step", "collective"),
        Collectives: (
            "recording", "step", "group", "seq", "op", "dtype", "elements", "bytes", "group_size", "launch_ns",
            "start_ns", "end_ns", "phase", "module", "peer",
        ),
        Annotations: ("recording", "lane", "name", "start_ns", "end_ns"),
    }  # fmt: skip
    return {name: [] for name in chosen[table]}


def _add_step(rows: _TimelineBuilder, record: StepRecord, window: int) -> None:
    marked = rows.marked
    phases, waits, host_waits, regions = (
        _lasted(each, rows) for each in (record.phases, record.waits, record.host_waits, record.regions)
    )
    calls = _waited_by_ddp(rows, phases, _calls(record.calls, rows))
    unread = sum(marked(mark) is None for each in (*record.phases, *record.waits, *record.regions)
                 for mark in (each.begin, each.end))  # fmt: skip
    unknown = len(record.calls) - len(calls)
    if record.cut:
        rows.cut[record.number] = record.cut
    elif unread:
        rows.cut[record.number] = "the device had not reached its end when the recording ended"
    elif unknown:
        rows.cut[record.number] = "the end of a collective is not known"
    rows.unfinished += unknown
    blocked = _blocked(rows, record, phases, waits, regions, calls)
    _add_phases(rows, record.number, window, phases, blocked)
    if rows.clock.on_device:
        _add_between(rows, record.number, window, phases, blocked)
        rows.undetermined.append(_covered(host_waits))
    else:
        _add_other(rows, record, window, phases, union(_arrays(
            [(each.time.ready_ns, each.handed_over_ns) for each in calls]
        ), blocked))  # fmt: skip
    _add_calls(rows, record.number, window, calls, phases)
    _add_regions(rows, record.number, window, regions)


def _lasted(ranges: Sequence[MarkedRange], rows: _TimelineBuilder) -> list[_TimedRange]:
    """Return the ranges whose begin and end are known."""
    timed = [(each, rows.marked(each.begin), rows.marked(each.end)) for each in ranges]
    return [
        _TimedRange(each.name, begin, end, rows.clock.epoch_ns(each.begin_ns))
        for each, begin, end in timed
        if begin is not None and end is not None and end > begin
    ]


def _calls(calls: Sequence[CollectiveCall], rows: _TimelineBuilder) -> list[_TimedCall]:
    """Return the calls whose times are known, in the order of their issue."""
    out = []
    timed: dict[int, TransferTime | None] = {}
    for call in sorted(calls, key=lambda each: each.entered_ns):
        if id(call.transfer) not in timed:
            timed[id(call.transfer)] = rows.transfers.of(call.transfer)
        time = timed[id(call.transfer)]
        if time is not None:
            left = call.left if rows.clock.on_device else call.returned_ns
            out.append(_TimedCall(call, rows.marked(left) or time.ready_ns, time))
    return out


def _waited_by_ddp(
    rows: _TimelineBuilder, phases: Sequence[_TimedRange], calls: Sequence[_TimedCall]
) -> Sequence[_TimedCall]:
    """Return the calls, those of DDP's buckets ended where backward ended: it waits for them.

    On the host the callback at a call's end needs the interpreter, and may get it milliseconds later.
    """
    if rows.clock.on_device or rows.buckets not in ("copied", "viewed"):
        return calls
    backward = [(begin, end) for name, begin, end, _ in phases if name == "backward"]
    found = []
    for each in calls:
        time = each.time
        ends = [end for begin, end in backward if begin <= time.ready_ns < end < time.end_ns]
        if ends and each.call.op == "all_reduce":
            found.append(each._replace(time=time._replace(end_ns=ends[0], latest_end_ns=ends[0])))
        else:
            found.append(each)
    return found


def _blocked(
    rows: _TimelineBuilder,
    record: StepRecord,
    phases: Sequence[_TimedRange],
    waits: Sequence[_TimedRange],
    regions: Sequence[_TimedRange],
    calls: Sequence[_TimedCall],
) -> Intervals:
    """Return when phases were blocked: by waits, by communicating regions, and on the host by making calls."""
    in_flight = union(_arrays([(each.time.begin_ns, each.time.end_ns) for each in calls]))
    if rows.buckets == "hooked":
        tails = _hooked_tails(rows, record, phases, calls)
    else:
        tails = [intersection(in_flight, each) for each in _tails(phases, calls, rows.buckets)] if rows.buckets else []
    return union(
        _covered(waits),
        _covered([each for each in regions if each.name.startswith(COMM_REGION)]),
        *([] if rows.clock.on_device else [_arrays([(each.time.ready_ns, each.handed_over_ns) for each in calls])]),
        *tails,
    )


def _covered(ranges: Sequence[_TimedRange]) -> Intervals:
    return union(_arrays([(each.begin_ns, each.end_ns) for each in ranges]))


def _add_other(
    rows: _TimelineBuilder, record: StepRecord, window: int, phases: Sequence[_TimedRange], known: Intervals
) -> None:
    """Add what the training thread computed outside the phases, as far as its CPU time says so."""
    begin, end = rows.clock.epoch_ns(record.begin_ns), rows.clock.epoch_ns(record.end_ns)
    ran, partly = other_on_host(record, begin, end, union(_covered(phases), known), begin - record.begin_ns)
    rows.undetermined.append(partly)
    _add_compute(rows, OTHER, ran, begin, record.number, window)


def _add_between(
    rows: _TimelineBuilder, step: int, window: int, phases: Sequence[_TimedRange], blocked: Intervals
) -> None:
    """Add what lies between the phases of a step on a device, but for what its compute stream waited."""
    rows.blocked.append(blocked)
    if not phases:
        return
    inside = _covered(phases)
    begin, end, launch_ns = int(inside.starts[0]), int(inside.ends[-1]), phases[0].launch_ns
    rows.extents.append((begin, end, launch_ns, step, window))
    gaps = difference(complement(inside, begin, end), blocked)
    rows.undetermined.append(gaps)
    _add_compute(rows, OTHER, gaps, launch_ns, step, window)


def _first_begin(record: StepRecord | None, marked: "_Marks") -> int | None:
    begins = [begin for each in (record.phases if record is not None else ()) if (begin := marked(each.begin))]
    return min(begins, default=None)


def _add_beside(rows: _TimelineBuilder, from_ns: int | None, until_ns: int | None) -> None:
    """Add transfers' time beside the phases of all steps of a device, as between steps, in the step before it.

    Of a part it is that between its own first phase and the first one of the step after it; None for no bound.
    """
    if not rows.extents:
        return
    extents = np.array(sorted(rows.extents), np.int64)
    flying = union(_arrays([(begin, latest_end) for _, begin, _, _, latest_end in rows.busy]))
    beside = difference(difference(flying, union((extents[:, 0], extents[:, 1]))), union(*rows.blocked))
    beside = clip(beside, -NEVER_NS if from_ns is None else from_ns, NEVER_NS if until_ns is None else until_ns)
    rows.undetermined.append(beside)
    owners = np.maximum(np.searchsorted(extents[:, 0], beside.starts, side="right") - 1, 0)
    for start, stop, owner in zip(beside.starts, beside.ends, owners, strict=True):
        launch_ns, step, window = extents[owner, 2:].tolist()
        piece = Intervals(np.array([start]), np.array([stop]))
        _add_compute(rows, OTHER, piece, launch_ns, step, window)


def _exposed_between(rows: _TimelineBuilder, carried: Carried, until_ns: int | None) -> dict[str, list[int]]:
    """Return the least and the most exposed communication of the steps in which it is not determined, in nanoseconds.

    Either the end of a transfer has bounds, or it ran under something that may or may not have been computation. Steps
    whose transfers run on after `until_ns` are left to the next part, in `carried`.
    """
    kinds = np.array(rows.spans["kind"], np.int64) == COMPUTE
    starts, ends = (np.array(rows.spans[name], np.int64)[kinds] for name in ("start_ns", "end_ns"))
    possible, unsure = union((starts, ends), carried.possible), union(*rows.undetermined)
    running = {each[0] for each in rows.busy if until_ns is not None and each[4] > until_ns}
    carried.until_ns, carried.busy = until_ns, [each for each in rows.busy if each[0] in running]
    since_ns = min((each[1] for each in carried.busy), default=NEVER_NS)
    carried.possible, carried.unsure = (clip(each, since_ns, NEVER_NS) for each in (possible, unsure))
    certain = difference(possible, unsure)
    found = {}
    for step, group in groupby(rows.busy, key=lambda each: each[0]):
        if step in running:
            continue
        own = np.array([each[1:] for each in group], np.int64)
        window = int(own[:, 0].min()), int(own[:, 3].max())
        here = clip(unsure, *window)
        if here.starts.size == 0 and bool((own[:, 3] - own[:, 1] <= UNDETERMINED_NS).all()):
            continue
        least = difference(union((own[:, 2], own[:, 1])), union(clip(possible, *window), here))
        most = difference(union((own[:, 0], own[:, 3])), clip(certain, *window))
        low, high = length(least), min(length(most), int((own[:, 1] - own[:, 0]).sum()))
        if high - low > UNDETERMINED_NS:
            found[str(step)] = [low, high]
    return found


def _add_compute(rows: _TimelineBuilder, name: str, found: Intervals, launch_ns: int, step: int, window: int) -> None:
    code = rows.names.code(name)
    for start, stop in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
        _append(rows.spans, window, 0, COMPUTE, code, start, stop, launch_ns, step, NONE)


def _add_phases(
    rows: _TimelineBuilder, step: int, window: int, phases: Sequence[_TimedRange], blocked: Intervals
) -> None:
    for each in phases:
        free = difference(union(_arrays([(each.begin_ns, each.end_ns)])), blocked)
        for start, stop in zip(free.starts.tolist(), free.ends.tolist(), strict=True):
            code = rows.names.code(each.name)
            _append(rows.spans, window, 0, COMPUTE, code, start, stop, each.launch_ns, step, NONE)


def _add_calls(
    rows: _TimelineBuilder, step: int, window: int, calls: Sequence[_TimedCall], phases: Sequence[_TimedRange]
) -> None:
    code = rows.names.code
    for call, _, time in calls:
        _, start, end, latest_start, latest_end = time
        rows.busy.append((step, start, end, latest_start, latest_end))
        phase = next((each.name for each in phases if each.begin_ns <= start < each.end_ns), None)
        launched = rows.clock.epoch_ns(call.entered_ns)
        _append(
            rows.calls,
            window,
            step,
            code(call.group),
            call.seq if call.seq is not None and call.group not in rows.unnumbered else NONE,
            code(call.op),
            code(call.dtype) if call.dtype else -1,
            NONE if call.elements is None else call.elements,
            or_missing(volume_bytes(call.elements, call.dtype)),
            call.group_size,
            launched,
            start,
            end,
            code(phase) if phase else -1,
            code(call.module) if call.module else -1,
            or_missing(call.peer),
        )
        row = len(rows.calls["start_ns"]) - 1
        _append(rows.spans, window, rows.lane_of[call.group], COMM, code(call.op), start, end, launched, step, row)


def _add_regions(rows: _TimelineBuilder, step: int, window: int, regions: Sequence[_TimedRange]) -> None:
    """Add regions as annotations; a communicating region is also a communication span."""
    code, lane = rows.names.code, rows.lane_of[""]
    for name, begin, end, launched in regions:
        _append(rows.notes, window, 0, code(name), begin, end)
        if name.startswith(COMM_REGION):
            own = code(name.removeprefix(COMM_REGION))
            _append(rows.spans, window, lane, COMM, own, begin, end, launched, step, NONE)


def _tails(phases: Sequence[_TimedRange], calls: Sequence[_TimedCall], buckets: BucketCopies) -> list[Intervals]:
    """Return, for each backward, when it waited at its end for buckets in flight.

    DistributedDataParallel calls the collective of its last bucket at the last gradient.
    """
    tails = []
    for name, begin, end, _ in phases:
        entered = [each for each in calls if begin <= each.time.ready_ns < end]
        if name == "backward" and entered:
            sizes = [volume_bytes(each.call.elements, each.call.dtype) or 1 for each in entered]
            waits = bucket_waits(
                max(each.handed_over_ns for each in entered),
                end,
                [each.time.end_ns for each in entered],
                sizes,
                copies=buckets == "copied",
            )
            tails.append(union(_arrays(waits)))
    return tails


def _hooked_tails(
    rows: _TimelineBuilder, record: StepRecord, phases: Sequence[_TimedRange], calls: Sequence[_TimedCall]
) -> list[Intervals]:
    """Return, for each backward whose buckets a hook of the user's own sends, when it waited at its end.

    From the last gradient on nothing but the hook's work is left. On a device no gradient has a time: there it is not
    determined from the first call on.
    """
    tails = []
    ready = [rows.clock.epoch_ns(at) for _, at in record.gradients]
    for name, begin, end, _ in phases:
        if name != "backward":
            continue
        last = max((at for at in ready if begin <= at < end), default=None)
        first = min((each.time.ready_ns for each in calls if begin <= each.time.ready_ns < end), default=None)
        if last is not None:
            tails.append(union(_arrays([(last, end)])))
        elif first is not None:
            rows.undetermined.append(union(_arrays([(first, end)])))
    return tails


def _arrays(pairs: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def _append(columns: dict[str, list[int]], *values: int) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)
