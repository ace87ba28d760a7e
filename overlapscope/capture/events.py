"""Records of `events` mode to columns: collectives from ready to done, phases less the time they were blocked."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from overlapscope.capture.bucket_waits import bucket_waits
from overlapscope.capture.points import Points
from overlapscope.capture.records import Call, StepRecord
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
)
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.volume import volume_bytes
from overlapscope.values import dataclass

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


@dataclass(slots=True)
class _Rows:
    """Columns of spans, collectives and annotations while they grow."""

    spans: dict[str, list[int]]
    calls: dict[str, list[int]]
    notes: dict[str, list[int]]
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
    """Give the timeline of the observed steps; readings are in monotonic time.

    With `buckets` (the model is DistributedDataParallel) backward waits at its end for the buckets under way: see
    `bucket_waits`.
    Steps without a gap between their numbers are one recording window: what lies between windows was not recorded.
    """
    names = NameTable()
    observed = [record for record in records if record.observed and record.end_ns]
    groups = sorted({call.group for record in observed for call in record.calls} | {""})
    lane_of = {group: 1 + at for at, group in enumerate(groups)}
    rows = _Rows(spans=_columns(Spans), calls=_columns(Collectives), notes=_columns(Annotations))
    last_done: dict[str, int] = {}
    numbered = _numbered(observed)
    windows = _windows(observed)
    for record, window in zip(observed, windows, strict=True):
        _add_step(record, window, points, names, lane_of, numbered, rows, last_done, buckets=buckets)
    first = [windows.index(window) for window in sorted(set(windows))]
    last = [len(windows) - 1 - windows[::-1].index(window) for window in sorted(set(windows))]
    labels = [TRAINING, *(f"collectives of group {group}" if group else "collectives" for group in groups)]
    return RankTimeline(
        rank=rank,
        basis="events",
        has_device=points.on_device,
        recordings=make(
            Recordings,
            len(first),
            start_ns=[points.epoch_ns(observed[row].begin_ns) for row in first],
            end_ns=[_end_ns(observed[row], points) for row in last],
        ),
        spans=make(Spans, len(rows.spans["start_ns"]), **rows.spans),
        collectives=make(Collectives, len(rows.calls["start_ns"]), **rows.calls),
        steps=make(
            Steps,
            len(observed),
            recording=windows,
            step=[record.number for record in observed],
            start_ns=[points.epoch_ns(record.begin_ns) for record in observed],
            end_ns=[points.epoch_ns(record.end_ns) for record in observed],
            cut=[record.cut or any(call.done is None for call in record.calls) for record in observed],
        ),
        lanes=make(
            Lanes,
            len(labels),
            kind=DEVICE if points.on_device else HOST,
            label=names.encode(labels),
        ),
        annotations=make(Annotations, len(rows.notes["start_ns"]), **rows.notes),
        telemetry=telemetry_of(observed, readings, points, names),
        names=tuple(names.to_list()),
        recorded={**recorded, "unfinished_collectives": rows.unfinished},
    )


def telemetry_of(
    records: Sequence[StepRecord], readings: Sequence[tuple[str, int, float]], points: Points, names: NameTable
) -> Telemetry:
    """Give the readings of the steps and of the sampler as one table, in order of time."""
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
    """Give the groups whose calls have the same number on every member.

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


def _end_ns(record: StepRecord, points: Points) -> int:
    """Give when the recording of a window's last step ended: with the step, or with a collective that outlasts it."""
    marks = [call.done for call in record.calls] + [each.end for each in (*record.phases, *record.regions)]
    done = [time for time in points.times(marks) if time is not None]
    return max([points.epoch_ns(record.end_ns), *done])


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


def _add_step(
    record: StepRecord,
    window: int,
    points: Points,
    names: NameTable,
    lane_of: Mapping[str, int],
    numbered: frozenset[str],
    rows: _Rows,
    last_done: dict[str, int],
    *,
    buckets: BucketCopies | None,
) -> None:
    def pairs(stretches: Sequence[Any]) -> list[tuple[str, int, int, int]]:
        begins = points.times([each.begin for each in stretches])
        ends = points.times([each.end for each in stretches])
        return [
            (each.name, begin, end, points.epoch_ns(each.begin_ns))
            for each, begin, end in zip(stretches, begins, ends, strict=True)
            if begin is not None and end is not None and end > begin
        ]

    phases, waits, regions = pairs(record.phases), pairs(record.waits), pairs(record.regions)
    calls = _calls(record.calls, points, rows, last_done, serial=points.on_device)
    in_flight = union(_arrays([(each.begin_ns, each.end_ns) for each in calls]))
    blocked = union(
        _arrays([(begin, end) for _, begin, end, _ in waits]),
        _arrays([(begin, end) for name, begin, end, _ in regions if name.startswith("comm:")]),
        *([_arrays([(each.ready_ns, each.handed_over_ns) for each in calls])] if not points.on_device else []),
        *(intersection(in_flight, tail) for tail in (_tails(phases, calls, buckets) if buckets else [])),
    )
    for name, begin, end, launched in phases:
        free = difference(union(_arrays([(begin, end)])), blocked)
        for start, stop in zip(free.starts.tolist(), free.ends.tolist(), strict=True):
            _append(rows.spans, window, 0, COMPUTE, names.code(name), start, stop, launched, record.number, NONE)
    for call, _, _, start, end in calls:
        phase = next((name for name, begin, stop, _ in phases if begin <= start < stop), None)
        _append(
            rows.calls,
            window,
            record.number,
            names.code(call.group),
            call.seq if call.seq is not None and call.group in numbered else NONE,
            names.code(call.op),
            names.code(call.dtype) if call.dtype else -1,
            NONE if call.elements is None else call.elements,
            _or_none(volume_bytes(call.elements, call.dtype)),
            call.group_size,
            points.epoch_ns(call.entered_ns),
            start,
            end,
            names.code(phase) if phase else -1,
            names.code(call.module) if call.module else -1,
        )
        row = len(rows.calls["start_ns"]) - 1
        launched = points.epoch_ns(call.entered_ns)
        _append(
            rows.spans, window, lane_of[call.group], COMM, names.code(call.op), start, end, launched, record.number, row
        )
    for name, begin, end, launched in regions:
        _append(rows.notes, window, 0, names.code(name), begin, end)
        if name.startswith("comm:"):
            code = names.code(name.removeprefix("comm:"))
            _append(rows.spans, window, lane_of[""], COMM, code, begin, end, launched, record.number, NONE)


def _calls(
    calls: Sequence[Call], points: Points, rows: _Rows, last_done: dict[str, int], *, serial: bool
) -> list[_Timed]:
    """Give the calls with their times. On a device one group's calls run one after the other (`serial`)."""
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


def _tails(
    phases: Sequence[tuple[str, int, int, int]], calls: Sequence[_Timed], buckets: BucketCopies
) -> list[Intervals]:
    """Give, for each backward, when it waited at its end for the buckets under way.

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


def _or_none(value: int | None) -> int:
    return NONE if value is None else value
