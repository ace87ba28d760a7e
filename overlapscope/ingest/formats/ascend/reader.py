"""Read an Ascend profiler's `trace_view.json` (torch_npu, MindSpore, msprof) into a rank's timeline.

Computation is the work on the streams of `Ascend Hardware`; communication is HCCL's row of each group. The tasks that a
collective is made of stand in the file twice more, on HCCL's planes and on the hardware's streams; they are not counted
again. The vendor's own `Overlap Analysis` rows are not work and are not used.
"""

from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.ingest.build.host_spans import in_order
from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.build.profiler_names import OLD_ANNOTATION
from overlapscope.ingest.build.trace_columns import Ranges
from overlapscope.ingest.build.user_marks import host_steps, step_at
from overlapscope.ingest.formats.ascend.device import collectives, device_tasks, is_row, on_plane
from overlapscope.ingest.formats.ascend.events import (
    AscendCollector,
    AscendColumns,
    AscendEvent,
    arrow_starts,
    launch_bounds,
)
from overlapscope.ingest.formats.ascend.folder import DEVICE_OUTPUT, rank_of
from overlapscope.ingest.parsing.event_array import EventArray
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import (
    ANNOTATION,
    COMM,
    DEVICE,
    HOST,
    NONE,
    OPERATION,
    PLAIN,
    PYTHON,
    RUNTIME,
    Annotations,
    Codes,
    Flags,
    HostSpans,
    Ints,
    Lanes,
    Recordings,
    Spans,
    make,
    size,
)
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline, Source

HARDWARE = "Ascend Hardware"
COLLECTIVES = frozenset({"HCCL", "Communication"})
"""Names of the process of the collectives, in older and newer versions of msprof."""
CANN, PYTHON_GC = "CANN", "Python GC"
_QUEUE = ("enqueue", "dequeue")
"""Categories of the tasks that one thread of the framework hands to another, which calls CANN."""
NO_WORK_PROCESSES = frozenset({"Overlap Analysis", CANN, PYTHON_GC, "MSTX", "MsTx"})
"""Their timed events are host calls, marks, and the vendor's own sums."""


def read_ascend(path: Path, context: ReadContext) -> Reading:
    """Read one trace, plain or gzip, complete or damaged.

    Raises InputError when it cannot be read, has no device work, or has the work of several devices.
    """
    stream = ByteStream(path, context.max_bytes, context.progress)
    array = EventArray(stream, msgspec.json.Decoder(list[AscendEvent]))
    collector = AscendCollector()
    array.read(collector.add)
    columns = collector.columns()
    truncated = stream.truncated or not array.closed
    timeline, unlinked, notes = _timeline(columns, context.classifier, display_path(path), truncated)
    if not array.closed and not stream.truncated:
        notes.insert(0, "the file ends in the middle of the events; read up to the last complete one")
    rank = rank_of(path)
    return Reading(
        stands_in=path.absolute().parent.name == DEVICE_OUTPUT,  # only the device's part, kept beside trace_view.json
        timelines=(replace(timeline, rank=rank),),
        fingerprint={"device": "Ascend NPU", **({"backend": "hccl"} if timeline.collectives.op.size else {})},
        source=Source(
            path=display_path(path),
            events=array.events,
            repaired=array.repaired,
            dropped=array.dropped + columns.dropped,
            truncated=truncated,
            unlinked=unlinked,
            warnings=(*stream.warnings, *notes),
        ),
    )


def _timeline(
    columns: AscendColumns, classifier: Classifier, path: str, truncated: bool
) -> tuple[RankTimeline, int, list[str]]:
    names = columns.names.to_list()
    ranges = columns.ranges
    process = [columns.processes.get(process, "") for process, _ in columns.lanes]
    on_hardware = _on(ranges, [each.startswith(HARDWARE) for each in process])
    rows = _collective_rows(columns, names, process)
    _require_one_device(columns, on_hardware, rows, path, truncated)
    tasks, kind, note = device_tasks(columns, names, classifier, np.flatnonzero(on_hardware), rows)
    # Communication kernels without an HCCL row are separate collectives.
    rows = np.concatenate([rows, tasks[kind == COMM]])
    tasks, kind, note = tasks[kind != COMM], kind[kind != COMM], note[kind != COMM]
    host = _host(columns, names, process)
    steps, warnings = host_steps(host, names)
    row = np.concatenate([rows, tasks])
    launch_ns, called_ns, host_op = _launched(columns, host, row)
    host_spans, correlation = _host_spans(columns, host, process, row)
    # The operation belongs to the step in which it was called, even where a queue enqueued its work later.
    step = step_at(steps, np.where(called_ns != NONE, called_ns, launch_ns))
    calls, notes = collectives(columns, rows, launch_ns[: rows.size], step[: rows.size])
    spans = make(
        Spans,
        row.size,
        recording=0,
        lane=ranges.lane[row],
        kind=np.concatenate([np.full(rows.size, COMM, np.int8), kind]),
        note=np.concatenate([np.full(rows.size, PLAIN, np.int8), note]),
        name=ranges.name[row],
        host_op=host_op,
        start_ns=ranges.start_ns[row],
        end_ns=ranges.end_ns[row],
        launch_ns=launch_ns,
        correlation=correlation,
        step=step,
        collective=np.where(np.arange(row.size) < rows.size, np.arange(row.size), NONE),
    )
    if spans.start_ns.size == 0:
        raise InputError(f"{path}: the Ascend device neither computed nor communicated")
    timeline = RankTimeline(
        rank=UNKNOWN_RANK,
        basis="trace",
        has_device=True,
        recordings=replace(
            _recording(columns, spans, host, path, truncated), host_events=np.array([size(host_spans) > 0])
        ),
        spans=spans,
        collectives=calls,
        steps=steps,
        lanes=_lanes(columns, process, ranges.lane[row]),
        annotations=_annotations(host),
        host=host_spans,
        names=tuple(columns.names.to_list()),
    )
    if not rows.size and any(on_plane(columns.threads.get(lane, "")) for lane in columns.lanes):
        notes.append(
            "HCCL's planes are recorded, but no row of a collective: communication is missing from all figures"
        )
    notes = [*warnings, *notes, *_unread(columns, process)]
    return timeline, int((launch_ns == NONE).sum()), notes


def _require_one_device(columns: AscendColumns, on_hardware: Flags, rows: Ints, path: str, truncated: bool) -> None:
    """Raise InputError where the trace has no device work, or that of several devices; `rows` are its collectives."""
    if not on_hardware.any() and rows.size == 0:
        why = "the file is cut before it" if truncated else "it was not recorded, or is in another file"
        raise InputError(f"{path}: no work of an Ascend device is in the trace: {why}")
    devices = {columns.lanes[lane][0] for lane in np.unique(columns.ranges.lane[on_hardware]).tolist()}
    if len(devices) > 1:
        raise InputError(f"{path}: holds the work of {len(devices)} devices; export the trace of each on its own")


def _launched(columns: AscendColumns, host: Ranges, row: Ints) -> tuple[Ints, Ints, Codes]:
    """Return when each device event was launched, when its operation was called, and the operation's name."""
    launch_ns, _ = arrow_starts(columns.launches, columns.ranges, row)
    called_ns, called_lane = arrow_starts(columns.operations, columns.ranges, row)
    host_row = innermost_range(host, called_lane, called_ns)
    host_op = np.where(host_row == NOWHERE, -1, np.append(host.name, -1)[host_row])
    return np.where(launch_ns == NONE, called_ns, launch_ns), called_ns, host_op


def _host_spans(columns: AscendColumns, host: Ranges, process: list[str], row: Ints) -> tuple[HostSpans, Ints]:
    """Return the host spans, and the correlation of each device event `row`.

    Runtime calls are those of CANN, and the tasks that the framework hands to the thread that calls it. Both are
    numbered here: what links a task to its call in the file is an arrow that begins inside the call. CANN's events
    name the threads of the framework's process under a process of their own; a thread is one lane.
    """
    ranges = columns.ranges
    framework = {thread: lane for lane, (_, thread) in enumerate(columns.lanes) if not _is_known(process[lane])}
    one = np.array([*(framework.get(thread, lane) for lane, (_, thread) in enumerate(columns.lanes)), NONE], np.int64)
    queue = [code for code, name in enumerate(columns.names.to_list()) if name in _QUEUE]
    calls = np.flatnonzero(_on(ranges, [each == CANN for each in process]) | np.isin(columns.category, queue))
    pauses = np.flatnonzero(_on(ranges, [each == PYTHON_GC for each in process]))
    called = Ranges(
        lane=one[ranges.lane[calls]],
        name=ranges.name[calls],
        start_ns=ranges.start_ns[calls],
        end_ns=ranges.end_ns[calls],
        is_annotation=np.zeros(calls.size, np.bool_),
    )
    launch_ns, launch_lane = arrow_starts(columns.launches, ranges, row)
    launched = np.where(launch_lane == NONE, NONE, one[np.where(launch_lane == NONE, -1, launch_lane)])
    by = innermost_range(called, launched, launch_ns)
    rows = np.concatenate([calls, pauses])
    spans = in_order(
        lane=np.concatenate([one[host.lane], one[ranges.lane[rows]]]),
        kind=np.concatenate(
            [
                np.where(host.is_annotation, np.int8(ANNOTATION), np.int8(OPERATION)),
                np.full(calls.size, RUNTIME, np.int8),
                np.full(pauses.size, PYTHON, np.int8),
            ]
        ),
        name=np.concatenate([host.name, ranges.name[rows]]),
        start_ns=np.concatenate([host.start_ns, ranges.start_ns[rows]]),
        end_ns=np.concatenate([host.end_ns, ranges.end_ns[rows]]),
        correlation=np.concatenate(
            [np.full(host.name.size, NONE), np.arange(1, calls.size + 1), np.full(pauses.size, NONE)]
        ),
    )
    return spans, np.where(by == NOWHERE, NONE, by + 1)


def _recording(columns: AscendColumns, spans: Spans, host: Ranges, path: str, truncated: bool) -> Recordings:
    last, lost = launch_bounds(columns.launches, spans.launch_ns)
    return make(
        Recordings,
        1,
        source=columns.names.code(path),
        start_ns=min(int(each.min()) for each in (spans.start_ns, host.start_ns) if each.size),
        end_ns=max(int(each.max()) for each in (spans.end_ns, host.end_ns) if each.size),
        last_launch_ns=last,
        lost_launch_ns=lost,
        truncated=truncated,
    )


def _annotations(host: Ranges) -> Annotations:
    marked = np.flatnonzero(host.is_annotation)
    return make(
        Annotations,
        marked.size,
        recording=0,
        lane=host.lane[marked],
        name=host.name[marked],
        start_ns=host.start_ns[marked],
        end_ns=host.end_ns[marked],
    )


def _on(ranges: Ranges, chosen_lanes: list[bool]) -> Flags:
    return np.array([*chosen_lanes, False], np.bool_)[ranges.lane]


def _collective_rows(columns: AscendColumns, names: list[str], process: list[str]) -> Ints:
    """Return the events that are collectives, in order of time."""
    ranges = columns.ranges
    there = np.flatnonzero(_on(ranges, [each in COLLECTIVES for each in process]))
    threads = [columns.threads.get(lane, "") for lane in columns.lanes]
    keys = zip(ranges.lane[there].tolist(), ranges.name[there].tolist(), strict=True)
    rows = there[np.array([is_row(threads[lane], names[name]) for lane, name in keys], np.bool_)]
    return rows[np.lexsort((ranges.end_ns[rows], ranges.start_ns[rows]))]


def _is_known(process: str) -> bool:
    return process.startswith(HARDWARE) or process in COLLECTIVES or process in NO_WORK_PROCESSES


def _host(columns: AscendColumns, names: list[str], process: list[str]) -> Ranges:
    """Return the framework's own ranges: all events with a category that are not in a device process."""
    ranges = columns.ranges
    device = [_is_known(each) for each in process]
    queue = np.array([each in _QUEUE for each in names] + [False], np.bool_)
    rows = np.flatnonzero((columns.category >= 0) & ~queue[columns.category] & ~_on(ranges, device))
    marks = np.array([OLD_ANNOTATION.match(each) is not None for each in names] + [False], np.bool_)
    operations = columns.names.encode(["cpu_op"])[0]
    return Ranges(
        lane=ranges.lane[rows],
        name=ranges.name[rows],
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        is_annotation=(columns.category[rows] != operations) | marks[ranges.name[rows]],
    )


def _lanes(columns: AscendColumns, process: list[str], device_lanes: Ints) -> Lanes:
    is_device = np.zeros(len(columns.lanes), np.bool_)
    is_device[device_lanes] = True
    code = columns.names.code
    return make(
        Lanes,
        len(columns.lanes),
        kind=np.where(is_device, DEVICE, HOST),
        process=[code(name or pid) for name, (pid, _) in zip(process, columns.lanes, strict=True)],
        label=[code(columns.threads.get(lane, lane[1])) for lane in columns.lanes],
    )


def _unread(columns: AscendColumns, process: list[str]) -> list[str]:
    """Return a warning about timed events of unknown processes."""
    known = [_is_known(each) or not each for each in process]
    rows = np.flatnonzero((columns.category < 0) & ~_on(columns.ranges, known))
    lanes, counts = np.unique(columns.ranges.lane[rows], return_counts=True)
    listed: dict[str, int] = {}
    for lane, number in zip(lanes.tolist(), counts.tolist(), strict=True):
        listed[process[lane]] = listed.get(process[lane], 0) + number
    if not listed:
        return []
    shown_counts = ", ".join(f"{name} ({number})" for name, number in sorted(listed.items())[:5])
    return [f"timed events of processes that are not read: {shown_counts}"]
