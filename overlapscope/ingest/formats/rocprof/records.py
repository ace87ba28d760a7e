"""Decode the records of one process in a rocprofv3 JSON file; a malformed record is left out, its neighbours are kept.

Written from the serialisation of ROCprofiler-SDK (cxx/serialization/save.hpp, lib/output/generateJSON.cpp).
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar

import msgspec

from overlapscope.timeline.columns import NONE

MAX_TIME_NS: Final = 1 << 61
"""73 years; a larger time is damage."""
_BROKEN = (msgspec.DecodeError, RecursionError)


Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits into an int64 column."""
Time = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_NS)]


class Handle(msgspec.Struct, gc=False):
    """An opaque number that identifies an agent, a queue or a stream."""

    handle: Number = NONE


class Correlation(msgspec.Struct, gc=False):
    """Number that links device work to the call that enqueued it."""

    internal: Number = NONE


class DispatchInfo(msgspec.Struct, gc=False):
    """Which kernel ran, on which agent and queue."""

    agent_id: Handle
    kernel_id: Number
    queue_id: Handle = msgspec.field(default_factory=Handle)


class _Record(msgspec.Struct, gc=False, kw_only=True):
    start_timestamp: Time
    end_timestamp: Time
    thread_id: Number = NONE
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)


class KernelRecord(_Record, gc=False, kw_only=True):
    """Execution of a kernel."""

    dispatch_info: DispatchInfo
    stream_id: Handle = msgspec.field(default_factory=Handle)


class CopyRecord(_Record, gc=False, kw_only=True):
    """A memory copy between agents."""

    src_agent_id: Handle
    dst_agent_id: Handle
    stream_id: Handle = msgspec.field(default_factory=Handle)


class ApiCallRecord(_Record, gc=False, kw_only=True):
    """A call of an API, or a marker."""

    kind: Number
    operation: Number


class Agent(msgspec.Struct, gc=False):
    """A processor of the machine: CPU or GPU."""

    id: Handle
    type: Number
    logical_node_type_id: Number = NONE
    product_name: str = ""
    name: str = ""


class KernelSymbol(msgspec.Struct, gc=False):
    """Names of a kernel."""

    kernel_id: Number
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""
    truncated_kernel_name: str = ""


class RecordKind(msgspec.Struct, gc=False):
    """A kind of record and the names of its operations."""

    kind: str = ""
    operations: list[str] = []


class MarkerText(msgspec.Struct, gc=False):
    """Text of a marker, by its correlation."""

    key: Number
    value: str


class _Strings(msgspec.Struct):
    buffer_records: msgspec.Raw = msgspec.Raw(b"[]")
    marker_api: msgspec.Raw = msgspec.Raw(b"[]")


class _Process(msgspec.Struct):
    metadata: Any = None
    agents: msgspec.Raw = msgspec.Raw(b"[]")
    kernel_symbols: msgspec.Raw = msgspec.Raw(b"[]")
    strings: msgspec.Raw = msgspec.Raw(b"{}")
    buffer_records: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct):
    tool: msgspec.Raw = msgspec.field(name="rocprofiler-sdk-tool")


R = TypeVar("R", bound=msgspec.Struct)


class ProcessRecords(msgspec.Struct):
    """The records of one process."""

    metadata: dict[str, Any]
    agents: list[Agent]
    symbols: list[KernelSymbol]
    kinds: list[RecordKind]
    messages: dict[int, str]
    dropped: int = 0
    """Records that do not decode."""
    _buffers: dict[str, msgspec.Raw] = {}

    def records(self, kind: type[R], *names: str) -> list[R]:
        """Return the records under the first of these names that is present."""
        raw = next((self._buffers[name] for name in names if name in self._buffers), None)
        if raw is None:
            return []
        found, dropped = _each(raw, kind)
        self.dropped += dropped
        return found


def processes(content: bytes) -> Iterator[ProcessRecords]:
    """Yield the processes of a file's text. Raises msgspec.DecodeError or RecursionError when it is not valid JSON."""
    raw = msgspec.json.decode(content, type=_File).tool
    if bytes(raw).lstrip()[:1] == b"{":  # versions before the list of processes
        found, dropped = [msgspec.json.decode(raw, type=_Process)], 0
    else:
        found, dropped = _each(raw, _Process)
    for each in found:
        strings = _one(each.strings, _Strings) or _Strings()
        agents, lost = _each(each.agents, Agent)
        symbols, lost_symbols = _each(each.kernel_symbols, KernelSymbol)
        messages, lost_messages = _each(strings.marker_api, MarkerText)
        buffers = _one(each.buffer_records, dict[str, msgspec.Raw]) or {}
        yield ProcessRecords(
            metadata=each.metadata if isinstance(each.metadata, dict) else {},
            agents=agents,
            symbols=symbols,
            # A kind is identified by its index, so a malformed one keeps its place.
            kinds=[
                _one(one, RecordKind) or RecordKind() for one in _one(strings.buffer_records, list[msgspec.Raw]) or []
            ],
            messages={message.key: message.value for message in messages},
            dropped=dropped + lost + lost_symbols + lost_messages,
            _buffers=buffers,
        )
        dropped = 0


T = TypeVar("T")


def _one(raw: msgspec.Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _BROKEN:
        return None


def _each(raw: msgspec.Raw, kind: type[R]) -> tuple[list[R], int]:
    """Return the records of a list and how many do not decode; a value that is not a list counts as one."""
    try:
        return msgspec.json.decode(raw, type=list[kind]), 0  # type: ignore[valid-type]
    except _BROKEN:
        pass
    pieces = _one(raw, list[msgspec.Raw])
    if pieces is None:
        return [], 1
    found = [one for piece in pieces if (one := _one(piece, kind)) is not None]
    return found, len(pieces) - len(found)
