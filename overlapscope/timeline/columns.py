"""The tables of a timeline: a few flat sets of equally long numpy columns.

Times are int64 nanoseconds on the rank's own clock, since the Unix epoch where the source states it. A missing
integer is `NONE`, a missing name is code -1; neither is ever 0. Names are codes into the rank's `names`.
A column's annotation defines how it is stored, so the run directory needs no second list of columns.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import fields

from overlapscope.timeline.names import NameTable

NONE: Final = int(np.iinfo(np.int64).min)
"""A missing value in an int64 column."""

COMPUTE, COMM, COPY = range(3)
SPAN_KINDS: Final = ("compute", "comm", "copy")

PLAIN, FUSED, UNCLASSIFIED = range(3)
SPAN_NOTES: Final = ("plain", "fused", "unclassified")

DEVICE, HOST = range(2)
LANE_KINDS: Final = ("device", "host")

UNKNOWN, SCHEDULED, STARTED, COMPLETED = range(4)
CALL_STATES: Final = ("unknown", "scheduled", "started", "completed")

OPERATION, ANNOTATION, RUNTIME, PYTHON, OVERHEAD, SYSTEM, FUNCTION = range(7)
HOST_SPAN_KINDS: Final = ("operation", "annotation", "runtime", "python", "overhead", "system", "function")

MATMUL, ATTENTION, MEMORY, FRAMEWORK_COPY, OPTIMIZER_UPDATE, COLLECTIVE, WAIT, HOST_SYNC = range(8)
WORK_KINDS: Final = ("matmul", "attention", "memory", "copy", "optimizer", "collective", "wait", "host_sync")

UNKNOWN_PREFETCH, NOT_PREFETCHED, IS_PREFETCHED = range(3)
PREFETCHED: Final = ("unknown", "no", "yes")

STREAM_WAIT_EVENT, EVENT_SYNC, STREAM_SYNC, CONTEXT_SYNC = range(4)
SYNC_KINDS: Final = ("stream_wait_event", "event", "stream", "context")

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Small = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its fields are its columns, all equally long."""


class Spans(Columns, frozen=True, kw_only=True):
    """What ran on the streams: device kernels and copies, or the host work that takes their place in a CPU run."""

    recording: Ints
    """Row of the recording window in `Recordings`."""
    lane: Ints
    """Row in `Lanes`."""
    kind: Annotated[Small, SPAN_KINDS]
    note: Annotated[Small, SPAN_NOTES]
    """`fused`: computes and communicates; `unclassified`: no rule matches its name, and it has its own lane."""
    name: Codes
    host_op: Codes
    """The innermost host operation or annotation around the launch."""
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    """Host time at which the work was enqueued; NONE if the recording contains no launch for it."""
    correlation: Ints
    blocks: Ints
    """Thread blocks of a kernel's grid: the size of its work."""
    step: Ints
    """Number of the step that launched it."""
    collective: Ints
    """Row in `Collectives`; NONE for all but communication."""


class Collectives(Columns, frozen=True, kw_only=True):
    """One row for each call of a collective on this rank."""

    recording: Ints
    step: Ints
    group: Codes
    seq: Ints
    op: Codes
    executed_op: Codes
    """What the library ran where that differs by name, e.g. gloo's all_reduce for a reduce_scatter."""
    dtype: Codes
    elements: Ints
    bytes: Ints
    group_size: Ints
    algorithm: Codes
    protocol: Codes
    channels: Ints
    launch_ns: Ints
    start_ns: Ints
    end_ns: Ints
    dimension: Codes
    phase: Codes
    module: Codes
    state: Annotated[Small, CALL_STATES]
    """Progress of the call when a flight recorder was dumped; `unknown` for other sources."""
    record_function_id: Ints
    """Number of the host operation that made the call; execution traces contain it, too."""
    peer: Ints
    """Rank of the world that a send goes to or a recv comes from."""
    received_bytes: Ints
    """Bytes that this rank received in an all-to-all; `bytes` is what it sent."""
    waited_ns: Ints
    """How long the call waited for other members before it moved data, by tasks of its own that its source recorded: at
    least so long; NONE where it recorded none."""


class Steps(Columns, frozen=True, kw_only=True):
    """Host annotations of training steps, sorted by time."""

    recording: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    cut: Flags
    """True if the step is known not to be recorded completely."""
    input_elements: Ints
    """Sum of the sizes of all inputs of the operations that began in the step, in elements, nested ones included: where
    no device computes and shapes were recorded; else NONE."""
    input_shapes: Ints
    """A hash of the names of these operations and of the shapes of their inputs, in whatever order: steps that do the
    same work have the same one. NONE as above."""


class Lanes(Columns, frozen=True, kw_only=True):
    """Device streams and host threads."""

    kind: Annotated[Small, LANE_KINDS]
    process: Codes
    """Device index of a stream, process id of a thread, as the source writes it."""
    label: Codes
    """Stream or thread as the source writes it."""


class Recordings(Columns, frozen=True, kw_only=True):
    """Recording windows of the rank: when its profiler was on."""

    source: Codes
    start_ns: Ints
    end_ns: Ints
    last_launch_ns: Ints
    """Latest launch that has a device span; NONE without launches."""
    lost_launch_ns: Ints
    """Earliest launch after that whose device span is missing (the recording's end is cut), or, without a device, of a
    collective whose end is missing; else NONE."""
    truncated: Flags
    """True if the file ends in the middle of the recording."""
    host_events: Flags
    """True if the source records what its host threads did; if not, empty `HostSpans` and `Syncs` say nothing."""


class Annotations(Columns, frozen=True, kw_only=True):
    """Named host ranges set by the framework or the user (not every operation)."""

    recording: Ints
    lane: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints


class HostSpans(Columns, frozen=True, kw_only=True):
    """What ran on the host threads, sorted by (lane, start, longest first): a span comes before those nested in it."""

    recording: Ints
    lane: Ints
    """Row in `Lanes`: a thread of one process."""
    kind: Annotated[Small, HOST_SPAN_KINDS]
    """`runtime`: a call of the runtime's or the driver's interface (CUDA, HIP, CANN) that launches, copies, waits or
    allocates, as its name says; `python`: a call of a module, or a pause of the interpreter; `overhead`: work of the
    profiler itself; `system`: a call of the operating system; `function`: any other function of a Python stack, which
    is read on demand."""
    name: Codes
    start_ns: Ints
    end_ns: Ints
    correlation: Ints
    """That of the device spans which a runtime call enqueued; NONE if it states none."""


class Syncs(Columns, frozen=True, kw_only=True):
    """Recorded synchronisations of streams and the host, sorted by start within each recording window."""

    recording: Ints
    kind: Annotated[Small, SYNC_KINDS]
    """`stream_wait_event`: a stream waits for an event; the others: the host waits for an event, a stream, or all."""
    correlation: Ints
    """That of the runtime call that waits."""
    lane: Ints
    """Row in `Lanes` of the stream that waits; NONE if the host waits."""
    awaited_lane: Ints
    """Row in `Lanes` of the stream whose work is awaited; NONE for all streams, or if it is unknown."""
    awaited_correlation: Ints
    """That of the call that recorded the awaited event; NONE if there is none, or it is unknown."""
    start_ns: Ints
    end_ns: Ints


class Gradients(Columns, frozen=True, kw_only=True):
    """When each parameter's gradient was accumulated in a step, in that order."""

    step: Ints
    order: Ints
    name: Codes
    elements: Ints
    dtype: Codes
    ready_ns: Ints


class Telemetry(Columns, frozen=True, kw_only=True):
    """Readings of the machine during training, one per row; names end in their unit (`gpu0.power_w`, `gc_pause_ns`)."""

    time_ns: Ints
    step: Ints
    name: Codes
    value: Floats


STEP_TIME: Final = "step_time_ns"
"""Reading of each step, recorded or not: how long it took, at its begin."""


class Operations(Columns, frozen=True, kw_only=True):
    """What a dry run's step does, in the order of the program: operations, calls of collectives, and waits.

    Views and allocations, which do no work, have no row. Rows of one stream run one after the other; a collective runs
    beside its stream, on that of its group, until a row `wait`.
    """

    order: Ints
    """Row of this table, which `awaited` and `Schedule` refer to."""
    work: Annotated[Small, WORK_KINDS]
    """`copy`: a framework's own copies into and out of what it communicates; `optimizer`: what an optimizer's step does
    but for matrix products; `wait`: the stream waits; `host_sync`: the host waits for a value of the device."""
    name: Codes
    """As torch writes it: `aten.mm.default`."""
    stream: Codes
    """`compute`, or the stream that a framework or the user made."""
    phase: Codes
    module: Codes
    dtype: Codes
    flops: Ints
    """Floating-point operations; of causal attention half of the full product's. 0 for what only moves memory."""
    read_bytes: Ints
    written_bytes: Ints
    fused_bytes: Ints
    """Bytes read and written where each run of `memory` and `optimizer` rows between two others were one kernel."""
    live_bytes: Ints
    """Memory in use after the row."""
    collective: Ints
    """Row in `Collectives`, for `collective`."""
    awaited: Ints
    """Order of the last row that `wait` waits for: all rows of that stream until it."""
    source: Codes
    """Line of the user's code: `train.py:34`; in backward that of the operation whose gradient it is."""
    priced_start_ns: Ints
    """Start from the step's start, as a price says: an estimate, never measured; NONE where it is not priced."""
    priced_end_ns: Ints


class Schedule(Columns, frozen=True, kw_only=True):
    """When each collective of a dry run can begin and must have ended, one row for each row of `Collectives`."""

    launch_order: Ints
    """Its own row in `Operations`."""
    ready_order: Ints
    """Last row of the compute stream that it waits for before it begins; NONE if it waits for none of the step."""
    needed_order: Ints
    """First row after the compute stream's wait for its result; NONE if nothing in the step waits for it."""
    prefetched: Annotated[Small, PREFETCHED]
    """Whether the compute stream has work between `ready_order` and `needed_order`."""
    parameters: Ints
    """Elements of the parameters that FSDP gathers, or whose gradients it reduces, without padding."""
    source: Codes
    """Line of the user's code, as in `Operations`."""
    priced_start_ns: Ints
    """As in `Operations`: when its rank would begin it, with the copies before it."""
    priced_end_ns: Ints


T = TypeVar("T", bound=Columns)
DTYPES: Final = {"int64": np.int64, "float64": np.float64, "name": np.int32, "enum": np.int8, "bool": np.bool_}
MISSING: Final = {"int64": NONE, "float64": np.nan, "name": -1, "enum": 0, "bool": False}
_KIND_OF_TYPE: Final[dict[Any, str]] = {Ints: "int64", Floats: "float64", Codes: "name", Flags: "bool"}


def column_kinds(table: type[Columns] | Columns) -> Mapping[str, str]:
    """Return each column's kind: `int64`, `float64`, `name`, `enum` or `bool`."""
    key: Any = table if isinstance(table, type) else type(table)
    return _kinds(key)


def table_fields(struct: type[msgspec.Struct]) -> dict[str, type[Columns]]:
    """Return the fields of a struct that are tables, with their classes."""
    found = {each.name: each.type for each in fields(struct)}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Columns)}


@cache
def _kinds(table: Any) -> dict[str, str]:
    return {each.name: _KIND_OF_TYPE.get(each.type, "enum") for each in fields(table)}


def enum_values(table: type[Columns], column: str) -> tuple[str, ...]:
    """Return the spelled values of an enum column, in the order of its codes."""
    key: Any = table
    return _enums(key)[column]


@cache
def _enums(table: Any) -> dict[str, tuple[str, ...]]:
    return {each.name: tuple(get_args(each.type)[1]) for each in fields(table) if each.type not in _KIND_OF_TYPE}


def size(table: Columns) -> int:
    """Return the number of rows."""
    return len(getattr(table, table.__struct_fields__[0]))


def make(table: type[T], rows: int, **columns: npt.ArrayLike) -> T:
    """Return a table of `rows` rows; a column that is not given is missing in all rows.

    Columns are cast to their declared type; a scalar fills the whole column. Raises ValueError for an unknown column or
    a wrong length.
    """
    if not rows and not columns:
        key: Any = table
        empty: T = _empty(key)
        return empty
    values: dict[str, Any] = {}
    for name, kind in column_kinds(table).items():
        given: npt.NDArray[Any] = np.asarray(columns.pop(name, MISSING[kind]), DTYPES[kind])
        values[name] = np.full(rows, given, DTYPES[kind]) if given.ndim == 0 else given
        if len(values[name]) != rows:
            raise ValueError(f"{table.__name__}.{name} has {len(values[name])} rows instead of {rows}")
    if columns:
        raise ValueError(f"{table.__name__} has no column {', '.join(columns)}")
    return table(**values)


@cache
def _empty(table: Any) -> Any:
    """Return the table without rows; cached, because most ranks have several empty tables."""
    return table(**{name: np.empty(0, DTYPES[kind]) for name, kind in column_kinds(table).items()})


def take(table: T, rows: npt.NDArray[Any]) -> T:
    """Return the rows chosen by an index or a boolean mask, in that order."""
    if rows.dtype == np.bool_:
        rows = np.flatnonzero(rows)  # once for all columns
    return _with_columns(table, {name: getattr(table, name)[rows] for name in column_kinds(table)})


def concat(tables: Sequence[T]) -> T:
    """Concatenate one or more tables of one type that share their name codes."""
    names = column_kinds(tables[0])
    return _with_columns(tables[0], {name: np.concatenate([getattr(t, name) for t in tables]) for name in names})


def _with_columns(table: T, changed: Mapping[str, Any]) -> T:
    """Return a plain table with changed columns; the given one may read its columns when they are accessed."""
    kind: type[T] = next(each for each in type(table).__mro__ if each.__base__ is Columns)
    kept = {name: getattr(table, name) for name in column_kinds(table) if name not in changed}
    return kind(**kept, **changed)


def or_missing(value: int | None) -> int:
    """Return the value as a column stores it: NONE for a missing one."""
    return NONE if value is None else value


def or_none(value: int) -> int | None:
    """Return the value that a column stores; None for a missing one."""
    return None if value == NONE else value


def integers(values: Sequence[int | None]) -> Ints:
    """Return a column of integers, NONE where one is missing."""
    try:
        return np.array(values, np.int64)
    except TypeError:
        return np.array([NONE if value is None else value for value in values], np.int64)


def shift(column: Ints, offset: int) -> Ints:
    """Add `offset` to a column of row numbers or of times, leaving missing values missing."""
    return np.where(column == NONE, NONE, column + offset)


def move_rows(table: T, *, recording: int, lane: int, call: int) -> T:
    """Return the table shifted by so many rows in each of the tables that its rows refer to."""
    rows = {"recording": recording, "lane": lane, "awaited_lane": lane, "collective": call}
    moved = {name: shift(getattr(table, name), by) for name, by in rows.items() if name in column_kinds(table)}
    return _with_columns(table, moved)


def place_rows(table: T, *, recording: Ints, lane: Ints, call: int) -> T:
    """Return the table with its references to recordings and lanes looked up in these columns, to calls shifted."""
    changed = {"collective": shift(table.collective, call)} if isinstance(table, Spans) else {}
    for name, places in {"recording": recording, "lane": lane, "awaited_lane": lane}.items():
        if name in column_kinds(table):
            column = getattr(table, name)
            changed[name] = np.append(places, NONE)[np.where(column == NONE, places.size, column)]
    return _with_columns(table, changed)


def recode(table: T, old: Sequence[str], names: NameTable) -> T:
    """Translate the table's name codes from the list `old` to the table `names`."""
    codes = np.append(names.encode(old), np.int32(-1))  # index -1 is the last: missing stays missing
    changed = {name: codes[getattr(table, name)] for name, kind in column_kinds(table).items() if kind == "name"}
    return _with_columns(table, changed)
