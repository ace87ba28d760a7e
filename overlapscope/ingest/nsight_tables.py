"""The tables of an Nsight Systems export to columns, chunk by chunk; what a version does not have is absent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.api_ranges import Payload
from overlapscope.ingest.device_recording import DeviceRecording, DeviceWork, HostRanges, Launches
from overlapscope.ingest.kineto_dialect import LAUNCHES_KERNEL
from overlapscope.ingest.nccl_payload import Schema, decode
from overlapscope.ingest.nvtx_names import RangeNames
from overlapscope.ingest.sqlite_file import SqliteFile, as_text
from overlapscope.ingest.trace_columns import KERNEL, MEMCPY, MEMSET
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.names import NameTable

STRINGS: Final = "StringIds"
KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
RANGES: Final = "NVTX_EVENTS"
_GRAPH_NAME: Final = "CUDA graph"
_PUSH_POP, _START_END = 59, 60
_THREAD_BITS: Final = 0xFFFFFF
MAX_TIME_NS: Final = 1 << 61
"""73 years; a larger time is damage."""
_COPY_KINDS: Final = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind, and Nsight's own for unified memory."""
_MAX_REMEMBERED: Final = 1 << 20


@dataclass(slots=True)
class NsightTables:
    """Reads one export; `repaired`, `dropped` and `events` count what it met."""

    file: SqliteFile
    names: NameTable = field(default_factory=NameTable)
    events: int = 0
    repaired: int = 0
    dropped: int = 0
    unended: int = 0
    """NVTX ranges without an end."""
    unread_payloads: int = 0
    graphs: int = 0

    def read(self) -> DeviceRecording:
        """Give all that is used of the export. Times are as stored."""
        work = self._work()
        launches = self._launches(work)
        ranges, payloads = self._ranges()
        return DeviceRecording(
            names=self.names,
            work=work,
            launches=launches,
            ranges=ranges,
            payloads=payloads,
            process_ids=_process_ids(work.process, launches.process, ranges.process),
        )

    def _columns(self, table: str, wanted: tuple[str, ...]) -> Iterator[dict[str, Ints]]:
        """Yield chunks of integer columns; NONE for a missing value and for a column the table does not have."""
        there = [name for name in wanted if name in self.file.columns(table)]
        if not there:
            return
        for chunk in self.file.rows(table, there):
            columns = {name: integers(values) for name, values in zip(there, chunk, strict=True)}
            self.events += len(chunk[0])
            yield {name: columns.get(name, np.full(len(chunk[0]), NONE, np.int64)) for name in wanted}

    def _good(self, columns: dict[str, Ints]) -> dict[str, Ints]:
        """Leave out rows without sound times, and end those that end before they begin where they begin."""
        start, end = columns["start"], columns["end"]
        good = _sound(start) & _sound(end) & ~((start == 0) & (end == 0))
        self.dropped += int((~good).sum())
        self.repaired += int((good & (end < start)).sum())
        columns["end"] = np.maximum(start, end)
        return columns if good.all() else {name: values[good] for name, values in columns.items()}

    def _work(self) -> DeviceWork:
        parts: dict[str, list[npt.NDArray[Any]]] = {}
        strings = self._strings(self.names.code)
        kernel_names = ("demangledName", "shortName", "mangledName")
        unnamed = self.names.code("unnamed kernel")
        kernel_name = next((name for name in kernel_names if name in self.file.columns(KERNELS)), kernel_names[0])
        shared = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")

        def add(columns: dict[str, Ints], sort: int, name: npt.NDArray[np.int32], *, opaque: bool = False) -> None:
            for column in shared:
                parts.setdefault(column, []).append(columns[column])
            parts.setdefault("sort", []).append(np.full(name.size, sort, np.int8))
            parts.setdefault("name", []).append(name)
            parts.setdefault("opaque", []).append(np.full(name.size, opaque, np.bool_))

        for chunk in self._columns(KERNELS, (*shared, kernel_name)):
            columns = self._good(chunk)
            name = strings.codes(columns[kernel_name])
            add(columns, KERNEL, np.where(name < 0, np.int32(unnamed), name))
        for chunk in self._columns(COPIES, (*shared, "copyKind")):
            columns = self._good(chunk)
            add(columns, MEMCPY, self._copy_names(columns["copyKind"]))
        for chunk in self._columns(SETS, shared):
            columns = self._good(chunk)
            add(columns, MEMSET, np.full(columns["start"].size, self.names.code("Memset"), np.int32))
        for chunk in self._columns(GRAPHS, shared):
            columns = self._good(chunk)
            self.graphs += columns["start"].size
            graph = np.full(columns["start"].size, self.names.code(_GRAPH_NAME), np.int32)
            add(columns, KERNEL, graph, opaque=True)
        joined = {name: np.concatenate(values) for name, values in parts.items()}
        none = np.empty(0, np.int64)
        device = joined.get("deviceId", none)
        correlation = joined.get("correlationId", none)
        return DeviceWork(
            process=joined.get("globalPid", none),
            device=np.where(device == NONE, 0, device),
            stream=joined.get("streamId", none),
            sort=joined.get("sort", np.empty(0, np.int8)),
            name=joined.get("name", np.empty(0, np.int32)),
            start_ns=joined.get("start", none),
            end_ns=joined.get("end", none),
            correlation=np.where(correlation == 0, NONE, correlation),  # 0 stands for none
            opaque=joined.get("opaque", np.empty(0, np.bool_)),
        )

    def _copy_names(self, kind: Ints) -> npt.NDArray[np.int32]:
        kinds = np.unique(kind)
        codes = [self.names.code(f"Memcpy {_COPY_KINDS.get(each, 'of unknown kind')}") for each in kinds.tolist()]
        return np.array(codes, np.int32)[np.searchsorted(kinds, kind)]

    def _launches(self, work: DeviceWork) -> Launches:
        """Give the calls that enqueued what was recorded, and kernel launches whose kernel was not."""
        launching: set[int] = set()

        def code(text: str) -> int:
            number = self.names.code(text)
            if LAUNCHES_KERNEL.search(text):
                launching.add(number)
            return number

        strings = self._strings(code)
        known = np.unique(work.correlation)
        parts: list[tuple[Ints, Ints, npt.NDArray[np.int32], Ints]] = []
        for table in CALLS:
            for columns in self._columns(table, ("start", "globalTid", "correlationId", "nameId")):
                correlation = np.where(columns["correlationId"] == 0, NONE, columns["correlationId"])
                good = _sound(columns["start"])
                self.dropped += int((~good).sum())
                name = strings.codes(columns["nameId"])
                linked = _among(correlation, known) & (correlation != NONE)
                keep = good & (linked | np.isin(name, list(launching)))
                parts.append((columns["start"][keep], columns["globalTid"][keep], name[keep], correlation[keep]))
        if not parts:
            parts.append((np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)))
        start, thread, name, correlation = (np.concatenate(column) for column in zip(*parts, strict=True))
        name = np.where(name < 0, np.int32(self.names.code("unnamed call")), name)
        return Launches(
            process=_process_of(thread), thread=_thread_of(thread), name=name, start_ns=start, correlation=correlation
        )

    def _ranges(self) -> tuple[HostRanges, dict[int, Payload]]:
        columns = self.file.columns(RANGES)
        range_names = RangeNames(self.names)
        strings = self._strings(range_names.code)
        schemas = self._schemas()
        integer = [n for n in ("start", "end", "globalTid", "textId", "domainId", "eventType") if n in columns]
        texts = [n for n in ("text", "binaryData") if n in columns and (n == "text" or schemas)]
        where = f"WHERE eventType IN ({_PUSH_POP},{_START_END})" if "eventType" in columns else ""
        parts: list[tuple[Ints, Ints, Ints, npt.NDArray[np.int32]]] = []
        payloads: dict[int, Payload] = {}
        kept = 0
        for chunk in self.file.rows(RANGES, integer, texts, where) if {"start", "end"} <= set(integer) else ():
            rows = len(chunk[0])
            self.events += rows
            stored = dict(zip([*integer, *texts], chunk, strict=True))
            numbers = {name: integers(stored[name]) for name in integer}
            absent = np.full(rows, NONE, np.int64)
            name = strings.codes(numbers.get("textId", absent))
            for row, text in enumerate(stored.get("text", ())):
                if text is not None:
                    name[row] = range_names.code(as_text(text) or "")
            start, end = numbers["start"], numbers["end"]
            unended = end == NONE
            self.unended += int(unended.sum())
            good = ~unended & (name >= 0) & _sound(start) & _sound(end) & (end >= start)
            self.dropped += int((~good & ~unended).sum())
            place = kept + np.cumsum(good) - 1
            domains = numbers.get("domainId", absent)
            spelled: list[str] | None = None
            for row, blob in enumerate(stored.get("binaryData", ())):
                if isinstance(blob, bytes) and good[row]:
                    spelled = spelled or self.names.to_list()
                    if spelled[name[row]].startswith("nccl"):
                        payload = decode(blob, int(domains[row]), schemas)
                        if payload is not None:
                            payloads[int(place[row])] = payload
                        self.unread_payloads += payload is None
            kept += int(good.sum())
            thread = numbers.get("globalTid", absent)
            parts.append((start[good], end[good], thread[good], name[good]))
        if not parts:
            parts.append((np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32)))
        start, end, thread, name = (np.concatenate(column) for column in zip(*parts, strict=True))
        ranges = HostRanges(
            process=_process_of(thread),
            thread=_thread_of(thread),
            name=name,
            start_ns=start,
            end_ns=end,
            is_annotation=range_names.annotations(name),
        )
        return ranges, payloads

    def _schemas(self) -> dict[tuple[int, int], Schema]:
        """Give the payload schemas of domains; one that processes describe differently is left out."""
        if "binaryData" not in self.file.columns(RANGES):
            return {}
        sizes: dict[tuple[int, int], set[int]] = {}
        for chunk in self._columns("NVTX_PAYLOAD_SCHEMAS", ("domainId", "schemaId", "payloadSize")):
            for domain, schema, size in zip(*(column.tolist() for column in chunk.values()), strict=True):
                sizes.setdefault((domain, schema), set()).add(size)
        fields: dict[tuple[int, int], dict[str, set[tuple[int, int]]]] = {}
        table, wanted = "NVTX_PAYLOAD_SCHEMA_ENTRIES", ["domainId", "schemaId", "type", "offset"]
        if {*wanted, "name"} <= set(self.file.columns(table)):
            for *numbers, names in self.file.rows(table, wanted, ["name"]):
                for domain, schema, kind, offset, name in zip(*numbers, names, strict=True):
                    if domain is not None and schema is not None and kind is not None and name is not None:
                        entry = fields.setdefault((domain, schema), {}).setdefault(as_text(name) or "", set())
                        entry.add((offset or 0, kind))
        return {
            key: Schema(
                size=None if NONE in sizes[key] else next(iter(sizes[key])),
                fields={name: next(iter(places)) for name, places in entries.items()},
            )
            for key, entries in fields.items()
            if len(sizes.get(key, ())) == 1 and all(len(places) == 1 for places in entries.values())
        }

    def _strings(self, code: Callable[[str], int]) -> "_Strings":
        return _Strings(file=self.file, code=code)


@dataclass(slots=True)
class _Strings:
    """Ids of StringIds to codes of names."""

    file: SqliteFile
    code: Callable[[str], int]
    _known: dict[int, int] = field(default_factory=dict)
    _whole: bool = False

    def codes(self, ids: Ints) -> npt.NDArray[np.int32]:
        """Give the code of each id; -1 where it is missing or unknown."""
        distinct = np.unique(ids)
        if len(self._known) > _MAX_REMEMBERED and not self._whole:
            self._known.clear()
        codes = [self._one(number) for number in distinct.tolist()]
        return np.array(codes, np.int32)[np.searchsorted(distinct, ids)]

    def _one(self, number: int) -> int:
        if number == NONE:
            return -1
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._look_up(number)
        return found

    def _look_up(self, number: int) -> int:
        if not {"id", "value"} <= set(self.file.columns(STRINGS)):
            return -1
        if self.file.is_key(STRINGS, "id"):
            text = self.file.text_of(STRINGS, "id", "value", number)
            return -1 if text is None else self.code(text)
        if not self._whole:  # a copy that lost its key is read once
            self._whole = True
            for ids, values in self.file.rows(STRINGS, ["id"], ["value"]):
                for each, value in zip(ids, values, strict=True):
                    if each is not None and value is not None:
                        self._known.setdefault(each, self.code(as_text(value) or ""))
        return self._known.get(number, -1)


def integers(values: Any) -> Ints:
    """Give a column of integers, NONE where one is missing."""
    try:
        return np.array(values, np.int64)
    except TypeError:
        return np.array([NONE if value is None else value for value in values], np.int64)


def _sound(time_ns: Ints) -> npt.NDArray[np.bool_]:
    """Whether each time is there and possible."""
    return (time_ns > -MAX_TIME_NS) & (time_ns < MAX_TIME_NS)  # not abs: NONE has no opposite


def _among(values: Ints, known: Ints) -> npt.NDArray[np.bool_]:
    """Whether each value is one of the sorted ones."""
    if known.size == 0:
        return np.zeros(values.size, np.bool_)
    at = np.minimum(np.searchsorted(known, values), known.size - 1)
    return np.asarray(known[at] == values, np.bool_)


def _process_of(thread: Ints) -> Ints:
    """Give the process key of a global thread id, which is Nsight's globalPid."""
    return np.where(thread == NONE, NONE, thread & ~np.int64(_THREAD_BITS))


def _thread_of(thread: Ints) -> Ints:
    return np.where(thread == NONE, NONE, thread & np.int64(_THREAD_BITS))


def _process_ids(*processes: Ints) -> dict[int, int]:
    keys = {key for each in processes for key in np.unique(each).tolist() if key != NONE}
    return {key: (key >> 24) & _THREAD_BITS for key in keys}
