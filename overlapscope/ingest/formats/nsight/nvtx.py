"""Read the NVTX ranges of an Nsight Systems export, with the payloads that NCCL attached to its own ranges.

Nsight Systems exports payloads with --include-blobs=true, and as JSON of their fields by name (columns jsonText and
jsonTextId) with --include-json=true. A blob is a header (domain, schema, size of the payload, size of the whole) and
the payload, whose fields are described by the tables NVTX_PAYLOAD_SCHEMAS and NVTX_PAYLOAD_SCHEMA_ENTRIES. A blob whose
sizes, domain and schema do not agree with each other and with those tables is not read, and JSON is read where there is
no blob. The layout is the one that the project nsys-ai describes (measured with Nsight 2026); the field names are
NCCL's own (src/include/nvtx.h and nvtx_payload_schemas.h of NCCL). The payloads of NCCL's initialisation ranges name
the members of its communicators.
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.ingest.build.multi_rank import DeviceRecording, HostRanges
from overlapscope.ingest.build.nccl_api_ranges import NcclPayload
from overlapscope.ingest.build.user_marks import RangeNames
from overlapscope.ingest.formats.nsight.strings import STRINGS, StringTable, is_sound, process_of, thread_of
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.sqlite import SqliteFile, as_text
from overlapscope.timeline.columns import NONE, Codes, Ints, integers
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable, rows_named
from overlapscope.timeline.operations import possible_count

RANGES: Final = "NVTX_EVENTS"
_SCHEMAS: Final = "NVTX_PAYLOAD_SCHEMAS"
_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_PUSH_POP, _START_END = 59, 60
_NUMBERS: Final = ("start", "end", "globalTid", "textId", "domainId", "eventType")
_JSON, _JSON_ID = "jsonText", "jsonTextId"
_HEADER: Final = struct.Struct("<IIIIQQ")
_INT, _UINT64, _SIZE = 5, 18, 22
"""Entry types of NVTX: int, uint64_t, size_t."""
_FORMAT: Final = {_INT: struct.Struct("<i"), _UINT64: struct.Struct("<Q"), _SIZE: struct.Struct("<Q")}
_FIELDS: Final = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "No. of ranks",
    "Rank",
    "CUDA device",
    "Peer rank",
)
COMMUNICATOR, MESSAGE, MEMBERS, MEMBER, DEVICE, PEER = _FIELDS
MAX_BLOB: Final = 4096
_BEYOND: Final = 1 << 64
_WRITTEN: Final = re.compile(r"\d{1,3}(?:,\d{3})*|\d{1,20}")


class PayloadSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a payload in bytes, None where it is not recorded, and (offset, type) of each field by name."""

    size: int | None
    fields: Mapping[str, tuple[int, int]]


class NsightRanges(msgspec.Struct):
    """Reads the NVTX ranges of one export; its fields count what was read."""

    file: SqliteFile
    names: NameTable
    events: int = 0
    dropped: int = 0
    unended: int = 0
    """Ranges without an end."""
    unread_payloads: int = 0
    payloads: dict[int, NcclPayload] = {}
    """NCCL's payloads, by row of the ranges."""
    _parts: list[tuple[Ints, Ints, Ints, Codes]] = []
    _kept: int = 0

    def read(self) -> HostRanges:
        """Return all ranges that ended, with times as stored."""
        columns = self.file.columns(RANGES)
        names = RangeNames(self.names)
        strings = StringTable(file=self.file, code=names.code)
        schemas = self._schemas() if "binaryData" in columns else {}
        numbers = [name for name in (*_NUMBERS, _JSON_ID) if name in columns]
        texts = [
            name for name in ("text", "binaryData", _JSON) if name in columns and (name != "binaryData" or schemas)
        ]
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
        self,
        stored: dict[str, Any],
        rows: int,
        names: RangeNames,
        strings: StringTable,
        schemas: dict[Any, PayloadSchema],
    ) -> None:
        """Add one chunk of rows, given as lists by column."""
        self.events += rows
        absent = (None,) * rows
        start, end, thread, text_id, domain = (integers(stored.get(name, absent)) for name in _NUMBERS[:5])
        blobs, said, said_id = (stored.get(each, absent) for each in ("binaryData", _JSON, _JSON_ID))
        name = strings.codes(text_id)
        for row, text in enumerate(stored.get("text", ())):
            if text is not None:  # a row has the text itself, or the id of a registered text
                name[row] = names.code(as_text(text) or "")
        unended = end == NONE
        good = ~unended & (name >= 0) & is_sound(start) & is_sound(end) & (end >= start)
        self.unended += int(unended.sum())
        self.dropped += int((~good & ~unended).sum())
        of_nccl = good & rows_named(name, self.names.to_list(), _is_of_nccl)
        place = self._kept + np.cumsum(good) - 1
        for row in np.flatnonzero(of_nccl).tolist():
            stored_as = blobs[row] if isinstance(blobs[row], bytes) else self._json(said[row], said_id[row])
            if stored_as is not None:
                self._take_payload(int(place[row]), stored_as, int(domain[row]), schemas)
        self._kept += int(good.sum())
        self._parts.append((start[good], end[good], thread[good], name[good]))

    def _take_payload(self, place: int, stored: bytes | str, domain: int, schemas: dict[Any, PayloadSchema]) -> None:
        """Keep the payload of one of NCCL's ranges, which has `place` among those kept; count it where unreadable."""
        payload = decode(stored, domain, schemas) if isinstance(stored, bytes) else decode_json(stored)
        if payload is None:
            self.unread_payloads += 1
        else:
            self.payloads[place] = payload

    def _json(self, text: object, number: object) -> str | None:
        """Return a payload's JSON: its own text, else the one of StringIds with this id; None without."""
        if text is None and isinstance(number, int) and self.file.is_key(STRINGS, "id"):
            text = self.file.text_of(STRINGS, "id", "value", number)
        return as_text(text)

    def _schemas(self) -> dict[tuple[int, int], PayloadSchema]:
        """Return the payload schemas by (domain, id); those that processes describe differently are left out."""
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
            key: PayloadSchema(
                size=next(iter(sizes[key])), fields={name: next(iter(each)) for name, each in places.items()}
            )
            for key, places in fields.items()
            if len(sizes.get(key, ())) == 1 and all(len(each) == 1 for each in places.values())
        }

    def _rows(self, table: str, numbers: Sequence[str], *texts: str) -> Iterable[tuple[Any, ...]]:
        if {*numbers, *texts} <= set(self.file.columns(table)):
            for chunk in self.file.rows(table, numbers, texts):
                yield from zip(*chunk, strict=True)


def member_facts(recording: DeviceRecording) -> Facts:
    """Return each member once, in the order of joining; their ranks in the world are not recorded."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    order = sorted(recording.payloads.items(), key=lambda each: int(recording.ranges.start_ns[each[0]]))
    for row, payload in order:
        if payload.group is not None and payload.members is not None and payload.member is not None:
            key = int(recording.ranges.process[row])
            entry = {"communicator": payload.group, "member": payload.member, "members": payload.members}
            here = {"process": recording.process_ids.get(key, key), "device": payload.device}
            found.setdefault((payload.group, payload.member), {**entry, **here})
    names = NameTable()
    table = fact_table(Members, list(found.values()), names)
    return Facts(names=tuple(names.to_list()), members=table)


def decode(blob: bytes, domain: int, schemas: Mapping[tuple[int, int], PayloadSchema]) -> NcclPayload | None:
    """Return the payload of a blob of a domain; None when anything about it is inconsistent. `schemas` is by (domain,
    id).
    """
    if not _HEADER.size <= len(blob) <= MAX_BLOB:
        return None
    of_domain, _, schema_id, _, size, whole = _HEADER.unpack_from(blob)
    schema = schemas.get((domain, schema_id))
    if schema is None or of_domain != domain or whole != len(blob) or size != len(blob) - _HEADER.size:
        return None
    if schema.size not in (None, size):
        return None
    values: dict[str, int] = {}
    for name, (offset, kind) in schema.fields.items():
        layout = _FORMAT.get(kind)
        if layout is None:
            continue
        if offset < 0 or offset + layout.size > size:
            return None
        values[name] = layout.unpack_from(blob, _HEADER.size + offset)[0]
    return _payload(values)


def decode_json(text: str) -> NcclPayload | None:
    """Return the payload written as JSON, a number for each field by its name; None where none can be read."""
    if len(text) > MAX_BLOB:
        return None
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    found = {name: number for name in _FIELDS if (number := _number(fields.get(name))) is not None}
    values = {
        name: number for name, number in found.items() if name == COMMUNICATOR or possible_count(number) is not None
    }
    return _payload(values) if values else None


def _number(value: object) -> int | None:
    """Return a whole number of JSON, also one written as text with commas between thousands."""
    if isinstance(value, str) and _WRITTEN.fullmatch(value):
        value = int(value.replace(",", ""))
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _BEYOND else None


def _is_of_nccl(name: str) -> bool:
    return name.startswith("nccl")


def _payload(values: Mapping[str, int]) -> NcclPayload:
    """Return the payload with these values by the names of its fields."""
    communicator, members, peer = values.get(COMMUNICATOR), values.get(MEMBERS), values.get(PEER)
    return NcclPayload(
        group=f"0x{communicator % _BEYOND:x}" if communicator else None,
        members=members if members is not None and members > 0 else None,
        member=values.get(MEMBER),
        device=values.get(DEVICE),
        message_bytes=possible_count(values[MESSAGE]) if MESSAGE in values else None,
        peer=peer if peer is not None and peer >= 0 else None,
    )
