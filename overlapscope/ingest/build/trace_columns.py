"""Columns of one recorded trace from any profiler: device work, the calls that enqueued it, host ranges.

They grow piece by piece while a trace is read and are joined at the end.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import CollectiveArgs
from overlapscope.timeline.columns import NONE, HostSpans, Ints, Syncs, concat, make, take
from overlapscope.timeline.names import Codes, NameTable

KERNEL, MEMCPY, MEMSET = range(3)
"""Kinds of device events."""
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """Timed host or device ranges, one row each: lane (code of the thread or stream), name code, start and end."""

    lane: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    is_annotation: Any


_EMPTY: Final = np.empty(0, np.int64)
NO_RANGES: Final = Ranges(
    lane=_EMPTY, name=_EMPTY.astype(np.int32), start_ns=_EMPTY, end_ns=_EMPTY, is_annotation=_EMPTY.astype(np.bool_)
)


def matching(pattern: re.Pattern[str], names: Sequence[str]) -> Mask:
    """Return a mask of the names whose beginning matches; indexed by a column of codes, a mask of its rows."""
    return np.array([pattern.match(name) is not None for name in names], np.bool_)


_COLUMNS: Final = Ranges.__struct_fields__


class ApiCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective as described by a communication library's own range around the call; None where not stated."""

    op: str | None = None
    group: str | None = None
    bytes: int | None = None
    """Size of the whole buffer, as docs/definitions.md counts it."""
    peer: int | None = None
    """Of a send or receive, the other end's rank in the group."""


class TraceColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of one trace, or of one rank in it. Times are nanoseconds relative to the trace's own base."""

    lanes: list[tuple[str, str]]
    """(process, thread) of each lane code."""
    names: NameTable
    device_lane: Ints
    device_sort: Any
    """KERNEL, MEMCPY or MEMSET."""
    device_name: Codes
    device_start_ns: Ints
    device_end_ns: Ints
    device_correlation: Ints
    device_blocks: Ints
    """Number of thread blocks of each kernel's grid; NONE if not recorded."""
    device_collectives: Mapping[int, CollectiveArgs] = {}
    """Collective arguments by row of the device columns, where present."""
    launch_lane: Ints
    launch_name: Codes
    launch_start_ns: Ints
    launch_end_ns: Ints
    launch_correlation: Ints
    host: Ranges
    host_elements: Ints = _EMPTY
    """Number of elements of all inputs of each host range; NONE where it states none. Empty where nobody asked."""
    host_shapes: Ints = _EMPTY
    """A hash of the shapes of these inputs, likewise."""
    host_args: Mapping[int, CollectiveArgs] = {}
    """Arguments of host ranges whose name refers to communication, by row."""
    api_calls: Mapping[int, ApiCall] = {}
    """Collectives described by the communication library's own host ranges, by row."""
    device_notes: Ranges = NO_RANGES
    """Host annotations that the profiler projected onto the device."""
    host_rest: HostSpans = make(HostSpans, 0)
    """Host spans that neither launch work nor are work of the job: the profiler's, or of the operating system."""
    syncs: Syncs = make(Syncs, 0)
    window_times: tuple[int, ...] = ()
    """Times at which the profiler was on: none, or two or more."""
    events: int
    repaired: int = 0
    dropped: int = 0
    unknown: Counter[str] = msgspec.field(default_factory=Counter)
    """Timed events of categories that are not read."""

    @property
    def window(self) -> tuple[int, int] | None:
        """Return (start, end) of profiling in ns, None if the trace does not state it."""
        return (min(self.window_times), max(self.window_times)) if len(self.window_times) > 1 else None


_OF_HOST: Final = ("host_elements", "host_shapes")
_ARRAYS: Final = tuple(
    name
    for name in TraceColumns.__struct_fields__
    if name.startswith(("device_", "launch_", *_OF_HOST)) and name not in ("device_collectives", "device_notes")
)


def concatenate_columns(parts: Sequence[TraceColumns]) -> TraceColumns:
    """Return the parts of one trace concatenated in order; names and lanes are numbered in order of appearance."""
    if len(parts) == 1:
        return parts[0]
    names = NameTable()
    lanes: dict[tuple[str, str], int] = {}
    moved = [_renumbered(each, names, lanes) for each in parts]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in moved]) for name in _ARRAYS}
    ranges: dict[str, Any] = {
        name: Ranges(
            **{column: np.concatenate([getattr(getattr(each, name), column) for each in moved]) for column in _COLUMNS}
        )
        for name in ("host", "device_notes")
    }
    rest = concat([each.host_rest for each in moved])
    return TraceColumns(
        lanes=list(lanes),
        names=names,
        device_collectives=_by_row([(each.device_collectives, each.device_name.size) for each in moved]),
        host_args=_by_row([(each.host_args, each.host.name.size) for each in moved]),
        api_calls=_by_row([(each.api_calls, each.host.name.size) for each in moved]),
        host_rest=take(rest, np.argsort(rest.kind, kind="stable")),  # as in the columns of one part
        syncs=concat([each.syncs for each in moved]),
        window_times=tuple(time for each in moved for time in each.window_times),
        **{name: sum(getattr(each, name) for each in moved) for name in ("events", "repaired", "dropped")},
        unknown=sum((each.unknown for each in moved), Counter()),
        **arrays,
        **ranges,
    )


def _renumbered(part: TraceColumns, names: NameTable, lanes: dict[tuple[str, str], int]) -> TraceColumns:
    """Return a part with codes of the common tables of names and lanes, to which its own are added."""
    name = np.array([names.code(each) for each in part.names.to_list()], np.int32)
    lane = np.array([lanes.setdefault(each, len(lanes)) for each in part.lanes], np.int64)
    moved = with_lanes(part, part.lanes, lane)
    ranges: dict[str, Any] = {
        table: replace(old, name=name[old.name])
        for table, old in (("host", moved.host), ("device_notes", moved.device_notes))
    }
    return replace(
        moved,
        device_name=name[part.device_name],
        launch_name=name[part.launch_name],
        host_rest=replace(moved.host_rest, name=name[part.host_rest.name]),
        **ranges,
    )


def with_lanes(columns: TraceColumns, lanes: list[tuple[str, str]], lane: Ints) -> TraceColumns:
    """Return the columns with these `lanes`; `lane[old]` is the new code of each lane that they use."""
    no_lane = np.append(lane, NONE)
    syncs = columns.syncs
    ranges: dict[str, Any] = {
        table: replace(old, lane=lane[old.lane])
        for table, old in (("host", columns.host), ("device_notes", columns.device_notes))
    }
    return replace(
        columns,
        lanes=lanes,
        device_lane=lane[columns.device_lane],
        launch_lane=lane[columns.launch_lane],
        host_rest=replace(columns.host_rest, lane=lane[columns.host_rest.lane]),
        syncs=replace(
            syncs,
            lane=no_lane[np.where(syncs.lane == NONE, -1, syncs.lane)],
            awaited_lane=no_lane[np.where(syncs.awaited_lane == NONE, -1, syncs.awaited_lane)],
        ),
        **ranges,
    )


def _by_row(parts: Sequence[tuple[Mapping[int, T], int]]) -> dict[int, T]:
    """Return the values by row of the concatenated parts; each part is (values by its own row, its number of rows)."""
    values: dict[int, T] = {}
    first = 0
    for part, rows in parts:
        values.update((first + row, each) for row, each in part.items())
        first += rows
    return values


class ColumnBuilder(msgspec.Struct):
    """Named columns that grow piece by piece."""

    parts: dict[str, list[Any]] = {}

    def add(self, **columns: Any) -> None:
        """Append one piece to each column."""
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def joined(self, name: str, dtype: type = np.int64) -> Any:
        """Remove a column and return it as one array."""
        parts = self.parts.pop(name, None)
        return np.concatenate(parts) if parts else np.empty(0, dtype)
