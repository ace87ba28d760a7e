"""Read the device work and the API calls of an Nsight Systems export in chunks; columns that a version lacks are
missing values.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.ingest.build.multi_rank import DeviceRecording, DeviceWork, HostCalls, Launches, SyncRecords
from overlapscope.ingest.build.trace_columns import KERNEL, MEMCPY, MEMSET
from overlapscope.ingest.formats.nsight.nvtx import NsightRanges
from overlapscope.ingest.formats.nsight.strings import StringTable, is_sound, process_ids, process_of, thread_of
from overlapscope.ingest.parsing.sqlite import SqliteFile
from overlapscope.timeline.columns import (
    CONTEXT_SYNC,
    EVENT_SYNC,
    NONE,
    OVERHEAD,
    RUNTIME,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    SYSTEM,
    Codes,
    Ints,
    integers,
)
from overlapscope.timeline.names import NameTable

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
SYNCS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_OTHER_CALLS: Final = {"OSRT_API": SYSTEM, "CUPTI_ACTIVITY_KIND_OVERHEAD": OVERHEAD}
_SYNC_KINDS: Final = {1: EVENT_SYNC, 2: STREAM_WAIT_EVENT, 3: STREAM_SYNC, 4: CONTEXT_SYNC}
"""CUpti_ActivitySynchronizationType."""
_NO_STREAM: Final = (1 << 32) - 1
"""CUPTI_SYNCHRONIZATION_INVALID_VALUE."""
_SYNC: Final = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "syncType", "eventSyncId")
_PLACE: Final = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
_CALL: Final = ("start", "end", "globalTid", "correlationId", "nameId")
_KERNEL_NAMES: Final = ("demangledName", "shortName", "mangledName")
_COPY_KINDS: Final = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind, and Nsight's own kinds for unified memory."""


class NsightTables(msgspec.Struct):
    """Reads the tables of one export; its fields count what was read."""

    file: SqliteFile
    names: NameTable = msgspec.field(default_factory=NameTable)
    events: int = 0
    repaired: int = 0
    dropped: int = 0
    unended: int = 0
    """NVTX ranges without an end."""
    unread_payloads: int = 0
    graphs: int = 0
    """CUDA graphs that were recorded as a whole."""
    lost_kernels: bool = False
    """Whether the table of kernels is damaged from its first row on."""
    _work: dict[str, list[Any]] = {}

    def read(self) -> DeviceRecording:
        """Return all used tables of the export. Times are as stored."""
        work = self._device_work()
        launches = self._launches()
        calls = self._host_calls()
        syncs = self._syncs()
        reader = NsightRanges(file=self.file, names=self.names)
        ranges = reader.read()
        self.events += reader.events
        self.dropped += reader.dropped
        self.unended, self.unread_payloads = reader.unended, reader.unread_payloads
        return DeviceRecording(
            names=self.names,
            work=work,
            launches=launches,
            ranges=ranges,
            calls=calls,
            syncs=syncs,
            payloads=reader.payloads,
            process_ids=process_ids(work.process, launches.process, ranges.process, calls.process),
        )

    def _device_work(self) -> DeviceWork:
        strings = StringTable(file=self.file, code=self.names.code)
        stored = self.file.columns(KERNELS)
        kernel_name = next((name for name in _KERNEL_NAMES if name in stored), _KERNEL_NAMES[0])
        self._work = {name: [] for name in (*_PLACE, "sort", "name", "opaque")}
        sound = len(self.file.damage)
        for columns in self._timed(KERNELS, kernel_name):
            self._add(columns, KERNEL, self._named(strings.codes(columns[kernel_name]), "unnamed kernel"))
        self.lost_kernels = not self._work["start"] and len(self.file.damage) > sound
        for columns in self._timed(COPIES, "copyKind"):
            self._add(columns, MEMCPY, self._copy_names(columns["copyKind"]))
        for columns in self._timed(SETS):
            self._add(columns, MEMSET, self._all_named(columns, "Memset"))
        for columns in self._timed(GRAPHS):
            self.graphs += columns["start"].size
            self._add(columns, KERNEL, self._all_named(columns, "CUDA graph"), opaque=True)
        nothing = np.empty(0, np.int64)
        work = {name: np.concatenate(parts) if parts else nothing for name, parts in self._work.items()}
        self._work.clear()
        return DeviceWork(
            process=work["globalPid"],
            device=np.where(work["deviceId"] == NONE, 0, work["deviceId"]),
            stream=work["streamId"],
            sort=work["sort"].astype(np.int8),
            name=work["name"].astype(np.int32),
            start_ns=work["start"],
            end_ns=work["end"],
            correlation=_linking(work["correlationId"]),
            opaque=work["opaque"].astype(np.bool_),
        )

    def _launches(self) -> Launches:
        """Return the calls of the runtime's and the driver's interface."""
        start, end, thread, name, correlation, _ = self._calls(dict.fromkeys(CALLS, RUNTIME), "unnamed call")
        return Launches(
            process=process_of(thread),
            thread=thread_of(thread),
            name=name,
            start_ns=start,
            end_ns=end,
            correlation=correlation,
        )

    def _host_calls(self) -> HostCalls:
        """Return the calls of the operating system and the profiler's own work."""
        start, end, thread, name, _, kind = self._calls(_OTHER_CALLS, "profiler overhead")
        return HostCalls(
            process=process_of(thread),
            thread=thread_of(thread),
            kind=kind.astype(np.int8),
            name=name,
            start_ns=start,
            end_ns=end,
        )

    def _calls(self, tables: Mapping[str, int], otherwise: str) -> tuple[Ints, Ints, Ints, Codes, Ints, Ints]:
        """Return start, end, thread, name, correlation and kind of the rows of tables with valid times."""
        strings = StringTable(file=self.file, code=self.names.code)
        nothing = np.empty(0, np.int64)
        parts = [(nothing, nothing, nothing, nothing.astype(np.int32), nothing, nothing)]
        for table, kind in tables.items():
            for columns in self._columns(table, _CALL):
                good = is_sound(columns["start"])
                self.dropped += int((~good).sum())
                start, end, thread, correlation, name = (columns[each][good] for each in _CALL)
                end = np.where(is_sound(end), np.maximum(start, end), start)
                codes = self._named(strings.codes(name), otherwise)
                parts.append((start, end, thread, codes, _linking(correlation), np.full(start.size, kind, np.int64)))
        start, end, thread, codes, correlation, kinds = (np.concatenate(each) for each in zip(*parts, strict=True))
        return start, end, thread, codes, correlation, kinds

    def _syncs(self) -> SyncRecords:
        """Return the synchronisations, with the records of the events that they wait for where these were recorded."""
        parts: dict[str, list[Ints]] = {name: [np.empty(0, np.int64)] for name in _SYNC}
        for columns in self._columns(SYNCS, _SYNC):
            timed = is_sound(columns["start"]) & is_sound(columns["end"])
            self.dropped += int((~timed).sum())
            good = timed & np.isin(columns["syncType"], list(_SYNC_KINDS))
            for name, values in columns.items():
                parts[name].append(values[good])
        table = {name: np.concatenate(values) for name, values in parts.items()}
        kind = np.array([_SYNC_KINDS[each] for each in table["syncType"].tolist()], np.int8)
        stream = np.where((table["streamId"] < 0) | (table["streamId"] >= _NO_STREAM), NONE, table["streamId"])
        event_stream, event_correlation = self._awaited(table["globalPid"], table["eventSyncId"])
        by_stream, of_stream = kind == STREAM_WAIT_EVENT, kind == STREAM_SYNC
        return SyncRecords(
            process=table["globalPid"],
            device=table["deviceId"],
            stream=np.where(by_stream, stream, NONE),
            awaited_stream=np.where(of_stream, stream, event_stream),
            kind=kind,
            correlation=_linking(table["correlationId"]),
            awaited_correlation=event_correlation,
            start_ns=table["start"],
            end_ns=np.maximum(table["start"], table["end"]),
        )

    def _awaited(self, process: Ints, sync_id: Ints) -> tuple[Ints, Ints]:
        """Return stream and correlation of the record of each awaited event; NONE where it is not recorded."""
        records: dict[tuple[int, int], tuple[int, int]] = {}
        for columns in self._columns(EVENTS, ("globalPid", "eventSyncId", "streamId", "correlationId")):
            rows = zip(*(each.tolist() for each in columns.values()), strict=True)
            records |= {(pid, event): (stream, correlation) for pid, event, stream, correlation in rows if event > 0}
        keys = zip(process.tolist(), sync_id.tolist(), strict=True)
        found = np.array([records.get(key, (NONE, NONE)) for key in keys], np.int64).reshape(-1, 2)
        return found[:, 0], _linking(found[:, 1])

    def _columns(self, table: str, wanted: tuple[str, ...]) -> Iterator[dict[str, Ints]]:
        """Yield chunks of int64 columns; NONE for a missing value and for a column that the table does not have."""
        there = [name for name in wanted if name in self.file.columns(table)]
        for chunk in self.file.rows(table, there) if there else ():
            rows = len(chunk[0])
            self.events += rows
            columns = {name: integers(values) for name, values in zip(there, chunk, strict=True)}
            yield {name: columns[name] if name in columns else np.full(rows, NONE, np.int64) for name in wanted}

    def _timed(self, table: str, *more: str) -> Iterator[dict[str, Ints]]:
        """Yield chunks of device rows with valid times; an end before the start is set to the start."""
        for columns in self._columns(table, (*_PLACE, *more)):
            start, end = columns["start"], columns["end"]
            good = is_sound(start) & is_sound(end) & ~((start == 0) & (end == 0))  # CUPTI writes 0 to 0 when unknown
            self.dropped += int((~good).sum())
            self.repaired += int((good & (end < start)).sum())
            columns["end"] = np.maximum(start, end)
            yield {name: values[good] for name, values in columns.items()}

    def _add(self, columns: dict[str, Ints], sort: int, name: Codes, *, opaque: bool = False) -> None:
        rows = name.size
        for column in _PLACE:
            self._work[column].append(columns[column])
        self._work["sort"].append(np.full(rows, sort, np.int8))
        self._work["name"].append(name)
        self._work["opaque"].append(np.full(rows, opaque, np.bool_))

    def _named(self, codes: Codes, otherwise: str) -> Codes:
        """Return the name codes, with `otherwise` for missing names."""
        return np.where(codes < 0, np.int32(self.names.code(otherwise)), codes) if (codes < 0).any() else codes

    def _all_named(self, columns: dict[str, Ints], name: str) -> Codes:
        return np.full(columns["start"].size, self.names.code(name), np.int32)

    def _copy_names(self, kind: Ints) -> Codes:
        kinds = np.unique(kind)
        codes = [self.names.code(f"Memcpy {_COPY_KINDS.get(each, 'of unknown kind')}") for each in kinds.tolist()]
        return np.array(codes, np.int32)[np.searchsorted(kinds, kind)]


def _linking(correlation: Ints) -> Ints:
    """Return correlations with NONE instead of 0, which means no correlation."""
    return np.where(correlation == 0, NONE, correlation)
