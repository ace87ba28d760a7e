"""Read the device work and the API calls of an Nsight Systems export in chunks; columns that a version lacks are
missing values.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.ingest.build.multi_rank import DeviceRecording, DeviceWork, Launches
from overlapscope.ingest.build.profiler_names import LAUNCHES_KERNEL
from overlapscope.ingest.build.trace_columns import KERNEL, MEMCPY, MEMSET
from overlapscope.ingest.formats.nsight.nvtx import NsightRanges
from overlapscope.ingest.formats.nsight.strings import StringTable, is_sound, process_ids, process_of, thread_of
from overlapscope.ingest.parsing.sqlite import SqliteFile
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints, integers
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import WAITS_FOR_DEVICE

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
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
    _work: dict[str, list[Any]] = {}

    def read(self) -> DeviceRecording:
        """Return all used tables of the export. Times are as stored."""
        work = self._device_work()
        launches = self._launches(work)
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
            payloads=reader.payloads,
            process_ids=process_ids(work.process, launches.process, ranges.process),
        )

    def _device_work(self) -> DeviceWork:
        strings = StringTable(file=self.file, code=self.names.code)
        stored = self.file.columns(KERNELS)
        kernel_name = next((name for name in _KERNEL_NAMES if name in stored), _KERNEL_NAMES[0])
        self._work = {name: [] for name in (*_PLACE, "sort", "name", "opaque")}
        for columns in self._timed(KERNELS, kernel_name):
            self._add(columns, KERNEL, self._named(strings.codes(columns[kernel_name]), "unnamed kernel"))
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

    def _launches(self, work: DeviceWork) -> Launches:
        """Return calls that enqueued recorded work or waited for it, and launches whose kernel was not recorded."""
        launching: set[int] = set()

        def code(text: str) -> int:
            number = self.names.code(text)
            if LAUNCHES_KERNEL.search(text) or WAITS_FOR_DEVICE.fullmatch(text):
                launching.add(number)
            return number

        strings = StringTable(file=self.file, code=code)
        known = np.unique(work.correlation)
        nothing = np.empty(0, np.int64)
        parts = [(nothing, nothing, nothing.astype(np.int32), nothing, nothing)]
        for table in CALLS:
            for columns in self._columns(table, _CALL):
                correlation = _linking(columns["correlationId"])
                name = strings.codes(columns["nameId"])
                good = is_sound(columns["start"])
                self.dropped += int((~good).sum())
                keep = good & (_among(correlation, known) | np.isin(name, list(launching)))
                start, end = columns["start"][keep], columns["end"][keep]
                end = np.where(is_sound(end), np.maximum(start, end), start)
                parts.append((start, columns["globalTid"][keep], name[keep], correlation[keep], end))
        start, thread, name, correlation, end = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Launches(
            process=process_of(thread),
            thread=thread_of(thread),
            name=self._named(name, "unnamed call"),
            start_ns=start,
            end_ns=end,
            correlation=correlation,
        )

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


def _among(values: Ints, known: Ints) -> Flags:
    """Return whether each value is present (not NONE) and among the sorted `known` values."""
    if known.size == 0:
        return np.zeros(values.size, np.bool_)
    at = np.minimum(np.searchsorted(known, values), known.size - 1)
    return np.asarray((known[at] == values) & (values != NONE), np.bool_)
