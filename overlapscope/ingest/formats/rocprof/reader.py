"""Read the JSON of rocprofv3 (`--output-format json`): kernels, memory copies, API calls and markers of each rank in
it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.multi_rank import (
    DeviceRecording,
    DeviceWork,
    HostRanges,
    Launches,
    device_order_note,
    rank_timelines,
)
from overlapscope.ingest.build.trace_columns import KERNEL, MEMCPY
from overlapscope.ingest.build.user_marks import RangeNames
from overlapscope.ingest.formats.rocprof.records import (
    MAX_TIME_NS,
    Agent,
    ApiCallRecord,
    CopyRecord,
    KernelRecord,
    ProcessRecords,
    processes,
)
from overlapscope.ingest.parsing.json_values import hash_of, json_text
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK, Source

_GPU: Final = 2
"""ROCPROFILER_AGENT_TYPE_GPU."""


def read_rocprof(path: Path, context: ReadContext) -> Reading:
    """Read one file. Its times count from the start of the machine.

    Raises InputError when it is not complete JSON, or holds no device work.
    """
    content, stream = json_text(path, context.max_bytes, context.progress)
    rows = _RecordingColumns()
    try:
        for number, process in enumerate(processes(content)):
            rows.add(number, process)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"{display_path(path)}: is not complete JSON of rocprofv3: {error}; copy it again, or run it again"
        ) from error
    del content
    if not rows.has_work:
        raise InputError(f"{display_path(path)}: holds no device work; record with --kernel-trace --memory-copy-trace")
    recording = rows.recording()
    built, left_out = rank_timelines(recording, context.classifier, source=display_path(path), truncated=False)
    counted = (
        (rows.dropped, "records that do not decode left out"),
        (rows.repaired, "device events end before they begin; their duration is taken as 0"),
        (left_out, "copies of processes that run no kernel left out"),
    )
    warnings = [*stream.warnings, *(f"{count} {what}" for count, what in counted if count)]
    if len(built) > 1:
        warnings.append(device_order_note(built))
    warnings += list(dict.fromkeys(note for each in built for note in each.built.notes))
    groups = {group.name: group for each in built for group in each.built.groups}
    clock = {"clock": f"rocprof file {hash_of(display_path(path).encode())}"} if len(built) > 1 else {}
    ranks = range(len(built)) if len(built) > 1 else [UNKNOWN_RANK]
    return Reading(
        source=Source(
            path=display_path(path),
            events=rows.events,
            repaired=rows.repaired,
            dropped=rows.dropped,
            unlinked=sum(each.built.unlinked for each in built),
            warnings=tuple(warnings),
        ),
        timelines=tuple(
            replace(each.built.timeline, rank=rank, recorded=clock) for rank, each in zip(ranks, built, strict=True)
        ),
        groups=tuple(groups.values()),
        fingerprint={"device": next(iter(rows.products))} if len(rows.products) == 1 else {},
        ranks_assumed=len(built) > 1,
    )


class _RecordingColumns(msgspec.Struct):
    """The columns of all processes, one process after another."""

    names: NameTable = msgspec.field(default_factory=NameTable)
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    process_ids: dict[int, int] = {}
    products: set[str] = set()
    """Names of the devices that executed work."""
    has_streams: bool = False
    events: int = 0
    repaired: int = 0
    dropped: int = 0

    def add(self, number: int, process: ProcessRecords) -> None:
        """Add the records of one process under the process key `number`."""
        pid = process.metadata.get("pid")
        if isinstance(pid, int) and not isinstance(pid, bool) and 0 <= pid < MAX_TIME_NS:
            self.process_ids[number] = pid
        self._add_work(number, process)
        self._add_calls(number, process)
        self._add_ranges(number, process)
        self.dropped += process.dropped

    def _add_work(self, number: int, process: ProcessRecords) -> None:
        """Add kernels and memory copies."""
        gpus = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
        index = _device_numbers(gpus)
        dispatches = process.records(KernelRecord, "kernel_dispatch", "kernel_dispatches")
        copies = process.records(CopyRecord, "memory_copy", "memory_copies")
        on = [dispatch.dispatch_info.agent_id.handle for dispatch in dispatches]
        kernel = {
            symbol.kernel_id: (
                symbol.formatted_kernel_name
                or symbol.demangled_kernel_name
                or symbol.kernel_name
                or symbol.truncated_kernel_name
            )
            for symbol in process.symbols
        }
        names = [kernel.get(each.dispatch_info.kernel_id) or "unnamed kernel" for each in dispatches]
        queues = [dispatch.dispatch_info.queue_id.handle for dispatch in dispatches]
        # A copy belongs to the device it writes to, or to the one it reads from when it writes to none.
        ends = [(copy.src_agent_id.handle, copy.dst_agent_id.handle) for copy in copies]
        on += [target if target in gpus else source for source, target in ends]
        names += [_copy_name(source, target, gpus) for source, target in ends]
        both: list[KernelRecord | CopyRecord] = [*dispatches, *copies]
        start, end = _ints(each.start_timestamp for each in both), _ints(each.end_timestamp for each in both)
        self.repaired += int((end < start).sum())
        self.events += len(both)
        stream = _ints(each.stream_id.handle for each in both)
        # Without streams (--group-by-queue, older versions) every stream is 0 or missing: queues are used instead.
        if (stream > 0).any():
            self.has_streams = True
        else:
            stream = np.concatenate([_ints(queues), np.full(len(copies), NONE, np.int64)])
        correlation = _ints(each.correlation_id.internal for each in both)
        self._add(
            "work",
            process=np.full(len(both), number, np.int64),
            device=_ints(index.get(handle, handle) for handle in on),
            stream=stream,
            sort=np.repeat(np.array([KERNEL, MEMCPY], np.int8), [len(dispatches), len(copies)]),
            name=self.names.encode(names),
            start_ns=start,
            end_ns=np.maximum(start, end),
            correlation=np.where(correlation == 0, NONE, correlation),
        )
        self.products |= {gpus[handle].product_name or gpus[handle].name for handle in set(on) & gpus.keys()} - {""}

    def _add_calls(self, number: int, process: ProcessRecords) -> None:
        """Add the calls of HIP and of HSA."""
        calls = [*process.records(ApiCallRecord, "hip_api"), *process.records(ApiCallRecord, "hsa_api")]
        self.events += len(calls)
        self._add(
            "calls",
            process=np.full(len(calls), number, np.int64),
            thread=_ints(call.thread_id for call in calls),
            name=self.names.encode([_operation(process, call) for call in calls]),
            start_ns=_ints(call.start_timestamp for call in calls),
            end_ns=_ints(max(call.start_timestamp, call.end_timestamp) for call in calls),
            correlation=_ints(call.correlation_id.internal or NONE for call in calls),
        )

    def _add_ranges(self, number: int, process: ProcessRecords) -> None:
        """Add markers that have a duration, named by their message, and calls of RCCL."""
        range_names = RangeNames(self.names)
        marks = process.records(ApiCallRecord, "marker_api")
        calls = process.records(ApiCallRecord, "rccl_api")
        self.events += len(marks) + len(calls)
        found = [(call, _operation(process, call)) for call in calls]
        for mark in marks:
            text = process.messages.get(mark.correlation_id.internal)
            if text is not None and mark.end_timestamp > mark.start_timestamp:
                found.append((mark, text))
        name = np.fromiter((range_names.code(text) for _, text in found), np.int32)
        self._add(
            "ranges",
            process=np.full(len(found), number, np.int64),
            thread=_ints(each.thread_id for each, _ in found),
            name=name,
            start_ns=_ints(each.start_timestamp for each, _ in found),
            end_ns=_ints(max(each.start_timestamp, each.end_timestamp) for each, _ in found),
            is_annotation=range_names.annotations(name),
        )

    def _add(self, table: str, **columns: npt.NDArray[Any]) -> None:
        for name, values in columns.items():
            self.parts.setdefault(f"{table}.{name}", []).append(values)

    @property
    def has_work(self) -> bool:
        """Return whether any process executed work on a device."""
        return any(part.size for part in self.parts.get("work.name", ()))

    def recording(self) -> DeviceRecording:
        """Return all records added so far."""
        joined = {name: np.concatenate(values) for name, values in self.parts.items()}

        def table(name: str) -> dict[str, Any]:
            return {key.partition(".")[2]: values for key, values in joined.items() if key.startswith(f"{name}.")}

        work = table("work")
        return DeviceRecording(
            names=self.names,
            work=DeviceWork(**work, opaque=np.zeros(work["name"].size, np.bool_)),
            launches=Launches(**table("calls")),
            ranges=HostRanges(**table("ranges")),
            payloads={},
            process_ids=self.process_ids,
            stream_word="stream" if self.has_streams else "queue",
        )


def _device_numbers(gpus: Mapping[int, Agent]) -> dict[int, int]:
    """Return each GPU's number among the GPUs of the machine, by handle; empty where the file does not state them."""
    numbers = {handle: agent.logical_node_type_id for handle, agent in gpus.items()}
    sound = len(set(numbers.values())) == len(numbers) and all(number >= 0 for number in numbers.values())
    return numbers if sound else {}


def _copy_name(source: int, target: int, gpus: Mapping[int, Agent]) -> str:
    if source in gpus and target in gpus:
        return "Memcpy DtoD" if source == target else "Memcpy PtoP"
    return "Memcpy HtoD" if target in gpus else "Memcpy DtoH" if source in gpus else "Memcpy HtoH"


def _operation(process: ProcessRecords, call: ApiCallRecord) -> str:
    kind = process.kinds[call.kind] if 0 <= call.kind < len(process.kinds) else None
    if kind is None or not 0 <= call.operation < len(kind.operations):
        return "unnamed call"
    return kind.operations[call.operation]


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
