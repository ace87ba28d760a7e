"""Read the files of NCCL profiler plugins: Inspector's records, or events as JSON lines.

They record calls in order, with sizes, algorithm and protocol, and the duration of each on the device. Start times are
not on the host's clock and computation is not recorded. So the timeline has calls without times, the durations become
measurements, and overlap is not computed.

Inspector's records are those of ext-profiler/inspector and plugins/profiler/inspector, format versions 4.0 to 4.3. A
file holds JSON objects one after another: one per line, pretty-printed, or as the items of one array.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.ingest.formats.nccl_profiler import EVENT_LINES, INSPECTOR, format_of
from overlapscope.ingest.formats.nccl_profiler.call_rows import CallRows, called_elements, rank_number, whole_number
from overlapscope.ingest.formats.nccl_profiler.event_trace import read_event_lines
from overlapscope.ingest.parsing.event_chunks import object_end
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import HEAD_BYTES, ReadContext, Reading
from overlapscope.timeline.run import MAX_RANKS, Source

EPOCH_US: Final = (10**15, 10**16)
"""Microseconds since 1970, for dates between 2001 and 2286."""
TOLERANCE: Final = 0.01
"""Inspector computes bandwidths from the same whole microseconds that it writes: they agree except for rounding."""
MAX_OBJECT_BYTES = 256 << 10
"""A longer object is treated as damage. An object over several lines is examined again with each line."""
_BETWEEN = b" \t\r\n,"


def read_nccl_profiler(path: Path, context: ReadContext) -> Reading:
    """Read the file of one process. Raises InputError when it cannot be read or holds no call."""
    first = next(ByteStream(path, context.max_bytes).blocks(), b"")
    format_ = format_of(first[:HEAD_BYTES])
    stream = ByteStream(path, context.max_bytes, context.progress)
    objects = JsonObjects(stream)
    found = read_inspector(objects) if format_ == INSPECTOR else read_event_lines(objects)
    calls, warnings = found.calls, found.warnings()
    if not len(calls):
        raise InputError(
            f"{display_path(path)}: holds no collective ({found.records} records); "
            "does its event mask include collectives?"
        )
    ranks, world = calls.world_ranks()
    if world is not None and len(calls.communicators) > 1:
        warnings.append(f"ranks are those in the largest communicator, {world}")
    return Reading(
        source=Source(
            path=display_path(path),
            format=format_ or EVENT_LINES,
            ranks=tuple(sorted(set(ranks[ranks >= 0].tolist()))),
            events=found.records,
            dropped=objects.dropped + found.unusable,
            truncated=stream.truncated or objects.truncated,
            warnings=(*stream.warnings, *warnings),
        ),
        timelines=calls.timelines(display_path(path)),
        world_size=calls.communicators[world].size if world else None,
        groups=calls.groups(),
        facts=calls.facts(display_path(path)),
    )


class InspectorRecords(msgspec.Struct):
    """Calls of Inspector's records, and counts of the records."""

    calls: CallRows = msgspec.field(default_factory=CallRows)
    records: int = 0
    unusable: int = 0
    sources: Counter[str] = msgspec.field(default_factory=Counter)
    """How often each timing source occurs, under Inspector's names."""
    lost: dict[str, int] = {}
    """Operations that were dropped from Inspector's ring buffer, by communicator and rank."""
    contradicted: int = 0

    def warnings(self) -> list[str]:
        """Return limitations of the figures that a user must know."""
        found = []
        lost = sum(self.lost.values())
        if lost:
            found.append(
                f"Inspector lost {lost} operations because its ring buffer was full; a larger "
                "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE or a shorter dump interval keeps them"
            )
        untimed = self.sources.total() - sum(self.sources[each] for each in self.sources if _is_device(each))
        if untimed:
            listed = ", ".join(
                f"{source}: {count}" for source, count in self.sources.most_common(5) if not _is_device(source)
            )
            found.append(f"{untimed} operations were not timed on the device ({listed}); their times are left out")
        if self.contradicted:
            found.append(f"the bandwidth of {self.contradicted} operations does not equal size / time")
        return found


def _is_device(timing_source: str) -> bool:
    return "gpu" in timing_source


def read_inspector(objects: Iterable[Mapping[str, Any]]) -> InspectorRecords:
    """Read the records of one process."""
    found = InspectorRecords()
    for record in objects:
        found.records += 1
        found.unusable += not _take(found, record)
    return found


def _take(found: InspectorRecords, record: Mapping[str, Any]) -> bool:
    header, metadata = record.get("header"), record.get("metadata")
    member = rank_number(header.get("rank")) if isinstance(header, dict) else None
    if member is None or not isinstance(header, dict):
        return False
    identity = header.get("id")
    name = identity if isinstance(identity, str) and identity else "unnamed"
    comm = found.calls.communicator(name)
    size, nodes = whole_number(header.get("n_ranks"), MAX_RANKS), whole_number(header.get("nnodes"), MAX_RANKS)
    comm.size, comm.nodes = size or comm.size, nodes or comm.nodes
    fields = comm.members.setdefault(member, {})
    if isinstance(metadata, dict):
        host, process = metadata.get("hostname"), whole_number(metadata.get("pid"))
        fields |= {"host": host if isinstance(host, str) else None, "process": process}
    stats = record.get("dump_stats")
    if isinstance(stats, dict):
        lost = [whole_number(stats.get(f"{kind}_dropped_total")) or 0 for kind in ("coll", "p2p")]
        found.lost[f"{name} {member}"] = max(sum(lost), found.lost.get(f"{name} {member}", 0))
        return True
    for kind in ("coll", "p2p"):
        performance = record.get(f"{kind}_perf")
        if isinstance(performance, dict):
            return _add(found, name, member, kind, performance, comm.size)
    return "proxy_trace" in record


def _add(
    found: InspectorRecords, comm: str, member: int, kind: str, call: Mapping[str, Any], ranks: int | None
) -> bool:
    spelled = call.get(kind)
    if not isinstance(spelled, str):
        return False
    op = canonical_operation("AlltoAll" if spelled == "All2All" else spelled) or spelled
    message, time_us = whole_number(call.get(f"{kind}_msg_size_bytes")), _real(call.get(f"{kind}_exec_time_us"))
    algbw, busbw = _real(call.get(f"{kind}_algobw_gbs")), _real(call.get(f"{kind}_busbw_gbs"))
    source = call.get(f"{kind}_timing_source")
    source = source if isinstance(source, str) else "not stated"
    found.sources[source] += 1
    size = None if spelled.endswith("V") else called_elements(op, message, ranks)  # AllGatherV: shares differ
    timed = _is_device(source) and bool(time_us)
    if timed and size and time_us and algbw and abs(size / time_us / 1000 - algbw) > TOLERANCE * algbw:
        found.contradicted += 1
    times, trace = call.get("event_trace_ts"), call.get("event_trace_sn")
    launch_us = whole_number(times.get(f"{kind}_start_ts")) if isinstance(times, dict) else None
    kernels = trace.get("kernel_events") if isinstance(trace, dict) else None
    found.calls.add(
        comm,
        member,
        seq=whole_number(call.get(f"{kind}_sn")),
        op=op,
        bytes=size,
        algorithm=_name(call.get(f"{kind}_algo")),
        protocol=_name(call.get(f"{kind}_proto")),
        channels=len(kernels)
        if isinstance(kernels, list) and kernels
        else whole_number(call.get(f"{kind}_n_channels")),
        launch_ns=launch_us * 1000 if launch_us is not None and EPOCH_US[0] < launch_us < EPOCH_US[1] else None,
        time_ns=time_us * 1000 if timed and time_us else None,
        algbw_gbs=algbw if timed and algbw else None,
        busbw_gbs=busbw if timed and algbw and busbw is not None else None,
    )
    return True


def _real(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if usable else None  # type: ignore[arg-type]


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value and value != "unknown" else None


class JsonObjects(msgspec.Struct):
    """Yields the JSON objects of a file as dictionaries; afterwards its fields count what was read."""

    stream: ByteStream
    dropped: int = 0
    truncated: bool = False
    """Whether the file ends within an object."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each object in order. Raises InputError as the stream does."""
        parts: list[bytes] = []
        size = depth = balanced_at = closed_at = 0
        for line in iter_lines(self.stream):
            text = line.strip(_BETWEEN)
            if parts and self._begins_anew(line, text, parts):
                self.dropped += 1
                parts = []
            piece = line
            if not parts:
                piece = line.lstrip(_BETWEEN)
                piece = piece[1:].lstrip(_BETWEEN) if piece[:1] == b"[" else piece
                if piece.rstrip(_BETWEEN) in (b"", b"]", b"{}]", b"{}"):
                    continue
                if b"{" not in piece:
                    self.dropped += 1
                    continue
                size = depth = balanced_at = closed_at = 0
            parts.append(piece)
            size += len(piece) + 1
            depth += line.count(b"{") - line.count(b"}")
            # When to look for the end of the object: braces within strings make their count unreliable. After a failed
            # attempt the text is examined again when it is twice as long, so the time stays at n log n.
            alone = len(parts) == 1 and text.endswith(b"}")
            balanced, closed = depth <= 0 and size >= balanced_at, line[:1] == b"}" and size >= closed_at
            if alone or balanced or closed or size > MAX_OBJECT_BYTES:
                found, rest = self._split(b"\n".join(parts))
                yield from found
                parts = [rest] if rest else []
                size = len(rest)
                balanced_at = 2 * size if balanced else balanced_at
                closed_at = 2 * size if closed else closed_at
        found, rest = self._split(b"\n".join(parts))
        yield from found
        if rest:
            self.truncated = True
            self.dropped += 1

    def _begins_anew(self, line: bytes, text: bytes, parts: list[bytes]) -> bool:
        """Return whether a line begins the next object, which shows that the previous one was cut.

        This is so when the line is a complete object after a single other line, or opens an object without the
        indentation that earlier lines had.
        """
        if line[:1] != b"{":
            return False
        if len(parts) == 1:
            return self._decoded(text) is not None
        return text == b"{" and parts[1][:1] in (b" ", b"\t")

    def _split(self, text: bytes) -> tuple[list[dict[str, Any]], bytes]:
        """Return the complete objects at the beginning of a text, and the text that follows them."""
        whole = self._decoded(text.strip(_BETWEEN))
        if whole is not None:
            return [whole], b""
        found: list[dict[str, Any]] = []
        at, stop = 0, len(text.rstrip(_BETWEEN + b"]"))
        while at < stop:
            if text[at : at + 1] != b"{":
                begin = text.find(b"{", at)
                if text[at : begin if begin >= 0 else len(text)].strip(_BETWEEN + b"]"):
                    self.dropped += 1
                if begin < 0:
                    return found, b""
                at = begin
            end = object_end(text, at, MAX_OBJECT_BYTES)
            if end is None:
                if len(text) - at < MAX_OBJECT_BYTES:
                    return found, text[at:]
                self.dropped += 1
                return found, b""
            value = self._decoded(text[at:end])
            if value is None:
                self.dropped += 1
            elif value:
                found.append(value)
            at = end
        return found, b""

    def _decoded(self, text: bytes) -> dict[str, Any] | None:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return value if isinstance(value, dict) else None
