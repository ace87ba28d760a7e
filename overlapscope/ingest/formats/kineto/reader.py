"""Read a Kineto trace (torch.profiler) of any version into a rank's timeline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.kernel_names import (
    C10D_CALL,
    HOST_COLLECTIVE,
    LIBRARY_RANGE,
    RECORD_PARAM_COMMS,
    Classifier,
)
from overlapscope.ingest.build.launch_links import link_and_classify
from overlapscope.ingest.build.profiler_names import LAUNCHES_KERNEL
from overlapscope.ingest.build.timeline import BuiltTimeline, assign_steps, device_timeline, trace_timeline
from overlapscope.ingest.build.trace_columns import TraceColumns
from overlapscope.ingest.build.user_marks import host_steps, step_at
from overlapscope.ingest.formats.kineto.cpu_spans import cpu_spans
from overlapscope.ingest.formats.kineto.devices import devices_at_work, of_each_device
from overlapscope.ingest.formats.kineto.event_file import read_events
from overlapscope.ingest.formats.kineto.events import without_impossible
from overlapscope.ingest.formats.kineto.gradients import with_ready_gradients
from overlapscope.ingest.formats.kineto.metadata import TraceMetadata, read_metadata
from overlapscope.ingest.formats.kineto.own_rank import host_in_name, with_rank
from overlapscope.ingest.formats.kineto.transfers import inside, with_transfers
from overlapscope.ingest.parsing.json_values import hash_of
from overlapscope.ingest.reader import ReadContext, Reading, rank_from_path
from overlapscope.timeline.columns import NONE, Ints, Steps, shift
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import SHAPES, RankTimeline, Source

MOST_SHAPED: Final = 0.5
"""The sizes of a step's inputs are known if at least this share of its operations states shapes."""


def read_kineto(path: Path, context: ReadContext) -> Reading:
    """Read one trace file, plain or gzip, JSON object or bare array, complete or damaged.

    Raises InputError when the file cannot be read or has no timed device or host work, NotATraceError when it holds no
    events.
    """
    file = read_events(path, context)
    metadata = read_metadata(file.head, file.tail, is_array=file.is_array)
    columns, impossible = without_impossible(file.columns)
    outside = 0
    if metadata.transfers and not columns.device_name.size:
        transfers = inside(metadata.transfers, columns, metadata.base_ns)
        outside = len(metadata.transfers) - len(transfers)
        columns = with_transfers(columns, transfers, metadata.base_ns)
    if columns.device_name.size == 0 and columns.host.name.size == 0:
        raise InputError(
            f"{display_path(path)}: holds no device or host work ({columns.events} events); "
            "is it a torch profiler trace?"
        )
    truncated = file.truncated or not file.closed
    warnings = [*file.warnings, *metadata.warnings]
    if outside:
        warnings.append(f"overlapscope_transfers left out because they lie outside of the trace's time: {outside}")
    if impossible:
        warnings.append(f"{impossible} device events at time 0 left out: the profiler recorded no time for them")
    if not file.closed and not file.truncated:
        warnings.append("the file ends in the middle of the events; read up to the last complete one")
    if columns.unknown:
        listed = ", ".join(f"{name} ({number})" for name, number in columns.unknown.most_common(5))
        warnings.append(f"timed events of categories that are not read: {listed}")
    if columns.device_name.size == 0:
        _refuse_lost_device(columns, metadata, display_path(path), truncated)
    build = _device_timeline if columns.device_name.size else _cpu_timeline
    devices, divided = _devices(columns, metadata, path)
    built = [build(each, metadata, context.classifier, display_path(path), truncated) for each in divided]
    if len(devices) > 1:
        listed = f"its process works on {len(devices)} devices ({', '.join(devices)})"
        together = "they are shown as one rank, which is idle when none of them works"
        warnings.append(f"{listed}: {'each is a rank' if len(divided) > 1 else together}")
    groups = {group.name: group for each in built for group in each.groups}
    return Reading(
        timelines=_of_ranks(built, divided, metadata, path),
        world_size=None if len(built) > 1 else metadata.world_size,
        groups=tuple(groups.values()),
        fingerprint=dict(metadata.fingerprint),
        source=Source(
            path=display_path(path),
            events=columns.events,
            repaired=columns.repaired,
            dropped=columns.dropped,
            truncated=truncated,
            unlinked=sum(each.unlinked for each in built),
            warnings=(*warnings, *dict.fromkeys(note for each in built for note in each.notes)),
        ),
        ranks_assumed=len(built) > 1,
    )


def _of_ranks(
    built: Sequence[BuiltTimeline], divided: Sequence[TraceColumns], metadata: TraceMetadata, path: Path
) -> tuple[RankTimeline, ...]:
    """Return the timelines with ready gradients, rank, host, and what else the trace states; several have one clock."""
    stated = {"trigger": metadata.reason, SHAPES: metadata.has_shapes}
    if len(built) > 1:
        stated["clock"] = f"torch.profiler file {hash_of(display_path(path).encode())}"
    timelines = []
    for at, (each, part) in enumerate(zip(built, divided, strict=True)):
        timeline = with_ready_gradients(each.timeline, part, metadata.base_ns)
        recorded = {**stated, "host": metadata.host or host_in_name(path, timeline)}
        timeline = replace(timeline, recorded={name: value for name, value in recorded.items() if value is not None})
        rank = at if len(built) > 1 else metadata.rank
        timelines.append(with_rank(timeline, rank, path, each.groups))
    return tuple(timelines)


def _devices(columns: TraceColumns, metadata: TraceMetadata, path: Path) -> tuple[list[str], list[TraceColumns]]:
    """Return the devices that the process works on, and the columns of each rank that it is: one for each device, but
    one in all if it is, or may be, a rank of several, whose groups name processes."""
    devices = devices_at_work(columns)
    numbered = metadata.rank is not None or rank_from_path(path) is not None
    if len(devices) < 2 or (numbered if metadata.world_size is None else metadata.world_size > 1):
        return devices, [columns]
    called = any(name == RECORD_PARAM_COMMS or C10D_CALL.match(name) for name in columns.names.to_list())
    return devices, [columns] if called else of_each_device(columns, devices)


def _refuse_lost_device(columns: TraceColumns, metadata: TraceMetadata, path: str, truncated: bool) -> None:
    """Raise InputError for a device run whose device events are missing, so that it is not taken for a CPU run.

    Kineto writes host events first, so a cut file may hold only these.
    """
    names = columns.names.to_list()
    launches = any(LAUNCHES_KERNEL.search(names[code]) for code in set(columns.launch_name.tolist()))
    on_device = "nccl" in str(metadata.fingerprint.get("backend")) or metadata.fingerprint.get("device") is not None
    called = any(name == RECORD_PARAM_COMMS or LIBRARY_RANGE.match(name) for name in names)
    ran = any(HOST_COLLECTIVE.match(name) for name in names)
    if launches or (truncated and on_device) or (called and not ran):
        why = "the file is cut before it" if truncated else "the profiler did not record it"
        raise InputError(f"{path}: the run used a device, but no device work is in the trace: {why}")


def _device_timeline(
    columns: TraceColumns, metadata: TraceMetadata, classifier: Classifier, path: str, truncated: bool
) -> BuiltTimeline:
    linked = link_and_classify(columns, classifier)
    if linked.row.size == 0:
        return _cpu_timeline(columns, metadata, classifier, path, truncated)
    base = metadata.base_ns
    steps, warnings = host_steps(columns.host, columns.names.to_list(), base)
    built = device_timeline(
        columns, linked, classifier, steps, metadata.groups, base_ns=base, source=path, truncated=truncated
    )
    return replace(built, notes=(*warnings, *built.notes))


def _inputs(columns: TraceColumns, steps: Steps, base_ns: int) -> tuple[Ints, Ints]:
    """Return the elements of all inputs of the operations that began in each step, and a hash of their names and
    shapes; NONE where few have shapes, or only empty ones."""
    elements, host, number = columns.host_elements, columns.host, steps.step.size
    rows = np.flatnonzero(~host.is_annotation[: elements.size])
    start = host.start_ns[rows] + base_ns
    step = np.searchsorted(steps.start_ns, start, side="right") - 1
    inside = step >= 0
    inside[inside] = start[inside] < steps.end_ns[step[inside]]
    rows, step = rows[inside], step[inside]
    shaped = elements[rows] != NONE
    known = np.bincount(step[shaped], minlength=number) >= MOST_SHAPED * np.bincount(step, minlength=number)
    rows, step = rows[shaped], step[shaped]
    names = np.array([hash_of(name.encode()) for name in columns.names.to_list()] or [0], np.int64)
    hashes = names[host.name[rows]] ^ columns.host_shapes[rows]
    sums = sum_by(step, elements[rows], number)
    known &= sums > 0
    return np.where(known, sums, NONE), np.where(known, sum_by(step, hashes, number), NONE)


def _cpu_timeline(
    columns: TraceColumns, metadata: TraceMetadata, classifier: Classifier, path: str, truncated: bool
) -> BuiltTimeline:
    del classifier  # host ranges are classified by their names alone
    base = metadata.base_ns
    spans, collectives, unended, lost_launch_ns = cpu_spans(columns, metadata.world_size, metadata.groups)
    if spans.start_ns.size == 0:
        raise InputError(f"{path}: holds neither device work nor host operations")
    steps, warnings = host_steps(columns.host, columns.names.to_list(), base)
    elements, shapes = _inputs(columns, steps, base)
    steps = replace(steps, input_elements=elements, input_shapes=shapes)
    start_ns, launch_ns = spans.start_ns + base, shift(spans.launch_ns, base)
    step = step_at(steps, np.where(launch_ns == NONE, start_ns, launch_ns))
    spans = replace(spans, start_ns=start_ns, end_ns=spans.end_ns + base, launch_ns=launch_ns, step=step)
    timeline = trace_timeline(
        columns,
        spans,
        assign_steps(collectives, steps, base),
        steps,
        base_ns=base,
        source=path,
        truncated=truncated,
        has_device=False,
        lost_launch_ns=lost_launch_ns,
    )
    notes = tuple(warnings)
    if unended:
        notes += (
            f"collectives left out because the profiler stopped before it had recorded their end: {unended}; the steps "
            "from there on are not complete",
        )
    names = columns.names.to_list()
    if not collectives.op.size and any(C10D_CALL.match(names[code]) for code in set(columns.host.name.tolist())):
        notes += (
            "collectives were called, but no span shows when they ran: communication is missing from all figures",
        )
    return BuiltTimeline(timeline=timeline, groups=metadata.groups, unlinked=0, notes=notes)
