"""Decode the events of an Ascend `trace_view.json` to columns, piece by piece, and its flow arrows from host to device.

Writer: torch_npu `profiler/analysis/prof_common_func/_trace_event_manager.py` for the host's part, msprof
`analysis/csrc/application/timeline` for the device's. Time stamps are text with nanosecond decimals or, in newer
versions, numbers; durations are numbers with fractions of a nanosecond. Both are parsed from their text. The meaning of
a process is stated in metadata events, which may follow its work. A flow arrow goes from a call, or from an operation,
to the task it enqueued.
"""

from typing import Any

import msgspec
import numpy as np

from overlapscope.ingest.build.collective_args import parse_count
from overlapscope.ingest.build.host_ranges import NOWHERE
from overlapscope.ingest.build.trace_columns import ColumnBuilder, Ranges
from overlapscope.ingest.parsing.json_values import decode_args
from overlapscope.ingest.parsing.timestamps import text_to_ns
from overlapscope.timeline.columns import NONE, Ints, integers
from overlapscope.timeline.names import Codes, NameTable

UNREAD_CATEGORIES = frozenset({"python_function"})
"""Host stacks: most of a file, and not used by this project."""
LAUNCH_FLOW, OPERATION_FLOW = "HostToDevice", "torch_to_npu"
"""Flows to a device task: from the call that enqueued it, and from the framework's operation."""


class AscendEvent(msgspec.Struct, gc=False):
    """One event; numbers and arguments stay undecoded until they are used."""

    ph: Any = ""
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    id: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


_NO_ARGS = msgspec.Raw(b"{}")


class _Named(msgspec.Struct, gc=False):
    name: Any = None


class _TaskArgs(msgspec.Struct, gc=False):
    """Arguments of a device task or of a collective."""

    task_type: Any = msgspec.field(default=None, name="Task Type")
    connection: Any = msgspec.field(default=None, name="connection_id")
    data_type: Any = None
    algorithm: Any = msgspec.field(default=None, name="alg_type")
    elements: Any = msgspec.field(default=None, name="count")


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """Arrows from host to device as columns: both ends of each, joined by their id."""

    from_lane: Ints
    from_ns: Ints
    to_lane: Ints
    """NONE where the arrow has no end in the file."""
    to_ns: Ints


class AscendColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The kept events of one file as columns. Times are nanoseconds since the epoch."""

    names: NameTable
    lanes: list[tuple[str, str]]
    """(process, thread) of each lane code, as written."""
    processes: dict[str, str]
    """Name of each process."""
    threads: dict[tuple[str, str], str]
    ranges: Ranges
    """Every complete event; `is_annotation` is unused."""
    category: Codes
    """-1 for events of the device and of CANN, which have none."""
    task_type: Codes
    connection: Ints
    data_type: Codes
    algorithm: Codes
    elements: Ints
    launches: Flows
    operations: Flows
    dropped: int
    """Events whose times are not numbers."""


class AscendCollector:
    """Collects events and returns them as columns."""

    def __init__(self) -> None:
        self._names = NameTable()
        self._lanes: dict[tuple[str, str], int] = {}
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}
        self._table = ColumnBuilder()
        self._flows: dict[str, dict[str, list[tuple[str, int, int]]]] = {
            kind: {"s": [], "f": []} for kind in (LAUNCH_FLOW, OPERATION_FLOW)
        }
        self._dropped = 0

    def add(self, events: list[AscendEvent]) -> None:
        """Add the events of one piece."""
        timed = []
        flows = []
        for event in events:
            if event.ph == "X":
                if not (isinstance(event.cat, str) and event.cat in UNREAD_CATEGORIES):
                    timed.append(event)
            elif event.ph in ("s", "f"):
                flows.append(event)
            elif event.ph == "M":
                self._add_name(event)
        self._add_timed(timed)
        self._add_flows(flows)

    def _add_name(self, event: AscendEvent) -> None:
        if event.name not in ("process_name", "thread_name"):
            return
        name = decode_args([event.args], _Named)[0].name
        if not isinstance(name, str):
            return
        process, thread = str(event.pid), str(event.tid)
        if event.name == "process_name":
            self._processes[process] = name
        else:
            self._threads[process, thread] = name.strip()

    def _add_timed(self, events: list[AscendEvent]) -> None:
        start, good = text_to_ns([_token(event.ts) for event in events])
        duration, measured = text_to_ns([_token(event.dur) for event in events])
        good &= measured
        if not good.all():
            self._dropped += int((~good).sum())
            events = [events[row] for row in np.flatnonzero(good).tolist()]
            start, duration = start[good], duration[good]
        if not events:
            return
        # The host's operations carry whole call stacks; only device events have no category.
        args = decode_args([event.args if event.cat is None else _NO_ARGS for event in events], _TaskArgs)
        self._table.add(
            lane=np.array([self._lane(event) for event in events], np.int64),
            name=self._names.encode([event.name for event in events]),
            start=start,
            end=start + np.maximum(duration, 0),
            category=self._codes([event.cat for event in events]),
            task_type=self._codes([each.task_type for each in args]),
            connection=_counts([each.connection for each in args]),
            data_type=self._codes([each.data_type for each in args]),
            algorithm=self._codes([each.algorithm for each in args]),
            elements=_counts([each.elements for each in args]),
        )

    def _add_flows(self, events: list[AscendEvent]) -> None:
        chosen: dict[str, list[AscendEvent]] = {LAUNCH_FLOW: [], OPERATION_FLOW: []}
        for event in events:
            if event.cat == LAUNCH_FLOW:
                chosen[LAUNCH_FLOW].append(event)
            elif event.name == OPERATION_FLOW:
                chosen[OPERATION_FLOW].append(event)
        for kind, some in chosen.items():
            times, good = text_to_ns([_token(event.ts) for event in some])
            self._dropped += int((~good).sum())
            for event, time, known in zip(some, times.tolist(), good.tolist(), strict=True):
                if known:
                    self._flows[kind][event.ph].append((str(event.id), self._lane(event), time))

    def _lane(self, event: AscendEvent) -> int:
        return self._lanes.setdefault((str(event.pid), str(event.tid)), len(self._lanes))

    def _codes(self, values: list[Any]) -> Codes:
        known = sorted({value for value in values if isinstance(value, str)})
        codes = dict(zip(known, self._names.encode(known).tolist(), strict=True))
        return np.array([codes[value] if isinstance(value, str) else -1 for value in values], np.int32)

    def columns(self) -> AscendColumns:
        """Return the collected columns; the collector cannot be used again."""
        table = self._table
        return AscendColumns(
            names=self._names,
            ranges=Ranges(
                lane=table.joined("lane"),
                name=table.joined("name", np.int32),
                start_ns=table.joined("start"),
                end_ns=table.joined("end"),
                is_annotation=np.empty(0, np.bool_),
            ),
            connection=table.joined("connection"),
            elements=table.joined("elements"),
            **{name: table.joined(name, np.int32) for name in ("category", "task_type", "data_type", "algorithm")},
            launches=joined(self._flows[LAUNCH_FLOW]),
            operations=joined(self._flows[OPERATION_FLOW]),
            lanes=list(self._lanes),
            processes=self._processes,
            threads=self._threads,
            dropped=self._dropped,
        )


def _token(raw: msgspec.Raw) -> str:
    r"""Return the digits of a time stamp, written as a number or as text (in tables a tab follows them)."""
    return str(raw, "utf-8", "replace").strip('"').removesuffix("\\t")


def _counts(values: list[Any]) -> Ints:
    return integers([parse_count(value) for value in values])


def joined(ends: dict[str, list[tuple[str, int, int]]]) -> Flows:
    """Join the ends of the arrows by id.

    One call may enqueue several tasks; of an id that begins twice the first begin is used.
    """
    begin: dict[str, tuple[int, int]] = {}
    for key, lane, time in ends["s"]:
        if key not in begin or time < begin[key][1]:
            begin[key] = (lane, time)
    rows = [(*begin[key], lane, time) for key, lane, time in ends["f"] if key in begin]
    ended = {key for key, _, _ in ends["f"]}
    rows += [(*start, NONE, NONE) for key, start in begin.items() if key not in ended]
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Flows(from_lane=columns[:, 0], from_ns=columns[:, 1], to_lane=columns[:, 2], to_ns=columns[:, 3])


def arrow_starts(flows: Flows, ranges: Ranges, rows: Ints) -> tuple[Ints, Ints]:
    """Return time and lane of the start of the arrow that ends where each event begins; NONE without one."""
    ended = np.flatnonzero(flows.to_lane != NONE)
    none = np.full(rows.size, NONE, np.int64)
    if ended.size == 0 or rows.size == 0:
        return none, none
    ends = np.stack([flows.to_lane[ended], flows.to_ns[ended]], axis=1)
    begins = np.stack([ranges.lane[rows], ranges.start_ns[rows]], axis=1)
    _, key = np.unique(np.concatenate([ends, begins]), axis=0, return_inverse=True)
    key = key.reshape(-1)
    arrow = np.full(int(key.max()) + 1, NOWHERE, np.int64)
    arrow[key[: ended.size][::-1]] = ended[::-1]  # the first of several
    found = arrow[key[ended.size :]]
    return np.append(flows.from_ns, NONE)[found], np.append(flows.from_lane, NONE)[found]


def launch_bounds(launches: Flows, launch_ns: Ints) -> tuple[int, int]:
    """Return the time of the last launch with a span, and of the first later one whose task is not in the file."""
    linked = launch_ns[launch_ns != NONE]
    if linked.size == 0:
        return NONE, NONE
    last = int(linked.max())
    lost = launches.from_ns[(launches.to_lane == NONE) & (launches.from_ns > last)]
    return last, int(lost.min()) if lost.size else NONE
