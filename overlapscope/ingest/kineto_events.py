"""Kineto events to columns: typed decoding of one piece after another, never a dictionary an event."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.collective_args import CollectiveArgs
from overlapscope.ingest.event_text import BROKEN, decode_args, is_utf8
from overlapscope.ingest.kineto_dialect import (
    DEVICE,
    HOST,
    LAUNCH,
    MODULE_CALL,
    OLD_ANNOTATION,
    SORT_OF,
    STACK,
    UNREAD,
    WINDOW,
    WINDOW_MARKS,
)
from overlapscope.ingest.kineto_dialect import DEVICE_NOTE as NOTE
from overlapscope.ingest.ranges import Growing, Ranges
from overlapscope.ingest.repair import Mended, mend
from overlapscope.ingest.timestamps import NeedsText, microseconds_to_ns, text_to_ns
from overlapscope.ingest.trace_columns import TraceColumns
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.names import Codes, NameTable


class _Event(msgspec.Struct, gc=False):
    """One event; anything but `args` may be of any type, so that an odd one never fails its neighbours."""

    ph: Any = ""
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _ExactEvent(msgspec.Struct, gc=False):
    ph: Any = ""
    cat: Any = None
    name: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class _Linked(msgspec.Struct, gc=False):
    correlation: Any = None


class DeviceArgs(CollectiveArgs, gc=False):
    """Arguments of a device event: its link to the launch, and its collective if it is one."""

    correlation: Any = None
    grid: Any = None


_events = msgspec.json.Decoder(list[_Event])
_exact = msgspec.json.Decoder(list[_ExactEvent])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventCollector:
    """Takes pieces of event text, gives columns.

    `speaks_of_comm(name)` picks the host ranges whose arguments to keep.
    """

    def __init__(self, speaks_of_comm: Callable[[str], bool]) -> None:
        self._speaks = speaks_of_comm
        self._speaking: dict[int, bool] = {}
        self._names = NameTable()
        self._lanes: dict[tuple[Any, Any], int] = {}
        self._lane_codes: dict[tuple[str, str], int] = {}
        self._tables = {sort: Growing() for sort in range(5)}
        self._device_collectives: dict[int, DeviceArgs] = {}
        self._host_args: dict[int, CollectiveArgs] = {}
        self._rows = [0] * 5
        self._marks: list[int] = []
        self._unknown: Counter[str] = Counter()
        self.events = self.repaired = self.dropped = 0

    def take(self, piece: bytes) -> bool:
        """Take one piece of whole events; False, and nothing taken, when it does not decode."""
        array = b"[" + piece + b"]"
        events = _decode_events(array)
        if events is None:
            return False
        self._add(array, events)
        return True

    def take_broken(self, piece: bytes) -> None:
        """Take what can be mended of one piece."""
        array, _ = self._mended(piece, last=False)
        self._add(array, _events.decode(array))

    def add_last(self, text: bytes, *, is_array: bool) -> tuple[bytes, bool]:
        """Decode the end of the trace; give the text behind the event array, and whether the array was closed."""
        array, tail = _split_whole(text, is_array=is_array)
        events = _decode_events(array) if array else None
        if events is not None:
            self._add(array, events)
            return tail, True
        array, mended = self._mended(text, last=True)
        self._add(array, _events.decode(array))
        return mended.tail, mended.closed

    def _mended(self, text: bytes, *, last: bool) -> tuple[bytes, Mended]:
        mended = mend(text, last=last)
        self.repaired += mended.repaired
        self.dropped += mended.dropped
        return b"[" + mended.events + b"]", mended

    def _add(self, array: bytes, events: list[_Event]) -> None:
        self.events += len(events)
        buckets: tuple[list[_Event], ...] = ([], [], [], [], [])
        bucket_of = {category: buckets[sort] for category, (sort, _) in SORT_OF.items()}.get
        for event in events:
            if event.ph == "X":
                try:
                    bucket = bucket_of(event.cat)
                except TypeError:  # a category that is a list or an object
                    bucket = None
                if bucket is not None:
                    bucket.append(event)
                elif event.cat == STACK:
                    if str(event.name).startswith(MODULE_CALL):
                        buckets[HOST].append(event)
                elif event.cat is not None and str(event.cat) not in UNREAD:
                    self._unknown[str(event.cat)] += 1
            elif event.ph == "i" and isinstance(event.name, str) and event.name.startswith(WINDOW_MARKS):
                self._add_mark(event)
        exact = _Exact(array)
        for sort, chosen in enumerate(buckets):
            if chosen:
                self._add_bucket(sort, chosen, exact)

    def _add_mark(self, event: _Event) -> None:
        try:
            self._marks += microseconds_to_ns([event.ts]).tolist()
        except NeedsText:
            ns, good = text_to_ns([str(event.ts)])
            self._marks += ns[good].tolist()

    def _add_bucket(self, sort: int, events: list[_Event], exact: "_Exact") -> None:
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
        names = self._names.encode([event.name for event in events])
        self._tables[sort].add(
            lane=self._encode_lanes(events), name=names, start=start, end=start + np.maximum(duration, 0)
        )
        first = self._rows[sort]
        self._rows[sort] += len(events)
        if sort == DEVICE:
            self._add_device_args(first, events)
        elif sort == LAUNCH:
            linked = decode_args([event.args for event in events], _Linked)
            self._tables[sort].add(correlation=_correlations(linked))
        elif sort == HOST:
            marked = [
                event.cat == STACK
                or SORT_OF[event.cat][1]
                or (event.cat == "Operator" and OLD_ANNOTATION.match(str(event.name)) is not None)
                for event in events
            ]
            self._tables[sort].add(is_annotation=np.array(marked, np.bool_))
            self._add_host_args(first, events, names)

    def _add_device_args(self, first: int, events: list[_Event]) -> None:
        args = decode_args([event.args for event in events], DeviceArgs)
        sorts = np.array([SORT_OF[event.cat][1] for event in events], np.int8)
        self._tables[DEVICE].add(sort=sorts, correlation=_correlations(args), blocks=_blocks(args))
        for row, each in enumerate(args, first):
            if each.collective_name is not None:
                self._device_collectives[row] = each

    def _add_host_args(self, first: int, events: list[_Event], names: Codes) -> None:
        spelled: list[str] | None = None
        for code in np.unique(names).tolist():
            if code not in self._speaking:
                spelled = spelled if spelled is not None else self._names.to_list()
                self._speaking[code] = self._speaks(spelled[code])
        codes = [code for code, speaks in self._speaking.items() if speaks]
        chosen = np.flatnonzero(np.isin(names, codes)).tolist() if codes else []
        if chosen:
            args = decode_args([events[row].args for row in chosen], CollectiveArgs)
            self._host_args.update(zip((first + row for row in chosen), args, strict=True))

    def _encode_lanes(self, events: list[_Event]) -> Ints:
        lanes = self._lanes
        keys = [(event.pid, event.tid) for event in events]
        try:
            new = set(keys) - lanes.keys()
        except TypeError:  # a process or thread that is a list or an object
            keys = [(str(pid), str(tid)) for pid, tid in keys]
            new = set(keys) - lanes.keys()
        for pid, tid in sorted(new, key=str):
            # torch 1.8 writes a thread as "1890023232" in one event and as 1890023232 in another.
            spelled = (str(pid), str(tid))
            lanes[pid, tid] = self._lane_codes.setdefault(spelled, len(self._lane_codes))
        return np.fromiter(map(lanes.__getitem__, keys), np.int64, len(keys))

    def columns(self) -> TraceColumns:
        """Give what was collected; the collector is used up."""
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
            host=self._ranges(HOST),
            host_args=self._host_args,
            device_notes=self._ranges(NOTE),
            window=self._window(),
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

    def _window(self) -> tuple[int, int] | None:
        """Give when the profiler was on: its own range, stretched by the marks at its two ends."""
        ranges = self._ranges(WINDOW)
        times = [*ranges.start_ns.tolist(), *ranges.end_ns.tolist(), *self._marks]
        return (min(times), max(times)) if len(times) > 1 else None


GRID_SIDES, MOST_BLOCKS = 3, 1 << 50
"""What a grid holds at most; more is damage."""
_HOUR_NS = 3600 * 1_000_000_000


def without_impossible(columns: TraceColumns) -> tuple[TraceColumns, int]:
    """Leave out device events at time 0 where all others are hours later.

    Kineto clamps negative times to 0 (kineto#109): when such a kernel ran is not known. Gives how many, too.
    """
    start = columns.device_start_ns
    real = start[start > 0]
    if real.size in (0, start.size) or real.min() < _HOUR_NS:
        return columns, 0
    keep = start > 0
    rows = np.flatnonzero(keep)
    moved = {int(old): new for new, old in enumerate(rows.tolist())}
    chosen = {
        each.name: getattr(columns, each.name)[keep]
        for each in fields(columns)
        if each.name.startswith("device_") and each.name not in ("device_collectives", "device_notes")
    }
    collectives = {moved[row]: args for row, args in columns.device_collectives.items() if row in moved}
    lost = int((~keep).sum())
    return replace(columns, device_collectives=collectives, dropped=columns.dropped + lost, **chosen), lost


class _Array(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815 - the format's own name


def _decode_events(array: bytes) -> list[_Event] | None:
    """Decode an array of events; None when it is broken in any way."""
    if not is_utf8(array):
        return None
    try:
        return _events.decode(array)
    except BROKEN:
        return None


def _split_whole(text: bytes, *, is_array: bool) -> tuple[bytes, bytes]:
    """Split the trace's last text into its event array and what follows; nothing when it is not whole JSON."""
    if is_array:
        return b"[" + text, b""
    try:
        array = bytes(msgspec.json.decode(b'{"traceEvents":[' + text, type=_Array).traceEvents)
    except BROKEN:
        return b"", b""
    return array, text[len(array) - 1 :]


class _Exact:
    """The times of one piece, read from their text; decoded when first asked for."""

    def __init__(self, array: bytes) -> None:
        self._array = array
        self._events: list[list[_ExactEvent]] | None = None

    def times(self, sort: int) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Give starts and durations of one sort of event; the mask is False where one is no time."""
        if self._events is None:
            self._events = self._sorted()
        events = self._events[sort]
        start, start_good = text_to_ns([str(event.ts, "utf-8", "replace") for event in events])
        duration, duration_good = text_to_ns([str(event.dur, "utf-8", "replace") for event in events])
        return start, duration, start_good & duration_good

    def _sorted(self) -> list[list[_ExactEvent]]:
        events: list[list[_ExactEvent]] = [[], [], [], [], []]
        for event in _exact.decode(self._array):
            if event.ph != "X" or not isinstance(event.cat, str):
                continue
            if event.cat in SORT_OF:
                events[SORT_OF[event.cat][0]].append(event)
            elif event.cat == STACK and str(event.name).startswith(MODULE_CALL):
                events[HOST].append(event)
        return events


def _blocks(args: Sequence[DeviceArgs]) -> Ints:
    """Give the thread blocks of each kernel's grid; NONE for what has none, or an impossible one."""
    grids = [each.grid for each in args]
    rows = [row for row, grid in enumerate(grids) if grid is not None]
    blocks = np.full(len(grids), NONE)
    try:
        sides = np.array([grids[row] for row in rows])
    except (ValueError, OverflowError):
        sides = np.empty(0)
    if sides.ndim == 2 and sides.shape[1] == GRID_SIDES and sides.dtype.kind == "i":
        possible = (sides > 0).all(axis=1) & (sides.astype(np.float64).prod(axis=1) <= MOST_BLOCKS)
        blocks[rows] = np.where(possible, sides.prod(axis=1), NONE)
    else:
        blocks[rows] = [_product(grids[row]) for row in rows]
    return blocks


def _product(grid: Any) -> int:
    if not isinstance(grid, list) or len(grid) != GRID_SIDES:
        return NONE
    if not all(isinstance(side, int) and 0 < side <= MOST_BLOCKS for side in grid):
        return NONE
    blocks: int = grid[0] * grid[1] * grid[2]
    return blocks if blocks <= MOST_BLOCKS else NONE


def _correlations(args: Sequence[DeviceArgs] | Sequence[_Linked]) -> Ints:
    values = [each.correlation for each in args]
    try:
        numbers = np.array(values)
    except (ValueError, OverflowError):
        numbers = np.array([None])
    if numbers.dtype.kind not in "iu" or numbers.size != len(values):
        numbers = np.array([value if isinstance(value, int) and abs(value) < 2**62 else 0 for value in values])
    # 0 is what the profiler writes for "none".
    return np.where(numbers == 0, NONE, numbers.astype(np.int64))
