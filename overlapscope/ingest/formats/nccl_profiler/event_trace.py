"""Read event traces of NCCL's profiler interface, as JSON lines.

Events are nested: a collective has one child for each channel, which carries the device's own clock at start and end.
Their difference is the duration. Host times only show when NCCL handed work to the device.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.ingest.formats.nccl_profiler.call_rows import (
    CallRows,
    bandwidths,
    called_elements,
    rank_number,
    whole_number,
)
from overlapscope.timeline.operations import volume_bytes
from overlapscope.timeline.run import MAX_RANKS

MAX_DURATION_NS: Final = 3600 * 10**9
"""Two readings of the device's clock farther apart than this do not belong together."""
DTYPES: Final = {
    "ncclInt8": "int8", "ncclChar": "int8", "ncclUint8": "uint8", "ncclInt32": "int32", "ncclInt": "int32",
    "ncclUint32": "uint32", "ncclInt64": "int64", "ncclUint64": "uint64", "ncclFloat16": "float16",
    "ncclHalf": "float16", "ncclFloat32": "float32", "ncclFloat": "float32", "ncclFloat64": "float64",
    "ncclDouble": "float64", "ncclBfloat16": "bfloat16", "ncclFloat8e4m3": "float8_e4m3fn",
    "ncclFloat8e5m2": "float8_e5m2",
}  # fmt: skip


class TracedCalls(msgspec.Struct):
    """Calls of the event lines, and counts of the lines."""

    calls: CallRows = msgspec.field(default_factory=CallRows)
    records: int = 0
    unusable: int = 0
    _clocks: dict[int, tuple[int, int]] = {}

    def clock(self, row: int, start: object, end: object) -> None:
        """Add the start and end of one channel of a call, by the device's clock."""
        begin, until = whole_number(start), whole_number(end)
        if begin and until and begin < until:
            first, last = self._clocks.get(row, (begin, until))
            self._clocks[row] = (min(first, begin), max(last, until))

    def finish(self) -> "TracedCalls":
        """Set the duration of each call from its channels' clocks, and return self."""
        for row, (first, last) in self._clocks.items():
            if last - first > MAX_DURATION_NS:
                continue
            op, size, comm = (self.calls.columns[name][row] for name in ("op", "bytes", "comm"))
            names = self.calls.names.to_list()
            ranks = self.calls.communicators[names[comm]].size
            measured = bandwidths(names[op], size if size > 0 else None, last - first, ranks)
            for name, value in {"time_ns": last - first, **measured}.items():
                self.calls.columns[name][row] = value
        return self

    def warnings(self) -> list[str]:
        """Return limitations of the figures that a user must know."""
        untimed = len(self.calls) - sum(value == value for value in self.calls.columns["time_ns"])  # noqa: PLR0124
        if not untimed:
            return []
        return [
            f"{untimed} of {len(self.calls)} calls have no device time (NCCL_PROFILE_EVENT_MASK without "
            "kernel channels, or a plugin version without device clocks): their duration is unknown"
        ]


def _hash(value: object) -> str | None:
    """Write a communicator's hash as NCCL's log does; it may need all 64 bits."""
    if isinstance(value, str) and value:
        return value
    return f"0x{value:x}" if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def read_event_lines(objects: Iterable[Mapping[str, Any]]) -> TracedCalls:
    """Read JSON lines of events and states, which refer to their parents by address; addresses are reused later."""
    found = TracedCalls()
    rows: dict[object, int] = {}
    stopped: dict[object, object] = {}
    for event in objects:
        found.records += 1
        details, kind, address = event.get("details"), event.get("type"), event.get("eventAddr")
        details = details if isinstance(details, dict) else {}
        comm, member = _hash(event.get("commId")), rank_number(event.get("rank"))
        if event.get("recordType") == "state":
            if event.get("name") == "KernelChStop" and isinstance(address, str):
                stopped[address] = event.get("pTimer")
        elif comm is None or member is None:
            found.unusable += event.get("recordType") == "event"
        elif kind == "ProfilerLifecycle":
            known = found.calls.communicator(comm)
            known.size = whole_number(details.get("nranks"), MAX_RANKS) or known.size
            started = event.get("start")
            process = whole_number(started.get("pid")) if isinstance(started, dict) else None
            known.members.setdefault(member, {}).update({"process": process})
        elif kind in ("ncclProfileColl", "ncclProfileP2p") and isinstance(address, str):
            spelled = details.get("func")
            if not isinstance(spelled, str):
                found.unusable += 1
                continue
            op = canonical_operation("AlltoAll" if spelled == "All2All" else spelled) or spelled
            dtype = DTYPES.get(str(details.get("dtype")))
            elements = called_elements(op, whole_number(details.get("count")), found.calls.communicator(comm).size)
            rows[address] = found.calls.add(
                comm,
                member,
                op=op,
                dtype=dtype,
                seq=whole_number(details.get("seq")),
                elements=elements,
                bytes=volume_bytes(elements, dtype),
                algorithm=_name(details.get("algo")),
                protocol=_name(details.get("proto")),
                channels=whole_number(details.get("channels"), 1024) or None,
            )
        elif kind == "ncclProfileKernelCh" and isinstance(address, str):
            row, end = rows.get(event.get("parentObj")), stopped.pop(address, None)
            if row is not None:
                found.clock(row, details.get("pTimer"), end)
    return found.finish()
