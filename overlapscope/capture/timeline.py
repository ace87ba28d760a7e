"""Convert the records of `events` mode to columns: collectives from ready to done, phases without their waits."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from overlapscope.capture.bucket_waits import bucket_waits
from overlapscope.capture.records import COMM_REGION, CollectiveCall, MarkedRange, StepRecord
from overlapscope.capture.timestamps import Clock
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    DEVICE,
    HOST,
    NONE,
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
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT, volume_bytes
from overlapscope.timeline.run import RankTimeline

BucketCopies = Literal["copied", "viewed"]
"""Whether DDP copies its buckets out to the gradients, or the gradients are views of them."""
TRAINING = "training"
"""Name of the lane of the phases: the device's compute stream, or the training thread."""


class _TimedCall(NamedTuple):
    """A call with its times: its data were ready, the transfer began, it was done."""

    call: CollectiveCall
    ready_ns: int
    handed_over_ns: int
    """When the call returned to the training thread; `ready_ns` on a device, which does not wait for the host."""
    begin_ns: int
    end_ns: int


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
    numbered: frozenset[str]
    """Groups whose calls have the same sequence number on every member."""
    buckets: BucketCopies | None
    spans: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Spans))
    calls: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Collectives))
    notes: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Annotations))
    last_done: dict[str, int] = {}
    """When the last call of each group was done."""
    unfinished: int = 0


def timeline_of(
    rank: int,
    records: Sequence[StepRecord],
    clock: Clock,
    readings: Sequence[tuple[str, int, float]],
    recorded: Mapping[str, Any],
    *,
    buckets: BucketCopies | None,
) -> RankTimeline:
    """Return the timeline of the observed steps; `readings` are (name, monotonic ns, value).

    With `buckets` (the model is DistributedDataParallel) backward waits at its end for buckets in flight: see
    `bucket_waits`. Steps with consecutive numbers form one recording window: the time between windows was not recorded.
    """
    names = NameTable()
    observed = [record for record in records if record.observed and record.end_ns]
    groups = sorted({call.group for record in observed for call in record.calls} | {""})
    rows = _TimelineBuilder(
        clock=clock,
        names=names,
        lane_of={group: 1 + at for at, group in enumerate(groups)},
        numbered=_numbered(observed),
        buckets=buckets,
    )
    windows = _windows(observed)
    for record, window in zip(observed, windows, strict=True):
        _add_step(rows, record, window)
    return RankTimeline(
        rank=rank,
        basis="events",
        has_device=clock.on_device,
        recordings=_recordings(observed, windows, clock),
        spans=make(Spans, len(rows.spans["start_ns"]), **rows.spans),
        collectives=make(Collectives, len(rows.calls["start_ns"]), **rows.calls),
        steps=_steps(observed, windows, clock),
        lanes=_lanes(groups, clock, names),
        annotations=make(Annotations, len(rows.notes["start_ns"]), **rows.notes),
        telemetry=telemetry_of(observed, readings, clock, names),
        names=tuple(names.to_list()),
        recorded={**recorded, "unfinished_collectives": rows.unfinished},
    )


def telemetry_of(
    records: Sequence[StepRecord], readings: Sequence[tuple[str, int, float]], clock: Clock, names: NameTable
) -> Telemetry:
    """Return the readings of the steps and of the sampler as one table, sorted by time."""
    rows = [(time_ns, record.number, name, value) for record in records for name, time_ns, value in record.readings]
    rows += [(time_ns, NONE, name, value) for name, time_ns, value in readings]
    rows.sort(key=lambda row: row[0])
    return make(
        Telemetry,
        len(rows),
        time_ns=[clock.epoch_ns(row[0]) for row in rows],
        step=[row[1] for row in rows],
        name=names.encode([row[2] for row in rows]),
        value=[row[3] for row in rows],
    )


def _numbered(records: Sequence[StepRecord]) -> frozenset[str]:
    """Return the groups whose calls have the same sequence number on every member.

    gloo also counts sends and receives, which not every member makes.
    """
    calls = [call for record in records for call in record.calls]
    return frozenset(call.group for call in calls) - {call.group for call in calls if call.op in POINT_TO_POINT}


def _windows(records: Sequence[StepRecord]) -> list[int]:
    """Return the window number of each step: consecutive steps share one."""
    windows: list[int] = []
    for at, record in enumerate(records):
        follows = at > 0 and record.number == records[at - 1].number + 1
        windows.append((windows[-1] if windows else 0) + (at > 0 and not follows))
    return windows


def _recordings(observed: Sequence[StepRecord], windows: Sequence[int], clock: Clock) -> Recordings:
    by_window = [list(each) for _, each in groupby(range(len(windows)), windows.__getitem__)]
    return make(
        Recordings,
        len(by_window),
        start_ns=[clock.epoch_ns(observed[rows[0]].begin_ns) for rows in by_window],
        end_ns=[_end_ns(observed[rows[-1]], clock) for rows in by_window],
    )


def _end_ns(record: StepRecord, clock: Clock) -> int:
    """Return the end of a window's last step: its own end, or that of a collective or phase that ends later."""
    marks = [call.done for call in record.calls] + [each.end for each in (*record.phases, *record.regions)]
    done = [time for time in clock.times(marks) if time is not None]
    return max([clock.epoch_ns(record.end_ns), *done])


def _steps(observed: Sequence[StepRecord], windows: Sequence[int], clock: Clock) -> Steps:
    return make(
        Steps,
        len(observed),
        recording=windows,
        step=[record.number for record in observed],
        start_ns=[clock.epoch_ns(record.begin_ns) for record in observed],
        end_ns=[clock.epoch_ns(record.end_ns) for record in observed],
        cut=[record.cut or any(call.done is None for call in record.calls) for record in observed],
    )


def _lanes(groups: Sequence[str], clock: Clock, names: NameTable) -> Lanes:
    labels = [TRAINING, *(f"collectives of group {group}" if group else "collectives" for group in groups)]
    return make(Lanes, len(labels), kind=DEVICE if clock.on_device else HOST, label=names.encode(labels))


def _columns(table: type[Spans] | type[Collectives] | type[Annotations]) -> dict[str, list[int]]:
    chosen = {
        Spans: ("recording", "lane", "kind", "name", "start_ns", "end_ns", "launch_ns", "step", "collective"),
        Collectives: (
            "recording", "step", "group", "seq", "op", "dtype", "elements", "bytes", "group_size", "launch_ns",
            "start_ns", "end_ns", "phase", "module",
        ),
        Annotations: ("recording", "lane", "name", "start_ns", "end_ns"),
    }  # fmt: skip
    return {name: [] for name in chosen[table]}


def _add_step(rows: _TimelineBuilder, record: StepRecord, window: int) -> None:
    phases, waits, regions = (_lasted(each, rows.clock) for each in (record.phases, record.waits, record.regions))
    calls = _calls(record.calls, rows)
    _add_phases(rows, record.number, window, phases, _blocked(rows, phases, waits, regions, calls))
    _add_calls(rows, record.number, window, calls, phases)
    _add_regions(rows, record.number, window, regions)


def _lasted(ranges: Sequence[MarkedRange], clock: Clock) -> list[_TimedRange]:
    """Return the ranges whose begin and end are known."""
    begins = clock.times([each.begin for each in ranges])
    ends = clock.times([each.end for each in ranges])
    return [
        _TimedRange(each.name, begin, end, clock.epoch_ns(each.begin_ns))
        for each, begin, end in zip(ranges, begins, ends, strict=True)
        if begin is not None and end is not None and end > begin
    ]


def _calls(calls: Sequence[CollectiveCall], rows: _TimelineBuilder) -> list[_TimedCall]:
    """Return the calls with their times; on a device the calls of one group run one after the other."""
    clock, last_done, serial = rows.clock, rows.last_done, rows.clock.on_device
    ready = clock.times([call.ready for call in calls])
    done = clock.times([call.done for call in calls])
    out = []
    for call, start, end in zip(calls, ready, done, strict=True):
        if start is None or end is None:
            rows.unfinished += 1
            continue
        begun = max(start, last_done.get(call.group, start)) if serial else start
        last_done[call.group] = end
        handed_over = start if serial or call.returned_ns is None else clock.epoch_ns(call.returned_ns)
        out.append(_TimedCall(call, start, handed_over, min(begun, end), end))
    return out


def _blocked(
    rows: _TimelineBuilder,
    phases: Sequence[_TimedRange],
    waits: Sequence[_TimedRange],
    regions: Sequence[_TimedRange],
    calls: Sequence[_TimedCall],
) -> Intervals:
    """Return when phases were blocked: by waits, by communicating regions, and on the host by making calls."""
    in_flight = union(_arrays([(each.begin_ns, each.end_ns) for each in calls]))
    return union(
        _arrays([(each.begin_ns, each.end_ns) for each in waits]),
        _arrays([(each.begin_ns, each.end_ns) for each in regions if each.name.startswith(COMM_REGION)]),
        *([] if rows.clock.on_device else [_arrays([(each.ready_ns, each.handed_over_ns) for each in calls])]),
        *(intersection(in_flight, tail) for tail in (_tails(phases, calls, rows.buckets) if rows.buckets else [])),
    )


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
    for call, _, _, start, end in calls:
        phase = next((each.name for each in phases if each.begin_ns <= start < each.end_ns), None)
        launched = rows.clock.epoch_ns(call.entered_ns)
        _append(
            rows.calls,
            window,
            step,
            code(call.group),
            call.seq if call.seq is not None and call.group in rows.numbered else NONE,
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
        entered = [each for each in calls if begin <= each.ready_ns < end]
        if name == "backward" and entered:
            sizes = [volume_bytes(each.call.elements, each.call.dtype) or 1 for each in entered]
            waits = bucket_waits(
                max(each.handed_over_ns for each in entered),
                end,
                [each.end_ns for each in entered],
                sizes,
                copies=buckets == "copied",
            )
            tails.append(union(_arrays(waits)))
    return tails


def _arrays(pairs: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def _append(columns: dict[str, list[int]], *values: int) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)
