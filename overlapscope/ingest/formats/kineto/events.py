"""Decode Kineto events to columns, piece by piece and typed; no dictionary is made for an event."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import CollectiveArgs
from overlapscope.ingest.build.profiler_names import (
    ADDRESS,
    COST,
    DEVICE,
    EVENT_SORTS,
    FRAME,
    HOST,
    LAUNCH,
    NUM_SORTS,
    OLD_ANNOTATION,
    SYNC,
    UNREAD_CATEGORIES,
    WINDOW,
    WINDOW_MARKS,
)
from overlapscope.ingest.build.profiler_names import DEVICE_NOTE as NOTE
from overlapscope.ingest.build.trace_columns import ColumnBuilder, Ranges, TraceColumns
from overlapscope.ingest.formats.kineto.decoding import (
    INSTANT,
    UNUSED,
    CompleteEvent,
    Decoded,
    ExactTimes,
    InstantEvent,
    decoded,
    decoded_any,
    move_modules,
)
from overlapscope.ingest.parsing.json_values import (
    DECODE_ERRORS,
    correlation_ids,
    decode_args,
    decode_shapes,
    elements_of,
    grid_blocks,
    hash_of,
)
from overlapscope.ingest.parsing.timestamps import NeedsText, microseconds_to_ns, text_to_ns
from overlapscope.timeline.columns import (
    ANNOTATION,
    CONTEXT_SYNC,
    EVENT_SYNC,
    FUNCTION,
    NONE,
    OVERHEAD,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    Flags,
    HostSpans,
    Ints,
    Small,
    Syncs,
    concat,
    make,
)
from overlapscope.timeline.names import Codes, NameTable

if TYPE_CHECKING:
    from overlapscope.ingest.parsing.json_repair import RepairedEvents

_BY_NAME: Final = 2
_DETAIL: Final = {
    **{category: detail for category, (_, detail) in EVENT_SORTS.items()},
    "Operator": _BY_NAME,
}


_SYNC_KINDS: Final = {
    "Stream Wait Event": STREAM_WAIT_EVENT,
    "Event Sync": EVENT_SYNC,
    "Stream Sync": STREAM_SYNC,
    "Context Sync": CONTEXT_SYNC,
}
"""Kineto's names (libkineto/src/CuptiCbidRegistry, syncTypeString); it has no other with a known meaning."""


class _Linked(msgspec.Struct, gc=False):
    correlation: Any = None


class _DeviceArgs(msgspec.Struct, gc=False):
    correlation: Any = None
    grid: Any = None
    collective_name: Any = msgspec.field(default=None, name="Collective name")


class _SyncArgs(msgspec.Struct, gc=False):
    kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    device: Any = None
    stream: Any = None
    correlation: Any = None
    awaited_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    awaited_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class _ShapeArgs(msgspec.Struct, gc=False):
    """The text of the shapes of an operation's inputs."""

    input_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")


class _TensorArgs(msgspec.Struct, gc=False):
    """The text of what describes an operation's tensors."""

    input_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")


class EventCollector:
    """Collects events from pieces of text and returns them as columns.

    `speaks_of_comm(name)` selects the host ranges whose arguments are kept. Of those named `tensors_of` only shapes and
    types are kept, one value for all that have the same. `stacks` keeps all functions of Python stacks, not only the
    long ones. `keeps_shapes` keeps how many elements the inputs of each host range have, and a hash of their shapes.
    """

    keeps_shapes: bool = False

    def __init__(
        self, speaks_of_comm: Callable[[str], bool], *, tensors_of: str | None = None, stacks: bool = False
    ) -> None:
        self._speaks, self._tensors_of, self._stacks = speaks_of_comm, tensors_of, stacks
        self._tensors: dict[tuple[bytes, bytes], CollectiveArgs] = {}
        self._inputs_of: dict[bytes, tuple[int, int]] = {b"": (NONE, NONE)}
        self._has_tensors = np.empty(0, np.bool_)
        self._speaking = np.empty(0, np.bool_)
        self._names = NameTable()
        self._frames: dict[str, int] = {}
        self._lanes: dict[tuple[Any, Any], int] = {}
        self._lane_codes: dict[tuple[str, str], int] = {}
        self._tables = {sort: ColumnBuilder() for sort in range(NUM_SORTS)}
        self._device_collectives: dict[int, CollectiveArgs] = {}
        self._host_args: dict[int, CollectiveArgs] = {}
        self._rows = [0] * NUM_SORTS
        self._marks: list[int] = []
        self._unknown: Counter[str] = Counter()
        self.events = self.repaired = self.dropped = 0

    def take(self, array: bytes) -> bool:
        """Decode and add an array of whole events; return False, and add nothing, when it does not decode."""
        found = decoded(array)
        if found is None:
            return False
        self._add(array, found)
        return True

    def take_broken(self, piece: bytes) -> None:
        """Add the events of one piece that can be repaired."""
        array, _ = self._mended(piece, last=False)
        self._add(array, decoded_any(array))

    def add_last(self, text: bytes, *, is_array: bool) -> tuple[bytes, bool]:
        """Decode the end of the trace; return the text behind the event array, and whether the array was closed."""
        array, tail = _split_whole(text, is_array=is_array)
        found = decoded(array) if array else None
        if found is not None:
            self._add(array, found)
            return tail, True
        array, mended = self._mended(text, last=True)
        self._add(array, decoded_any(array))
        return mended.tail, mended.closed

    def _mended(self, text: bytes, *, last: bool) -> "tuple[bytes, RepairedEvents]":
        from overlapscope.ingest.parsing.json_repair import repair_events  # noqa: PLC0415 - few traces are damaged

        mended = repair_events(text, last=last)
        self.repaired += mended.repaired
        self.dropped += mended.dropped
        return b"[" + mended.events + b"]", mended

    def _add(self, array: bytes, found: Decoded) -> None:
        self.events += found.num_events
        buckets: tuple[list[CompleteEvent], ...] = tuple([] for _ in range(NUM_SORTS))
        unused: deque[Any] = deque(maxlen=0)
        takers: dict[object, Callable[[Any], None]] = dict.fromkeys((UNUSED, None, *UNREAD_CATEGORIES), unused.append)
        takers |= {category: buckets[sort].append for category, (sort, _) in EVENT_SORTS.items()}
        takers[INSTANT] = self._add_mark
        for event in found.events:
            try:
                take = takers[event.cat]
            except (KeyError, TypeError):  # a category that is not known; one that is a list or an object
                if str(event.cat) not in UNREAD_CATEGORIES:
                    self._unknown[str(event.cat)] += 1
            else:
                take(event)
        move_modules(buckets)
        if not self._stacks:
            buckets[FRAME][:] = [each for each in buckets[FRAME] if _is_long(each.dur)]
        exact = ExactTimes(array)
        for sort, chosen in enumerate(buckets):
            if chosen:
                self._add_bucket(sort, chosen, exact)

    def _add_mark(self, event: InstantEvent) -> None:
        if not isinstance(event.name, str) or not event.name.startswith(WINDOW_MARKS):
            return
        try:
            self._marks += microseconds_to_ns([event.ts]).tolist()
        except NeedsText:
            ns, good = text_to_ns([str(event.ts)])
            self._marks += ns[good].tolist()

    def _add_bucket(self, sort: int, events: list[CompleteEvent], exact: ExactTimes) -> None:
        try:
            start = microseconds_to_ns([event.ts for event in events])
            duration = microseconds_to_ns([event.dur for event in events])
        except NeedsText:
            start, duration, good = exact.times(sort)
            if not good.all():
                self.dropped += int((~good).sum())
                events = [events[row] for row in np.flatnonzero(good).tolist()]
                start, duration = start[good], duration[good]
        if not events:
            return
        self._tables[sort].add(start=start, end=start + np.maximum(duration, 0))
        if sort == SYNC:
            self._add_syncs(events)
            return
        named = [event.name for event in events]
        names = self._encode_frames(named) if sort == FRAME else self._names.encode(named)
        self._tables[sort].add(lane=self._encode_lanes(events), name=names)
        first = self._rows[sort]
        self._rows[sort] += len(events)
        if sort == DEVICE:
            self._add_device_args(first, events)
        elif sort == LAUNCH:
            linked = decode_args([event.args for event in events], _Linked)
            self._tables[sort].add(correlation=correlation_ids([each.correlation for each in linked]))
        elif sort == HOST:
            self._tables[sort].add(is_annotation=_are_annotations(events))
            self._add_host_args(first, events, names)
            if self.keeps_shapes:
                elements, shapes = self._inputs(events).T
                self._tables[HOST].add(elements=elements, shapes=shapes)

    def _add_device_args(self, first: int, events: list[CompleteEvent]) -> None:
        args = decode_args([event.args for event in events], _DeviceArgs)
        self._tables[DEVICE].add(
            sort=_details(events),
            correlation=correlation_ids([each.correlation for each in args]),
            blocks=grid_blocks([each.grid for each in args]),
        )
        rows = [row for row, each in enumerate(args) if each.collective_name is not None]
        if rows:
            parsed = decode_args([events[row].args for row in rows], CollectiveArgs)
            self._device_collectives.update(
                (first + row, each) for row, each in zip(rows, parsed, strict=True) if each.collective_name is not None
            )

    def _add_host_args(self, first: int, events: list[CompleteEvent], names: Codes) -> None:
        if self._speaking.size < len(self._names):
            new = self._names.to_list()[self._speaking.size :]
            self._speaking = np.append(self._speaking, np.array([self._speaks(name) for name in new], np.bool_))
            self._has_tensors = np.append(self._has_tensors, np.array([name == self._tensors_of for name in new]))
        chosen = np.flatnonzero(self._speaking[names]).tolist()
        if chosen:
            args = decode_args([events[row].args for row in chosen], CollectiveArgs)
            self._host_args.update(zip((first + row for row in chosen), args, strict=True))
        shaped = np.flatnonzero(self._has_tensors[names]).tolist()
        if shaped:
            raws = [events[row].args for row in shaped]
            shared = map(self._shared, decode_args(raws, _TensorArgs), raws)
            self._host_args.update(zip((first + row for row in shaped), shared, strict=True))

    def _inputs(self, events: list[CompleteEvent]) -> Ints:
        """Return the number of elements of all inputs of each event, and a hash of their shapes, a row an event; NONE
        where no shapes were recorded."""
        known, found = self._inputs_of, []
        for each in decode_args([event.args for event in events], _ShapeArgs):
            text = bytes(each.input_dims)
            if text not in known:
                known[text] = elements_of(decode_shapes(text)), hash_of(text)
            found.append(known[text])
        return np.array(found, np.int64).reshape(-1, 2)

    def _shared(self, text: _TensorArgs, raw: msgspec.Raw) -> CollectiveArgs:
        """Return shapes and types of these arguments: the same value for the same texts."""
        key = bytes(text.input_dims), bytes(text.input_type)
        args = self._tensors.get(key)
        if args is None:
            (found,) = decode_args([raw], CollectiveArgs)
            args = self._tensors[key] = CollectiveArgs(input_dims=found.input_dims, input_type=found.input_type)
        return args

    def _add_syncs(self, events: list[CompleteEvent]) -> None:
        args = decode_args([event.args for event in events], _SyncArgs)
        device = [event.pid if each.device is None else each.device for event, each in zip(events, args, strict=True)]
        kind = np.array([_SYNC_KINDS.get(str(each.kind), NONE) for each in args], np.int64)
        stream = self._streams(device, [each.stream for each in args])
        awaited = self._streams(device, [each.awaited_stream for each in args])
        by_host = kind != STREAM_WAIT_EVENT
        if (kind == NONE).any():
            self._unknown["cuda_sync"] += int((kind == NONE).sum())
        self._tables[SYNC].add(
            kind=kind,
            lane=np.where(by_host, NONE, stream),
            awaited_lane=np.where(kind == STREAM_SYNC, stream, np.where(kind == CONTEXT_SYNC, NONE, awaited)),
            correlation=correlation_ids([each.correlation for each in args]),
            awaited_correlation=_positive(correlation_ids([each.awaited_correlation for each in args])),
        )

    def _streams(self, devices: Sequence[Any], streams: Sequence[Any]) -> Ints:
        """Return the lanes of streams; NONE for what is no stream, as -1."""
        lanes = self._lane_codes
        pairs = zip(devices, streams, strict=True)
        return np.array(
            [
                lanes.setdefault((_spelled(device), _spelled(stream)), len(lanes))
                if isinstance(stream, int) and 0 <= stream < _NO_STREAM
                else NONE
                for device, stream in pairs
            ],
            np.int64,
        )

    def _encode_frames(self, names: Sequence[object]) -> Codes:
        """Return the codes of functions: one for all objects of which a built-in function was called."""
        codes = self._frames
        try:
            return np.fromiter(map(codes.__getitem__, names), np.int32, len(names))  # type: ignore[arg-type]
        except (KeyError, TypeError):  # new ones, or values that are not strings
            spelled = list(map(str, names))
        for name in sorted(set(spelled) - codes.keys()):
            codes[name] = self._names.code(ADDRESS.sub("", name))
        return np.fromiter(map(codes.__getitem__, spelled), np.int32, len(spelled))

    def _encode_lanes(self, events: list[CompleteEvent]) -> Ints:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        process, thread = processes[0], threads[0]
        if processes.count(process) == len(events) and threads.count(thread) == len(events):  # as most pieces are
            return np.full(len(events), self._encode_threads([process], [thread])[0])
        return self._encode_threads(processes, threads)

    def _encode_threads(self, processes: Sequence[Any], threads: Sequence[Any]) -> Ints:
        lanes = self._lanes
        try:
            return np.fromiter(map(lanes.__getitem__, zip(processes, threads, strict=True)), np.int64, len(threads))
        except (KeyError, TypeError):
            keys = list(zip(processes, threads, strict=True))
        try:
            new = set(keys) - lanes.keys()
        except TypeError:  # a process or thread that is a list or an object
            keys = [(str(pid), str(tid)) for pid, tid in keys]
            new = set(keys) - lanes.keys()
        for pid, tid in sorted(new, key=str):
            # torch 1.8 writes a thread as "1890023232" in one event and as 1890023232 in another.
            spelled = (_spelled(pid), _spelled(tid))
            lanes[pid, tid] = self._lane_codes.setdefault(spelled, len(self._lane_codes))
        return np.fromiter(map(lanes.__getitem__, keys), np.int64, len(keys))

    def columns(self) -> TraceColumns:
        """Return the collected columns; the collector cannot be used again."""
        device, launch = self._tables[DEVICE], self._tables[LAUNCH]
        return TraceColumns(
            lanes=list(self._lane_codes),
            names=self._names,
            device_lane=device.joined("lane"),
            device_sort=device.joined("sort", np.int8),
            device_name=device.joined("name", np.int32),
            device_start_ns=device.joined("start"),
            device_end_ns=device.joined("end"),
            device_correlation=device.joined("correlation"),
            device_blocks=device.joined("blocks"),
            device_collectives=self._device_collectives,
            launch_lane=launch.joined("lane"),
            launch_name=launch.joined("name", np.int32),
            launch_start_ns=launch.joined("start"),
            launch_end_ns=launch.joined("end"),
            launch_correlation=launch.joined("correlation"),
            host_elements=self._tables[HOST].joined("elements"),
            host_shapes=self._tables[HOST].joined("shapes"),
            host=self._ranges(HOST),
            host_args=self._host_args,
            device_notes=self._ranges(NOTE),
            host_rest=self._host_rest(),
            syncs=self._syncs(),
            window_times=self._window_times(),
            events=self.events,
            repaired=self.repaired,
            dropped=self.dropped,
            unknown=self._unknown,
        )

    def _ranges(self, sort: int) -> Ranges:
        table = self._tables[sort]
        return Ranges(
            lane=table.joined("lane"),
            name=table.joined("name", np.int32),
            start_ns=table.joined("start"),
            end_ns=table.joined("end"),
            is_annotation=table.joined("is_annotation", np.bool_),
        )

    def _host_rest(self) -> HostSpans:
        parts = []
        for sort, kind in ((COST, OVERHEAD), (FRAME, FUNCTION)):
            found = self._ranges(sort)
            columns = {name: getattr(found, name) for name in ("lane", "name", "start_ns", "end_ns")}
            parts.append(make(HostSpans, found.lane.size, recording=0, kind=kind, **columns))
        return concat(parts)

    def _syncs(self) -> Syncs:
        table = self._tables[SYNC]
        kind, start, end = table.joined("kind"), table.joined("start"), table.joined("end")
        known = kind != NONE
        columns = {name: table.joined(name)[known] for name in _SYNC_COLUMNS}
        return make(
            Syncs, int(known.sum()), recording=0, kind=kind[known], start_ns=start[known], end_ns=end[known], **columns
        )

    def _window_times(self) -> tuple[int, ...]:
        """Return the times that bound the profiler's recording: its own range, and its marks at both ends."""
        ranges = self._ranges(WINDOW)
        return (*ranges.start_ns.tolist(), *ranges.end_ns.tolist(), *self._marks)


_SYNC_COLUMNS: Final = ("lane", "awaited_lane", "correlation", "awaited_correlation")
_NO_STREAM: Final = (1 << 32) - 1
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE."""


LONG_FRAME_US: Final = 3_000
"""Functions of Python stacks that last this long are always kept: they say where a host paused, and are few. A choice:
as long as pauses that are named."""


def _is_long(duration_us: object) -> bool:
    return isinstance(duration_us, int | float) and duration_us >= LONG_FRAME_US


def _positive(numbers: Ints) -> Ints:
    return np.where(numbers < 0, NONE, numbers)


def _spelled(number: object) -> str:
    """Return one spelling for equal numbers: 1, 1.0 and true."""
    return str(
        int(number) if isinstance(number, bool) or (isinstance(number, float) and number.is_integer()) else number
    )


_HOUR_NS = 3600 * 1_000_000_000


def without_impossible(columns: TraceColumns) -> tuple[TraceColumns, int]:
    """Remove device events at time 0 where all others are hours later; return the columns and how many were removed.

    Kineto clamps negative times to 0 (kineto#109), so it is unknown when such a kernel ran.
    """
    start = columns.device_start_ns
    real = start[start > 0]
    if real.size in (0, start.size) or real.min() < _HOUR_NS:
        return columns, 0
    keep = start > 0
    rows = np.flatnonzero(keep)
    moved = {int(old): new for new, old in enumerate(rows.tolist())}
    chosen = {
        name: getattr(columns, name)[keep]
        for name in columns.__struct_fields__
        if name.startswith("device_") and name not in ("device_collectives", "device_notes")
    }
    collectives = {moved[row]: args for row, args in columns.device_collectives.items() if row in moved}
    lost = int((~keep).sum())
    return replace(columns, device_collectives=collectives, dropped=columns.dropped + lost, **chosen), lost


class _Array(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815 - the format's own name


def _split_whole(text: bytes, *, is_array: bool) -> tuple[bytes, bytes]:
    """Split the trace's last text into its event array and what follows; two empty texts when it is not valid JSON."""
    if is_array:
        return b"[" + text, b""
    try:
        array = bytes(msgspec.json.decode(b'{"traceEvents":[' + text, type=_Array).traceEvents)
    except DECODE_ERRORS:
        return b"", b""
    return array, text[len(array) - 1 :]


def _details(events: Sequence[CompleteEvent]) -> Small:
    return np.fromiter(map(_DETAIL.__getitem__, [event.cat for event in events]), np.int8, len(events))


def _are_annotations(events: Sequence[CompleteEvent]) -> Flags:
    details = _details(events)
    marked = np.asarray(details == ANNOTATION, np.bool_)
    for row in np.flatnonzero(details == _BY_NAME).tolist():
        marked[row] = OLD_ANNOTATION.match(str(events[row].name)) is not None
    return marked
