"""Read one Kineto (torch.profiler) trace of any age into a rank's timeline."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.classify import Classifier, speaks_of_comm
from overlapscope.ingest.cpu_spans import cpu_spans
from overlapscope.ingest.device_collectives import GroupBook, assemble
from overlapscope.ingest.device_spans import link_and_classify
from overlapscope.ingest.event_chunks import EventChunks
from overlapscope.ingest.innermost import NOWHERE
from overlapscope.ingest.kineto_dialect import LAUNCHES_KERNEL, STEP
from overlapscope.ingest.kineto_events import EventCollector, KinetoColumns, without_impossible
from overlapscope.ingest.kineto_metadata import TraceMetadata, read_metadata
from overlapscope.ingest.marked_comm import marked_spans
from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading
from overlapscope.ingest.shown import shown
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
    concat,
    make,
    size,
)
from overlapscope.timeline.run import UNKNOWN_RANK, Group, RankTimeline, Source

FORMAT = "kineto"


def recognises(head: Head) -> bool:
    """Whether the file begins like JSON, or is too damaged or short to tell."""
    return head.content.lstrip(b"\xef\xbb\xbf \t\r\n\x00")[:1] in (b"{", b"[", b"")


def read_kineto(path: Path, context: ReadContext) -> Reading:
    """Read one trace file, plain or gzip, object or bare array, whole or damaged.

    Raises InputError when the file cannot be read or has no timed device or host work, NotATraceError when it holds no
    events.
    """
    stream = ByteStream(path, context.max_bytes, context.progress)
    chunks = EventChunks(stream.blocks(), shown(path))
    collector = EventCollector(speaks_of_comm)
    for piece in chunks.pieces(collector.take):
        collector.take_broken(piece)
    tail, closed = collector.add_last(chunks.tail, is_array=chunks.is_array)
    metadata = read_metadata(chunks.head, tail, is_array=chunks.is_array)
    columns, impossible = without_impossible(collector.columns())
    if columns.device_name.size == 0 and columns.host.name.size == 0:
        raise InputError(
            f"{shown(path)}: holds no device or host work ({columns.events} events); is it a torch profiler trace?"
        )
    truncated = stream.truncated or not closed
    warnings = [*stream.warnings, *metadata.warnings]
    if impossible:
        warnings.append(f"{impossible} device events at time 0 left out: the profiler did not know when they ran")
    if not closed and not stream.truncated:
        warnings.append("the file ends in the middle of the events; read up to the last whole one")
    if columns.unknown:
        listed = ", ".join(f"{name} ({number})" for name, number in columns.unknown.most_common(5))
        warnings.append(f"timed events of categories that are not read: {listed}")
    if columns.device_name.size == 0:
        _refuse_lost_device(columns, metadata, shown(path), truncated)
    build = _device_timeline if columns.device_name.size else _cpu_timeline
    timeline, groups, unlinked, notes = build(columns, metadata, context.classifier, shown(path), truncated)
    rank = UNKNOWN_RANK if metadata.rank is None else metadata.rank
    return Reading(
        timelines=(replace(timeline, rank=rank),),
        world_size=metadata.world_size,
        groups=groups,
        fingerprint=dict(metadata.fingerprint),
        source=Source(
            path=shown(path),
            format=FORMAT,
            events=columns.events,
            repaired=columns.repaired,
            dropped=columns.dropped,
            truncated=truncated,
            unlinked=unlinked,
            warnings=tuple(warnings + notes),
        ),
    )


def _refuse_lost_device(columns: KinetoColumns, metadata: TraceMetadata, path: str, truncated: bool) -> None:
    """Raise InputError for a device run whose device events are missing: it must not pass for a CPU run.

    Kineto writes host events first, so a cut file may hold these alone.
    """
    names = columns.names.to_list()
    launches = any(LAUNCHES_KERNEL.search(names[code]) for code in set(columns.launch_name.tolist()))
    on_device = "nccl" in str(metadata.fingerprint.get("backend")) or metadata.fingerprint.get("device") is not None
    if launches or (truncated and on_device):
        why = "the file is cut before it" if truncated else "the profiler did not record it"
        raise InputError(f"{path}: the run used a device, but no device work is in the trace: {why}")


_Built = tuple[RankTimeline, tuple[Group, ...], int, list[str]]


def _device_timeline(
    columns: KinetoColumns, metadata: TraceMetadata, classifier: Classifier, path: str, truncated: bool
) -> _Built:
    linked = link_and_classify(columns, classifier)
    if linked.row.size == 0:
        return _cpu_timeline(columns, metadata, classifier, path, truncated)
    book = GroupBook(metadata.groups)
    collectives, call_of_span = assemble(columns, linked, classifier, book)
    steps, repeated = _steps(columns, metadata.base_ns)
    base = metadata.base_ns
    row = linked.row
    launch_ns = _based(linked.launch_ns, base)
    spans = make(
        Spans,
        row.size,
        recording=0,
        lane=columns.device_lane[row],
        kind=linked.kind,
        note=linked.note,
        name=columns.device_name[row],
        host_op=np.where(linked.host_row == NOWHERE, -1, np.append(columns.host.name, -1)[linked.host_row]),
        start_ns=columns.device_start_ns[row] + base,
        end_ns=columns.device_end_ns[row] + base,
        launch_ns=launch_ns,
        correlation=columns.device_correlation[row],
        step=_step_at(steps, launch_ns),
        collective=call_of_span,
    )
    spans = _with_marked(spans, columns, base, steps)
    timeline = _timeline(
        columns, base, path, truncated, spans, _placed(collectives, base, steps), steps,
        has_device=True, last_launch_ns=linked.last_launch_ns, lost_launch_ns=linked.lost_launch_ns,
    )  # fmt: skip
    notes = _notes(repeated)
    if linked.ambiguous:
        notes.append(f"{linked.ambiguous} device spans have a launch in more than one process; left without")
    return timeline, book.groups(), int((launch_ns == NONE).sum()), notes


def _cpu_timeline(
    columns: KinetoColumns, metadata: TraceMetadata, classifier: Classifier, path: str, truncated: bool
) -> _Built:
    del classifier  # host ranges are told by their own names alone
    base = metadata.base_ns
    found = cpu_spans(columns, metadata.world_size, {group.name: group.size for group in metadata.groups})
    steps, repeated = _steps(columns, base)
    launch_ns = _based(found.launch_ns, base)
    begun_ns = np.where(launch_ns == NONE, found.start_ns + base, launch_ns)
    spans = make(
        Spans,
        found.lane.size,
        recording=0,
        lane=found.lane,
        kind=found.kind,
        name=found.name,
        start_ns=found.start_ns + base,
        end_ns=found.end_ns + base,
        launch_ns=launch_ns,
        step=_step_at(steps, begun_ns),
        collective=found.collective,
    )
    spans = _with_marked(spans, columns, base, steps)
    if spans.start_ns.size == 0:
        raise InputError(f"{path}: holds neither device work nor host operations")
    timeline = _timeline(
        columns, base, path, truncated, spans, _placed(found.collectives, base, steps), steps,
        has_device=False, last_launch_ns=NONE, lost_launch_ns=NONE,
    )  # fmt: skip
    return timeline, metadata.groups, 0, _notes(repeated)


def _with_marked(spans: Spans, columns: KinetoColumns, base: int, steps: Steps) -> Spans:
    marked = marked_spans(columns, base)
    if size(marked) == 0:
        return spans
    return concat([spans, replace(marked, step=_step_at(steps, marked.start_ns))])


def _notes(repeated: int) -> list[str]:
    if not repeated:
        return []
    return [
        f"{repeated} step marks repeat the number of an earlier step and were left out; are several runs in one file?"
    ]


def _timeline(
    columns: KinetoColumns,
    base: int,
    path: str,
    truncated: bool,
    spans: Spans,
    collectives: Collectives,
    steps: Steps,
    *,
    has_device: bool,
    last_launch_ns: int,
    lost_launch_ns: int,
) -> RankTimeline:
    marked = np.flatnonzero(columns.host.is_annotation)
    window = columns.window or _seen(columns)
    code = columns.names.code
    process, label = zip(*columns.lanes, strict=True)
    is_device = np.zeros(len(columns.lanes), np.bool_)
    is_device[columns.device_lane] = True
    return RankTimeline(
        rank=UNKNOWN_RANK,
        basis="trace",
        has_device=has_device,
        recordings=make(
            Recordings,
            1,
            source=code(path),
            start_ns=window[0] + base,
            end_ns=window[1] + base,
            last_launch_ns=_moved(last_launch_ns, base),
            lost_launch_ns=_moved(lost_launch_ns, base),
            truncated=truncated,
        ),
        spans=spans,
        collectives=collectives,
        steps=steps,
        lanes=make(
            Lanes,
            len(columns.lanes),
            kind=np.where(is_device, DEVICE, HOST),
            process=columns.names.encode(process),
            label=columns.names.encode(label),
        ),
        annotations=make(
            Annotations,
            marked.size,
            recording=0,
            lane=columns.host.lane[marked],
            name=columns.host.name[marked],
            start_ns=columns.host.start_ns[marked] + base,
            end_ns=columns.host.end_ns[marked] + base,
        ),
        names=tuple(columns.names.to_list()),
    )


def _seen(columns: KinetoColumns) -> tuple[int, int]:
    """Give the first start and last end of anything kept, where the trace has no window of its own."""
    starts = [columns.device_start_ns, columns.launch_start_ns, columns.host.start_ns]
    ends = [columns.device_end_ns, columns.launch_start_ns, columns.host.end_ns]
    return min(int(each.min()) for each in starts if each.size), max(int(each.max()) for each in ends if each.size)


def _steps(columns: KinetoColumns, base: int) -> tuple[Steps, int]:
    """Give the annotated steps in order of time; our own marks where there are any, else the profiler's.

    Also gives how many marks repeat the number of an earlier step that had ended.
    """
    names = columns.names.to_list()
    matches = {code: found for code, name in enumerate(names) if (found := STEP.match(name))}
    rows = np.flatnonzero(np.isin(columns.host.name, list(matches)))
    marks = {matches[int(columns.host.name[row])]["by"] for row in rows.tolist()}
    by = "overlapscope.step" if "overlapscope.step" in marks else "ProfilerStep"
    rows = rows[[matches[int(columns.host.name[row])]["by"] == by for row in rows.tolist()]] if rows.size else rows
    number = np.array([int(matches[int(columns.host.name[row])]["number"]) for row in rows.tolist()], np.int64)
    order = np.lexsort((number, columns.host.start_ns[rows]))
    rows, number = rows[order], number[order]
    # The same step marked on two threads is one step.
    first = np.unique(number, return_index=True)[1]
    keep = np.sort(first)
    ended = {int(number[at]): int(columns.host.end_ns[rows[at]]) for at in keep.tolist()}
    repeated = sum(
        int(columns.host.start_ns[rows[at]]) >= ended[int(number[at])]
        for at in np.setdiff1d(np.arange(number.size), keep).tolist()
    )
    steps = make(
        Steps,
        keep.size,
        recording=0,
        step=number[keep],
        start_ns=columns.host.start_ns[rows[keep]] + base,
        end_ns=columns.host.end_ns[rows[keep]] + base,
    )
    return steps, repeated


def _step_at(steps: Steps, at_ns: Ints) -> Ints:
    """Give the number of the step whose annotation [start, end) holds each time; NONE outside all."""
    if size(steps) == 0:
        return np.full(at_ns.size, NONE, np.int64)
    row = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    inside = (row >= 0) & (at_ns < steps.end_ns[np.maximum(row, 0)])
    return np.where(inside, steps.step[np.maximum(row, 0)], NONE)


def _placed(collectives: Collectives, base: int, steps: Steps) -> Collectives:
    launch_ns = _based(collectives.launch_ns, base)
    return replace(
        collectives,
        launch_ns=launch_ns,
        start_ns=collectives.start_ns + base,
        end_ns=collectives.end_ns + base,
        step=_step_at(steps, launch_ns),
    )


def _based(times: Ints, base: int) -> Ints:
    return np.where(times == NONE, NONE, times + base)


def _moved(time: int, base: int) -> int:
    return NONE if time == NONE else time + base


READER = Reader(format=FORMAT, recognises=recognises, read=read_kineto)
