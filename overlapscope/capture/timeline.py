"""Records of `events` mode to columns: collectives from ready to done, phases less the time they were blocked."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from overlapscope.capture.bucket_waits import bucket_waits
from overlapscope.capture.records import COMM_REGION, Call, StepRecord, Stretch
from overlapscope.capture.timestamps import Points
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
    held,
    make,
)
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT, volume_bytes
from overlapscope.timeline.run import RankTimeline

BucketCopies = Literal["copied", "viewed"]
"""Whether DDP copies its buckets out to the gradients, or the gradients are views of them."""
TRAINING = "training"
"""The lane of the phases: the device's compute stream, or the training thread."""


class _Timed(NamedTuple):
    """A call with its times: its data were ready, it began to move them, it was done."""

    call: Call
    ready_ns: int
    handed_over_ns: int
    """When the training thread went on; on a device, where it does not wait for the host, `ready_ns`."""
    begin_ns: int
    end_ns: int


class _Lasted(NamedTuple):
    """A phase, wait or region with its times."""

    name: str
    begin_ns: int
    end_ns: int
    launch_ns: int
    """When the host began it."""


class _Growing(msgspec.Struct, kw_only=True):
    """Columns of spans, collectives and annotations while they grow, and what all steps share."""

    points: Points
    names: NameTable
    lane_of: Mapping[str, int]
    """By group."""
    numbered: frozenset[str]
    """Groups whose calls have the same number on every member."""
    buckets: BucketCopies | None
    spans: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Spans))
    calls: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Collectives))
    notes: dict[str, list[int]] = msgspec.field(default_factory=lambda: _columns(Annotations))
    last_done: dict[str, int] = {}
    """When the last call of a group was done."""
    unfinished: int = 0


def timeline_of(
    rank: int,
    records: Sequence[StepRecord],
    points: Points,
    readings: Sequence[tuple[str, int, float]],
    recorded: Mapping[str, Any],
    *,
    buckets: BucketCopies | None,
) -> RankTimeline:
    """Return the timeline of the observed steps; readings are in monotonic time.

    With `buckets` (the model is DistributedDataParallel) backward waits at its end for the buckets under way: see
    `bucket_waits`.
    Steps without a gap between their numbers are one recording window: what lies between windows was not recorded.
    """
    names = NameTable()
    observed = [record for record in records if record.observed and record.end_ns]
    groups = sorted({call.group for record in observed for call in record.calls} | {""})
    rows = _Growing(
        points=points,
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
        has_device=points.on_device,
        recordings=_recordings(observed, windows, points),
        spans=make(Spans, len(rows.spans["start_ns"]), **rows.spans),
        collectives=make(Collectives, len(rows.calls["start_ns"]), **rows.calls),
        steps=_steps(observed, windows, points),
        lanes=_lanes(groups, points, names),
        annotations=make(Annotations, len(rows.notes["start_ns"]), **rows.notes),
        telemetry=telemetry_of(observed, readings, points, names),
        names=tuple(names.to_list()),
        recorded={**recorded, "unfinished_collectives": rows.unfinished},
    )


def telemetry_of(
    records: Sequence[StepRecord], readings: Sequence[tuple[str, int, float]], points: Points, names: NameTable
) -> Telemetry:
    """Return the readings of the steps and of the sampler as one table, in order of time."""
    rows = [(time_ns, record.number, name, value) for record in records for name, time_ns, value in record.readings]
    rows += [(time_ns, NONE, name, value) for name, time_ns, value in readings]
    rows.sort(key=lambda row: row[0])
    return make(
        Telemetry,
        len(rows),
        time_ns=[points.epoch_ns(row[0]) for row in rows],
        step=[row[1] for row in rows],
        name=names.encode([row[2] for row in rows]),
        value=[row[3] for row in rows],
    )


def _numbered(records: Sequence[StepRecord]) -> frozenset[str]:
    """Return the groups whose calls have the same number on every member.

    gloo counts sends and receives too, which not every member makes.
    """
    calls = [call for record in records for call in record.calls]
    return frozenset(call.group for call in calls) - {call.group for call in calls if call.op in POINT_TO_POINT}


def _windows(records: Sequence[StepRecord]) -> list[int]:
    """Number the runs of consecutive steps."""
    windows: list[int] = []
    for at, record in enumerate(records):
        follows = at > 0 and record.number == records[at - 1].number + 1
        windows.append((windows[-1] if windows else 0) + (at > 0 and not follows))
    return windows


def _recordings(observed: Sequence[StepRecord], windows: Sequence[int], points: Points) -> Recordings:
    by_window = [list(each) for _, each in groupby(range(len(windows)), windows.__getitem__)]
    return make(
        Recordings,
        len(by_window),
        start_ns=[points.epoch_ns(observed[rows[0]].begin_ns) for rows in by_window],
        end_ns=[_end_ns(observed[rows[-1]], points) for rows in by_window],
    )


def _end_ns(record: StepRecord, points: Points) -> int:
    """Return when the recording of a window's last step ended: with the step, or with a collective that outlasts it."""
    marks = [call.done for call in record.calls] + [each.end for each in (*record.phases, *record.regions)]
    done = [time for time in points.times(marks) if time is not None]
    return max([points.epoch_ns(record.end_ns), *done])


def _steps(observed: Sequence[StepRecord], windows: Sequence[int], points: Points) -> Steps:
    return make(
        Steps,
        len(observed),
        recording=windows,
        step=[record.number for record in observed],
        start_ns=[points.epoch_ns(record.begin_ns) for record in observed],
        end_ns=[points.epoch_ns(record.end_ns) for record in observed],
        cut=[record.cut or any(call.done is None for call in record.calls) for record in observed],
    )


def _lanes(groups: Sequence[str], points: Points, names: NameTable) -> Lanes:
    labels = [TRAINING, *(f"collectives of group {group}" if group else "collectives" for group in groups)]
    return make(Lanes, len(labels), kind=DEVICE if points.on_device else HOST, label=names.encode(labels))


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


def _add_step(rows: _Growing, record: StepRecord, window: int) -> None:
    phases, waits, regions = (_lasted(each, rows.points) for each in (record.phases, record.waits, record.regions))
    calls = _calls(record.calls, rows)
    _add_phases(rows, record.number, window, phases, _blocked(rows, phases, waits, regions, calls))
    _add_calls(rows, record.number, window, calls, phases)
    _add_regions(rows, record.number, window, regions)


def _lasted(stretches: Sequence[Stretch], points: Points) -> list[_Lasted]:
    """Return those of which begin and end are known."""
    begins = points.times([each.begin for each in stretches])
    ends = points.times([each.end for each in stretches])
    return [
        _Lasted(each.name, begin, end, points.epoch_ns(each.begin_ns))
        for each, begin, end in zip(stretches, begins, ends, strict=True)
        if begin is not None and end is not None and end > begin
    ]


def _calls(calls: Sequence[Call], rows: _Growing) -> list[_Timed]:
    """Return the calls with their times. On a device one group's calls run one after the other."""
    points, last_done, serial = rows.points, rows.last_done, rows.points.on_device
    ready = points.times([call.ready for call in calls])
    done = points.times([call.done for call in calls])
    out = []
    for call, start, end in zip(calls, ready, done, strict=True):
        if start is None or end is None:
            rows.unfinished += 1
            continue
        begun = max(start, last_done.get(call.group, start)) if serial else start
        last_done[call.group] = end
        handed_over = start if serial or call.returned_ns is None else points.epoch_ns(call.returned_ns)
        out.append(_Timed(call, start, handed_over, min(begun, end), end))
    return out


def _blocked(
    rows: _Growing,
    phases: Sequence[_Lasted],
    waits: Sequence[_Lasted],
    regions: Sequence[_Lasted],
    calls: Sequence[_Timed],
) -> Intervals:
    """Return when phases were blocked: by waits, by regions that communicate, and on the host by making calls."""
    in_flight = union(_arrays([(each.begin_ns, each.end_ns) for each in calls]))
    return union(
        _arrays([(each.begin_ns, each.end_ns) for each in waits]),
        _arrays([(each.begin_ns, each.end_ns) for each in regions if each.name.startswith(COMM_REGION)]),
        *([] if rows.points.on_device else [_arrays([(each.ready_ns, each.handed_over_ns) for each in calls])]),
        *(intersection(in_flight, tail) for tail in (_tails(phases, calls, rows.buckets) if rows.buckets else [])),
    )


def _add_phases(rows: _Growing, step: int, window: int, phases: Sequence[_Lasted], blocked: Intervals) -> None:
    for each in phases:
        free = difference(union(_arrays([(each.begin_ns, each.end_ns)])), blocked)
        for start, stop in zip(free.starts.tolist(), free.ends.tolist(), strict=True):
            code = rows.names.code(each.name)
            _append(rows.spans, window, 0, COMPUTE, code, start, stop, each.launch_ns, step, NONE)


def _add_calls(rows: _Growing, step: int, window: int, calls: Sequence[_Timed], phases: Sequence[_Lasted]) -> None:
    code = rows.names.code
    for call, _, _, start, end in calls:
        phase = next((each.name for each in phases if each.begin_ns <= start < each.end_ns), None)
        launched = rows.points.epoch_ns(call.entered_ns)
        _append(
            rows.calls,
            window,
            step,
            code(call.group),
            call.seq if call.seq is not None and call.group in rows.numbered else NONE,
            code(call.op),
            code(call.dtype) if call.dtype else -1,
            NONE if call.elements is None else call.elements,
            held(volume_bytes(call.elements, call.dtype)),
            call.group_size,
            launched,
            start,
            end,
            code(phase) if phase else -1,
            code(call.module) if call.module else -1,
        )
        row = len(rows.calls["start_ns"]) - 1
        _append(rows.spans, window, rows.lane_of[call.group], COMM, code(call.op), start, end, launched, step, row)


def _add_regions(rows: _Growing, step: int, window: int, regions: Sequence[_Lasted]) -> None:
    """Add regions as annotations; one that communicates is a span of communication too."""
    code, lane = rows.names.code, rows.lane_of[""]
    for name, begin, end, launched in regions:
        _append(rows.notes, window, 0, code(name), begin, end)
        if name.startswith(COMM_REGION):
            own = code(name.removeprefix(COMM_REGION))
            _append(rows.spans, window, lane, COMM, own, begin, end, launched, step, NONE)


def _tails(phases: Sequence[_Lasted], calls: Sequence[_Timed], buckets: BucketCopies) -> list[Intervals]:
    """Return, for each backward, when it waited at its end for the buckets under way.

    DistributedDataParallel enters its last bucket with the last gradient.
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
