"""Event traces of NCCL's profiler interface: the example plugin's (ext-profiler/example) and one of JSON lines.

Both nest events: a collective has one child for each of its channels, which carries the device's own clock at start
and end. Their difference is how long it took; host times here only tell when the library handed work on.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Final

from overlapscope.ingest.call_rows import CallRows, bandwidths, called_elements, rank_number, whole_number
from overlapscope.ingest.classify import operation
from overlapscope.timeline.run import MAX_RANKS
from overlapscope.timeline.volume import volume_bytes
from overlapscope.values import dataclass

MAX_DURATION_NS: Final = 3600 * 10**9
"""Two readings of the device's clock farther apart do not belong together."""
DTYPES: Final = {
    "ncclInt8": "int8",
    "ncclChar": "int8",
    "ncclUint8": "uint8",
    "ncclInt32": "int32",
    "ncclInt": "int32",
    "ncclUint32": "uint32",
    "ncclInt64": "int64",
    "ncclUint64": "uint64",
    "ncclFloat16": "float16",
    "ncclHalf": "float16",
    "ncclFloat32": "float32",
    "ncclFloat": "float32",
    "ncclFloat64": "float64",
    "ncclDouble": "float64",
    "ncclBfloat16": "bfloat16",
    "ncclFloat8e4m3": "float8_e4m3fn",
    "ncclFloat8e5m2": "float8_e5m2",
}
_BARE: Final = re.compile(
    rb'("(?:[^"\\]|\\.)*+")|(?<=[:,\[\s])(0x[0-9a-fA-F]+|nccl\w+|\(nil\)|-?nan|-?inf)(?=\s*[,}\]])'
)


def quoted(text: bytes) -> bytes:
    """Quote what the first versions wrote bare: addresses and names of types."""
    return _BARE.sub(lambda found: found[1] or b'"' + found[2] + b'"', text)


@dataclass(slots=True)
class Traced:
    """What the events hold."""

    calls: CallRows = field(default_factory=CallRows)
    events: int = 0
    unusable: int = 0
    unranked: int = 0
    """Collectives by copy engines, which tell neither rank nor communicator."""
    _clocks: dict[int, tuple[int, int]] = field(default_factory=dict)

    def clock(self, row: int, start: object, end: object) -> None:
        """Take the device's clock of one channel of a call."""
        begin, until = whole_number(start), whole_number(end)
        if begin and until and begin < until:
            first, last = self._clocks.get(row, (begin, until))
            self._clocks[row] = (min(first, begin), max(last, until))

    def finish(self) -> "Traced":
        """Give the calls the times that their channels' clocks tell."""
        for row, (first, last) in self._clocks.items():
            if last - first > MAX_DURATION_NS:
                continue
            self.calls.set_time(row, last - first)
            op, size, comm = (self.calls.columns[name][row] for name in ("op", "bytes", "comm"))
            names = self.calls.names.to_list()
            ranks = self.calls.communicators[names[comm]].size
            for name, value in bandwidths(names[op], size if size > 0 else None, last - first, ranks).items():
                self.calls.columns[name][row] = value
        return self

    def warnings(self) -> list[str]:
        """Give what a reader of the figures must know."""
        untimed = len(self.calls) - sum(value == value for value in self.calls.columns["time_ns"])  # noqa: PLR0124
        found = []
        if untimed:
            found.append(
                f"{untimed} of {len(self.calls)} calls carry no clock of the device (NCCL_PROFILE_EVENT_MASK without "
                "kernel channels, or a plugin older than its clocks): how long they took is not known"
            )
        if self.unranked:
            found.append(f"{self.unranked} collectives by copy engines tell no rank and no communicator; left out")
        return found


def read_example_plugin(objects: Iterable[Mapping[str, Any]]) -> Traced:
    """Read the example plugin's asynchronous Chrome events; children stand between a collective's begin and end."""
    found = Traced()
    row: int | None = None
    for event in objects:
        found.events += 1
        category, phase, args = event.get("cat"), event.get("ph"), event.get("args")
        if category in ("COLL", "P2P"):
            row = _call(found, event.get("name"), args) if phase == "b" else None
            found.unusable += phase == "b" and row is None
        elif category == "CE_COLL" and phase == "b":
            found.unranked += 1
        elif category == "GPU" and event.get("name") == "KernelCh" and row is not None and isinstance(args, dict):
            found.clock(row, args.get("StartGpuClk"), args.get("StopGpuClk"))
    return found.finish()


def _call(found: Traced, spelled: object, args: object) -> int | None:
    if not isinstance(args, dict) or not isinstance(spelled, str):
        return None
    member, comm = rank_number(args.get("Rank")), _hash(args.get("CommHash"))
    if member is None or comm is None:
        return None
    return _add(
        found,
        comm,
        member,
        spelled,
        count=args.get("Count"),
        dtype=args.get("Datatype"),
        seq=args.get("SeqNum"),
        algorithm=args.get("Algorithm"),
        protocol=args.get("Protocol"),
        channels=args.get("nChannels"),  # nMaxChannels, of older versions, is a limit and no number of channels
    )


def _add(
    found: Traced,
    comm: str,
    member: int,
    spelled: str,
    *,
    count: object,
    dtype: object,
    seq: object,
    algorithm: object,
    protocol: object,
    channels: object,
) -> int:
    op = operation("AlltoAll" if spelled == "All2All" else spelled) or spelled
    kind = DTYPES.get(dtype) if isinstance(dtype, str) else None
    elements = called_elements(op, whole_number(count), found.calls.communicator(comm).size)
    return found.calls.add(
        comm,
        member,
        op=op,
        dtype=kind,
        seq=whole_number(seq),
        elements=elements,
        bytes=volume_bytes(elements, kind),
        algorithm=algorithm if isinstance(algorithm, str) and algorithm else None,
        protocol=protocol if isinstance(protocol, str) and protocol else None,
        channels=whole_number(channels, 1024) or None,
    )


def _hash(value: object) -> str | None:
    """Spell a communicator's hash as NCCL's log does; it may need all 64 bits."""
    if isinstance(value, str) and value:
        return value
    return f"0x{value:x}" if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else None


def read_event_lines(objects: Iterable[Mapping[str, Any]]) -> Traced:
    """Read JSON lines of events and states, which name their parents by address; an address is used again later."""
    found = Traced()
    rows: dict[object, int] = {}
    stopped: dict[object, object] = {}
    for event in objects:
        found.events += 1
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
            rows[address] = _add(
                found,
                comm,
                member,
                spelled,
                count=details.get("count"),
                dtype=details.get("dtype"),
                seq=details.get("seq"),
                algorithm=details.get("algo"),
                protocol=details.get("proto"),
                channels=details.get("channels"),
            )
        elif kind == "ncclProfileKernelCh" and isinstance(address, str):
            row, end = rows.get(event.get("parentObj")), stopped.pop(address, None)
            if row is not None:
                found.clock(row, details.get("pTimer"), end)
    return found.finish()
