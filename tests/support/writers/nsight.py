"""Write small databases like those of `nsys export --type sqlite`, of several versions."""

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

PUSH_POP, START_END, MARK = 59, 60, 34
EPOCH_NS = 1_779_782_330_176_752_435


def global_pid(pid: int) -> int:
    """Return the serialized id of a process on machine 1."""
    return (1 << 48) | (pid << 24)


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start: int
    end: int
    pid: int = 100
    device: int = 0
    stream: int = 7
    correlation: int = 0


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    start: int
    end: int
    kind: int | None = 8
    """None for a memset."""
    pid: int = 100
    device: int = 0
    stream: int = 7
    correlation: int = 0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start: int
    end: int
    pid: int = 100
    tid: int = 100
    correlation: int = 0


class Range(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    start: int
    end: int | None
    pid: int = 100
    tid: int = 100
    kind: int = PUSH_POP
    domain: int = 0
    blob: bytes | None = None
    json: str | None = None


class Export(msgspec.Struct, frozen=True, kw_only=True):
    kernels: Sequence[Kernel] = ()
    copies: Sequence[Copy] = ()
    calls: Sequence[Call] = ()
    ranges: Sequence[Range] = ()
    graphs: Sequence[Kernel] = ()
    environment: Mapping[str, str] = {}
    arguments: Sequence[str] = ()
    epoch_ns: int | None = EPOCH_NS
    session_ns: tuple[int, int] | None = None
    """When the session began and ended on the system's clock."""
    metadata: Mapping[str, str] = {}
    schemas: Sequence[tuple[int, int, int, Mapping[str, tuple[int | None, int]]]] = ()
    """(domain, schema, payload size, {field: (offset, type)})."""
    version: str = "new"
    """`new`: 2026; `old`: text without textId, no graph nodes; `bare`: no process on device rows, no key on strings."""

    def write(self, path: Path) -> Path:
        """Write the export; tables without rows are not created, as by Nsight."""
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as db, db:
            self._write(db)
        db.close()
        return path

    def _write(self, db: sqlite3.Connection) -> None:
        strings: dict[str, int] = {}

        def code(text: str) -> int:
            return strings.setdefault(text, 1000 + len(strings))

        key = "" if self.version == "bare" else " NOT NULL PRIMARY KEY"
        db.execute(f"CREATE TABLE StringIds (id INTEGER{key}, value TEXT NOT NULL)")
        place = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
        place += "correlationId INTEGER" + ("" if self.version == "bare" else ", globalPid INTEGER")
        extra = ", mangledName INTEGER, graphNodeId INTEGER" if self.version == "new" else ""
        if self.kernels:
            db.execute(
                f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({place}, demangledName INTEGER, shortName INTEGER{extra})"
            )
        for each in self.kernels:
            names = [code(each.name), code(each.name.partition("(")[0]), *([None, None] if extra else [])]
            self._insert(db, "CUPTI_ACTIVITY_KIND_KERNEL", [*self._place(each), *names])
        if self.graphs:
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({place}, graphId INTEGER)")
        for each in self.graphs:
            self._insert(db, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [*self._place(each), 1])
        copies = [copy for copy in self.copies if copy.kind is not None]
        if copies:
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({place}, bytes INTEGER, copyKind INTEGER)")
        for copy in copies:
            self._insert(db, "CUPTI_ACTIVITY_KIND_MEMCPY", [*self._place(copy), 64, copy.kind])
        sets = [copy for copy in self.copies if copy.kind is None]
        if sets:
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({place}, value INTEGER)")
        for copy in sets:
            self._insert(db, "CUPTI_ACTIVITY_KIND_MEMSET", [*self._place(copy), 0])
        if self.calls:
            db.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, "
                "globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER)"
            )
        for call in self.calls:
            thread = global_pid(call.pid) | call.tid
            row = [call.start, call.end, 0, thread, call.correlation, code(call.name), 0]
            self._insert(db, "CUPTI_ACTIVITY_KIND_RUNTIME", row)
        if self.ranges:
            text = "text TEXT" if self.version == "old" else "text TEXT, textId INTEGER"
            blob = ", binaryData BLOB" if self.schemas else ""
            blob += ", jsonTextId INTEGER, jsonText TEXT" if self._as_json else ""
            db.execute(
                "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
                f"globalTid INTEGER, domainId INTEGER, {text}{blob})"
            )
        for at, each_range in enumerate(self.ranges):
            # Nsight writes the text itself, or the id of a registered string.
            inline = self.version == "old" or at % 2 == 0
            said = [each_range.text] if inline else [None]
            if self.version != "old":
                said.append(None if inline else code(each_range.text))
            thread = global_pid(each_range.pid) | each_range.tid
            row = [each_range.start, each_range.end, each_range.kind, thread, each_range.domain, *said]
            row += [each_range.blob] if self.schemas else []
            if self._as_json:  # as with names, the text itself or the id of a registered string
                text = each_range.json
                row += [None, text] if inline or text is None else [code(text), None]
            self._insert(db, "NVTX_EVENTS", row)
        if self.schemas:
            db.execute("CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, payloadSize INTEGER)")
            db.execute(
                "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, "
                "type INTEGER, name TEXT, offset INTEGER)"
            )
        for domain, schema, size, fields in self.schemas:
            self._insert(db, "NVTX_PAYLOAD_SCHEMAS", [domain, schema, size])
            for idx, (name, (offset, kind)) in enumerate(fields.items()):
                self._insert(db, "NVTX_PAYLOAD_SCHEMA_ENTRIES", [domain, schema, idx, kind, name, offset])
        if self.epoch_ns is not None:
            system = ", systemClockNs INTEGER" if self.session_ns else ""
            db.execute(f"CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT{system})")
            began = [self.epoch_ns, "2026-05-26T07:58:50", *(self.session_ns or ())[:1]]
            self._insert(db, "TARGET_INFO_SESSION_START_TIME", began)
        if self.session_ns is not None:
            db.execute("CREATE TABLE ANALYSIS_DETAILS (startTime INTEGER, stopTime INTEGER)")
            self._insert(db, "ANALYSIS_DETAILS", self.session_ns)
        facts = [("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{text}"') for name, text in self.environment.items()]
        facts += [(f"PROCESS_0:ARGUMENT_{at}", text) for at, text in enumerate(self.arguments)]
        if facts:
            db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT)")
        for fact in facts:
            self._insert(db, "META_DATA_CAPTURE", list(fact))
        if self.metadata:
            db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
        for fact in self.metadata.items():
            self._insert(db, "META_DATA_EXPORT", list(fact))
        for text, number in strings.items():
            self._insert(db, "StringIds", [number, text])

    @property
    def _as_json(self) -> bool:
        return any(each.json is not None for each in self.ranges)

    def _place(self, each: Kernel | Copy) -> list[int]:
        process = [] if self.version == "bare" else [global_pid(each.pid)]
        return [each.start, each.end, each.device, 1, each.stream, each.correlation, *process]

    @staticmethod
    def _insert(db: sqlite3.Connection, table: str, row: Sequence[object]) -> None:
        db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)


def payload(domain: int, schema: int, body: bytes) -> bytes:
    """Return a blob: the header, then the payload."""
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), 32 + len(body)) + body
