"""The NVTX ranges of an Nsight Systems export, with what NCCL attached to its own."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.ingest.api_ranges import Payload
from overlapscope.ingest.device_recording import HostRanges
from overlapscope.ingest.nccl_payload import Schema, decode
from overlapscope.ingest.nsight_strings import Strings
from overlapscope.ingest.nsight_times import is_sound, process_of, thread_of
from overlapscope.ingest.nvtx_names import RangeNames
from overlapscope.ingest.sqlite_file import SqliteFile, as_text
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints, integers
from overlapscope.timeline.names import NameTable

RANGES: Final = "NVTX_EVENTS"
_SCHEMAS: Final = "NVTX_PAYLOAD_SCHEMAS"
_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_PUSH_POP, _START_END = 59, 60
_NUMBERS: Final = ("start", "end", "globalTid", "textId", "domainId", "eventType")


class NsightRanges(msgspec.Struct):
    """Reads the ranges of one export; the counts tell what it met."""

    file: SqliteFile
    names: NameTable
    events: int = 0
    dropped: int = 0
    unended: int = 0
    """Ranges without an end."""
    unread_payloads: int = 0
    payloads: dict[int, Payload] = {}
    """What NCCL attached, by row of the ranges."""
    _parts: list[tuple[Ints, Ints, Ints, Codes]] = []
    _kept: int = 0

    def read(self) -> HostRanges:
        """Give all ranges that ended, with their times as stored."""
        columns = self.file.columns(RANGES)
        names = RangeNames(self.names)
        strings = Strings(file=self.file, code=names.code)
        schemas = self._schemas() if "binaryData" in columns else {}
        numbers = [name for name in _NUMBERS if name in columns]
        texts = [name for name in ("text", "binaryData") if name in columns and (name == "text" or schemas)]
        where = f"WHERE eventType IN ({_PUSH_POP},{_START_END})" if "eventType" in columns else ""
        if {"start", "end"} <= set(numbers):
            for chunk in self.file.rows(RANGES, numbers, texts, where):
                stored = dict(zip([*numbers, *texts], chunk, strict=True))
                self._take(stored, len(chunk[0]), names, strings, schemas)
        nothing = np.empty(0, np.int64)
        empty = (nothing, nothing, nothing, np.empty(0, np.int32))
        start, end, thread, name = (np.concatenate(part) for part in zip(*(self._parts or [empty]), strict=True))
        return HostRanges(
            process=process_of(thread),
            thread=thread_of(thread),
            name=name,
            start_ns=start,
            end_ns=end,
            is_annotation=names.annotations(name),
        )

    def _take(
        self, stored: dict[str, Any], rows: int, names: RangeNames, strings: Strings, schemas: dict[Any, Schema]
    ) -> None:
        """Take one chunk of rows, given as lists by column."""
        self.events += rows
        absent = (None,) * rows
        start, end, thread, text_id, domain = (integers(stored.get(name, absent)) for name in _NUMBERS[:5])
        name = strings.codes(text_id)
        for row, text in enumerate(stored.get("text", ())):
            if text is not None:  # the text itself stands there, or the id of a registered one
                name[row] = names.code(as_text(text) or "")
        unended = end == NONE
        good = ~unended & (name >= 0) & is_sound(start) & is_sound(end) & (end >= start)
        self.unended += int(unended.sum())
        self.dropped += int((~good & ~unended).sum())
        self._take_payloads(stored.get("binaryData", ()), domain, name, good, schemas)
        self._kept += int(good.sum())
        self._parts.append((start[good], end[good], thread[good], name[good]))

    def _take_payloads(
        self, blobs: Iterable[Any], domain: Ints, name: Codes, good: Flags, schemas: dict[Any, Schema]
    ) -> None:
        there = [(row, blob) for row, blob in enumerate(blobs) if isinstance(blob, bytes) and good[row]]
        if not there:
            return
        spelled = self.names.to_list()
        place = self._kept + np.cumsum(good) - 1
        for row, blob in there:
            if spelled[name[row]].startswith("nccl"):
                payload = decode(blob, int(domain[row]), schemas)
                if payload is None:
                    self.unread_payloads += 1
                else:
                    self.payloads[int(place[row])] = payload

    def _schemas(self) -> dict[tuple[int, int], Schema]:
        """Give the payload schemas by (domain, id); one that processes describe differently is left out."""
        sizes: dict[tuple[int, int], set[int | None]] = {}
        for domain, schema, size in self._rows(_SCHEMAS, ("domainId", "schemaId", "payloadSize")):
            sizes.setdefault((domain, schema), set()).add(size)
        fields: dict[tuple[int, int], dict[str, set[tuple[int, int]]]] = {}
        entries = self._rows(_ENTRIES, ("domainId", "schemaId", "type", "offset"), "name")
        for domain, schema, kind, offset, name in entries:
            if kind is not None and name is not None:
                found = fields.setdefault((domain, schema), {}).setdefault(as_text(name) or "", set())
                found.add((offset or 0, kind))  # the first field's offset is NULL
        return {
            key: Schema(size=next(iter(sizes[key])), fields={name: next(iter(each)) for name, each in places.items()})
            for key, places in fields.items()
            if len(sizes.get(key, ())) == 1 and all(len(each) == 1 for each in places.values())
        }

    def _rows(self, table: str, numbers: Sequence[str], *texts: str) -> Iterable[tuple[Any, ...]]:
        if {*numbers, *texts} <= set(self.file.columns(table)):
            for chunk in self.file.rows(table, numbers, texts):
                yield from zip(*chunk, strict=True)
