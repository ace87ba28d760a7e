"""Build a rank's timeline from the columns of one recorded trace."""

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.device_collectives import GroupBook, assemble
from overlapscope.ingest.build.host_ranges import NOWHERE
from overlapscope.ingest.build.host_spans import host_parts, host_syncs
from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.build.launch_links import DeviceSpans
from overlapscope.ingest.build.trace_columns import TraceColumns
from overlapscope.ingest.build.user_marks import add_comm_marks, step_at
from overlapscope.timeline.columns import (
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
    make,
    shift,
)
from overlapscope.timeline.lazy_host_spans import LazyHostSpans, MadeOnce
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import COMPILED, WAITS_FOR_DEVICE
from overlapscope.timeline.rows import are_among, unique
from overlapscope.timeline.run import UNKNOWN_RANK, Group, RankTimeline


class BuiltTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline whose rank is not set yet, with the groups and problems found while building it."""

    timeline: RankTimeline
    groups: tuple[Group, ...]
    unlinked: int
    """Number of device spans without a launch."""
    notes: tuple[str, ...] = ()


def device_timeline(
    columns: TraceColumns,
    linked: DeviceSpans,
    classifier: Classifier,
    steps: Steps,
    groups: tuple[Group, ...],
    *,
    base_ns: int,
    source: str,
    truncated: bool,
) -> BuiltTimeline:
    """Return the timeline of a trace with device work; `base_ns` is added to its times, and is already in `steps`."""
    book = GroupBook(groups)
    collectives, call_of_span = assemble(columns, linked, classifier, book)
    row = linked.row
    launch_ns = shift(linked.launch_ns, base_ns)
    spans = make(
        Spans,
        row.size,
        recording=0,
        lane=columns.device_lane[row],
        kind=linked.kind,
        note=linked.note,
        name=columns.device_name[row],
        host_op=np.where(linked.host_row == NOWHERE, -1, np.append(columns.host.name, -1)[linked.host_row]),
        start_ns=columns.device_start_ns[row] + base_ns,
        end_ns=columns.device_end_ns[row] + base_ns,
        launch_ns=launch_ns,
        correlation=columns.device_correlation[row],
        blocks=columns.device_blocks[row],
        step=step_at(steps, launch_ns),
        collective=call_of_span,
    )
    for first_ns, last_ns in linked.lost:
        within = (steps.start_ns <= last_ns + base_ns) & (first_ns + base_ns < steps.end_ns)
        steps = replace(steps, cut=steps.cut | within)
    timeline = trace_timeline(
        columns,
        spans,
        assign_steps(collectives, steps, base_ns),
        steps,
        base_ns=base_ns,
        source=source,
        truncated=truncated,
        has_device=True,
        last_launch_ns=linked.last_launch_ns,
        lost_launch_ns=linked.lost_launch_ns,
    )
    notes = []
    if linked.ambiguous:
        notes.append(f"{linked.ambiguous} device spans have a launch in more than one process; left without")
    return BuiltTimeline(
        timeline=timeline, groups=book.groups(), unlinked=int((launch_ns == NONE).sum()), notes=tuple(notes)
    )


def trace_timeline(
    columns: TraceColumns,
    spans: Spans,
    collectives: Collectives,
    steps: Steps,
    *,
    base_ns: int,
    source: str,
    truncated: bool,
    has_device: bool,
    last_launch_ns: int = NONE,
    lost_launch_ns: int = NONE,
) -> RankTimeline:
    """Return the timeline of spans, collectives and steps, whose times are final.

    Lanes, annotations, host events and the recording window come from the trace's columns, to whose times `base_ns` is
    added.
    """
    spans = add_comm_marks(spans, columns, steps, base_ns)
    host = host_parts(columns, base_ns)
    window = columns.window or _seen(columns)
    last, lost = shift(np.array([last_launch_ns, lost_launch_ns], np.int64), base_ns).tolist()
    return RankTimeline(
        rank=UNKNOWN_RANK,
        basis="trace",
        has_device=has_device,
        recordings=make(
            Recordings,
            1,
            source=columns.names.code(source),
            start_ns=window[0] + base_ns,
            end_ns=window[1] + base_ns,
            last_launch_ns=last,
            lost_launch_ns=lost,
            truncated=truncated,
            host_events=host.num_spans > 0,
        ),
        spans=spans,
        collectives=collectives,
        steps=steps,
        lanes=_lanes(columns),
        annotations=_annotations(columns, base_ns),
        host=LazyHostSpans.of(MadeOnce(host)),
        syncs=host_syncs(columns, base_ns),
        names=tuple(columns.names.to_list()),
    )


def _lanes(columns: TraceColumns) -> Lanes:
    process, label = zip(*columns.lanes, strict=True)
    is_device = np.zeros(len(columns.lanes), np.bool_)
    for used in (columns.device_lane, columns.syncs.lane, columns.syncs.awaited_lane):
        is_device[used[used != NONE]] = True
    return make(
        Lanes,
        len(columns.lanes),
        kind=np.where(is_device, DEVICE, HOST),
        process=columns.names.encode(process),
        label=columns.names.encode(label),
    )


def _annotations(columns: TraceColumns, base_ns: int) -> Annotations:
    host, marked, waits = columns.host, _marked(columns), _host_waits(columns)
    return make(
        Annotations,
        marked.size + waits.size,
        recording=0,
        lane=np.concatenate([host.lane[marked], columns.launch_lane[waits]]),
        name=np.concatenate([host.name[marked], columns.launch_name[waits]]),
        start_ns=np.concatenate([host.start_ns[marked], columns.launch_start_ns[waits]]) + base_ns,
        end_ns=np.concatenate([host.end_ns[marked], columns.launch_end_ns[waits]]) + base_ns,
    )


def _marked(columns: TraceColumns) -> Ints:
    """Return the rows of annotations, and of the operations with which torch.compile marks its graphs."""
    compiled = rows_named(columns.host.name, columns.names.to_list(), COMPILED.match)
    return np.flatnonzero(columns.host.is_annotation | compiled)


def _host_waits(columns: TraceColumns) -> Ints:
    """Return the rows of the calls that waited for the device, on threads that also launch device work.

    Waits on other threads, such as a watchdog's, delay nothing.
    """
    waits = rows_named(columns.launch_name, columns.names.to_list(), WAITS_FOR_DEVICE.fullmatch)
    if not waits.any():
        return np.empty(0, np.int64)
    enqueued = are_among(columns.launch_correlation, columns.device_correlation[columns.device_correlation != NONE])
    working = unique(columns.launch_lane[enqueued])
    return np.flatnonzero(waits & np.isin(columns.launch_lane, working))


def _seen(columns: TraceColumns) -> tuple[int, int]:
    """Return the first start and the last end of all ranges, used if the trace does not state its window."""
    starts = [columns.device_start_ns, columns.launch_start_ns, columns.host.start_ns]
    ends = [columns.device_end_ns, columns.launch_start_ns, columns.host.end_ns]
    return min(int(each.min()) for each in starts if each.size), max(int(each.max()) for each in ends if each.size)


def assign_steps(collectives: Collectives, steps: Steps, base_ns: int) -> Collectives:
    """Return the collectives with `base_ns` added to their times and with the step that launched each."""
    launch_ns = shift(collectives.launch_ns, base_ns)
    return replace(
        collectives,
        launch_ns=launch_ns,
        start_ns=collectives.start_ns + base_ns,
        end_ns=collectives.end_ns + base_ns,
        step=step_at(steps, launch_ns),
    )
