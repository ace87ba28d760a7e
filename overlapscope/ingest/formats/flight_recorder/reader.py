"""Read dumps of torch's flight recorder: which collectives a rank had entered, and how far it had come in each group.

Written by torch/csrc/distributed/c10d/FlightRecorder (until torch 2.4 TraceUtils.h), as a pickle or as JSON, in
versions 1.4 to 2.10. Its discovery times are those of a watchdog that looks every 100 ms; they are not times of device
work and are not used as such.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.call_timeline import timeline_from_calls
from overlapscope.ingest.formats.flight_recorder import PICKLE
from overlapscope.ingest.formats.flight_recorder.entries import NS_PER_MS, RecordedCall, called_at, read_entries, text
from overlapscope.ingest.formats.flight_recorder.groups import GroupPosition, group_positions, read_groups, world_size
from overlapscope.ingest.formats.flight_recorder.safe_pickle import decode_plain
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.parsing.json_values import decode_json
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import NONE, Collectives, Columns, make, or_missing
from overlapscope.timeline.facts import INFO, TIMEOUT, Facts, Figures, Messages, Progress
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Group, RankTimeline, Source

MAX_BYTES: Final = 256 << 20
"""A buffer of 100,000 calls with their stacks takes a quarter of it."""
MAX_TIMEOUTS: Final = 100
"""Further calls that timed out are counted, not listed."""
NEWEST_MAJOR: Final = 2
T = TypeVar("T", bound=Columns)
_RANK_NUMBER: Final = re.compile(r"rank[-_.=]?\d", re.IGNORECASE)
_RANK_AT_END: Final = re.compile(r"(?<!\d)(\d{1,7})(?:\.(?:json|pkl|pickle|bin))?(?:\.gz)?$")


def read_flight_recorder(path: Path, context: ReadContext) -> Reading:
    """Read one dump, pickle or JSON, plain or gzip.

    Raises InputError, with the byte offset, for a pickle that is more than plain data, and for a file without a dump.
    """
    dump, stream = _decoded(path, context)
    warnings = list(stream.warnings)
    if not isinstance(dump, dict) or not any(key in dump for key in ("entries", "pg_status", "pg_config")):
        raise InputError(
            f"{display_path(path)}: is not a flight-recorder dump: it holds no entries, pg_status or pg_config"
        )
    version = text(dump.get("version"))
    warnings += _doubts(version)
    numbered = version is not None and version.startswith("1.")
    calls, dropped = read_entries(dump.get("entries"))
    groups = read_groups(dump.get("pg_config"), calls)
    records = [call.record for call in calls]
    status = dump.get("pg_status")
    # A group has a status from its first call on, whether calls are dumped or not.
    complete = records == list(range(len(calls))) if calls else status == {}
    rows = group_positions(status, calls, groups, complete=complete)
    uncounted = _uncounted(calls) if numbered else set()
    if uncounted:
        warnings.append(
            f"version {version} counts sends and collectives together: the calls of "
            f"{len(uncounted)} groups that send have no number"
        )
    elif _counts_all_together(calls):
        uncounted = {call.group for call in calls}
        warnings.append(
            "counts the calls of all groups together, as torchcomms does: they have no number in their group"
        )
    rows = tuple(row for row in rows if row.group not in uncounted)
    rank = _rank_of(path, groups)
    backends = {call.backend for call in calls if call.backend is not None}
    timeline = _timeline(path, rank, calls, groups, uncounted, on_host=backends == {"gloo"})
    return Reading(
        source=Source(
            path=display_path(path), events=len(calls), dropped=dropped, truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
        timelines=(timeline,),
        world_size=world_size(groups, numbered=numbered),
        groups=groups,
        fingerprint=_fingerprint(dump, backends),
        facts=_facts(path, rank, calls, groups, rows, records),
    )  # fmt: skip


def _decoded(path: Path, context: ReadContext) -> tuple[Any, ByteStream]:
    stream = ByteStream(path, min(context.max_bytes, MAX_BYTES), context.progress)
    content = b"".join(stream.blocks())
    if content[:1] != PICKLE:
        return decode_json(content, stream), stream
    dump, length = decode_plain(content, display_path(path))
    if length < len(content):
        stream.warnings.append(f"{len(content) - length} bytes after the pickle were left out")
    return dump, stream


def _doubts(version: str | None) -> list[str]:
    major = re.match(r"\d{1,9}", version or "")
    if major is None:
        return ["states no version; read like the known versions"]
    if int(major[0]) > NEWEST_MAJOR:
        return [
            f"is of version {version}, newer than the known ones (up to 2.10): changed fields may be read incorrectly"
        ]
    return []


def _uncounted(calls: Sequence[RecordedCall]) -> set[str | None]:
    """Return the groups of an old dump whose single count includes sends and batches and differs between ranks."""
    return {call.group for call in calls if call.point_to_point or call.closes_batch}


def _counts_all_together(calls: Sequence[RecordedCall]) -> bool:
    """Return whether one count includes calls that torch counts separately: of several groups, or sends."""
    seqs = [call.collective_seq for call in calls]
    runs_on = all(before is not None and now == before + 1 for before, now in pairwise(seqs))
    sends = any(call.op in POINT_TO_POINT and not call.point_to_point for call in calls)
    return runs_on and (sends or (len(calls) > 1 and len({call.group for call in calls}) > 1))


def _rank_of(path: Path, groups: Sequence[Group]) -> int:
    """Return the rank from the file's name behind the recorder's prefix; a number behind `rank` is read by others.

    A number that is not a member of any group is not a rank.
    """
    found = _RANK_AT_END.search(path.name)
    if found is None or _RANK_NUMBER.search(path.name) or int(found[1]) > MAX_RANKS:
        return UNKNOWN_RANK
    members = {rank for group in groups for rank in group.ranks or ()}
    return int(found[1]) if not members or int(found[1]) in members else UNKNOWN_RANK


def _timeline(
    path: Path,
    rank: int,
    calls: Sequence[RecordedCall],
    groups: Sequence[Group],
    uncounted: set[str | None],
    *,
    on_host: bool,
) -> RankTimeline:
    names = NameTable()
    sizes = {group.name: group.size for group in groups}
    total = len(calls)
    collectives = make(
        Collectives,
        total,
        recording=0,
        group=names.encode([call.group for call in calls]),
        seq=[NONE if call.group in uncounted else or_missing(call.seq) for call in calls],
        op=names.encode([call.op for call in calls]),
        executed_op=[names.code("send_recv") if call.closes_batch and call.point_to_point else -1 for call in calls],
        dtype=[-1 if call.dtype is None else names.code(call.dtype) for call in calls],
        elements=[or_missing(call.elements(sizes.get(call.group))) for call in calls],
        bytes=[or_missing(call.bytes(sizes.get(call.group))) for call in calls],
        group_size=[or_missing(sizes.get(call.group)) for call in calls],
        launch_ns=[or_missing(call.launch_ns) for call in calls],
        start_ns=NONE,
        end_ns=NONE,
        state=[call.state for call in calls],
    )
    source = names.code(display_path(path))
    return timeline_from_calls(collectives, names, rank=rank, source=source, has_device=not on_host)


def _fingerprint(dump: Mapping[Any, Any], backends: set[str]) -> dict[str, str | int | None]:
    backend = next(iter(backends)) if len(backends) == 1 else None
    nccl, library = text(dump.get("nccl_version")), text(dump.get("comm_lib_version"))
    if nccl is None and backend == "nccl":
        nccl, library = library, None
    known = {"backend": backend, "nccl_version": nccl, "comm_lib_version": library}
    return {key: value for key, value in known.items() if value}


def _facts(
    path: Path,
    rank: int,
    calls: Sequence[RecordedCall],
    groups: Sequence[Group],
    positions: Sequence[GroupPosition],
    records: Sequence[int | None],
) -> Facts:
    names = NameTable()
    common = {"source": display_path(path), "rank": None if rank == UNKNOWN_RANK else rank}
    sizes = {group.name: group.size for group in groups}

    def table(kind: type[T], rows: Iterable[Mapping[str, Any]]) -> T:
        return fact_table(kind, [{**common, **row} for row in rows], names)

    return Facts(
        progress=table(Progress, (_progress(each, sizes) for each in positions)),
        messages=table(Messages, _messages(calls, records)),
        figures=table(Figures, _durations(calls, sizes)),
        names=tuple(names.to_list()),
    )


def _progress(position: GroupPosition, sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the progress in one group, and the collective that is pending in it."""
    known = {name: getattr(position, name) for name in ("group", "backend", "enqueued", "started", "completed")}
    call = position.pending
    if call is None:
        return known
    elements = call.elements(sizes.get(call.group))
    known |= {"pending": call.seq, "op": call.op, "elements": elements, "called_at": called_at(call.frames)}
    return known | ({"stuck_at": call.seq, "timeout_ns": call.timeout_ns} if call.timed_out else {})


def _messages(calls: Sequence[RecordedCall], records: Sequence[int | None]) -> list[dict[str, Any]]:
    """Return messages about calls that timed out, and about entries that the recorder had overwritten."""
    texts = []
    late = [call for call in calls if call.timed_out]
    for call in late[:MAX_TIMEOUTS]:
        limit = f" after {call.timeout_ns / NS_PER_MS / 1000:g} s" if call.timeout_ns else ""
        place = called_at(call.frames)
        where = "" if place is None else f", called at {place}"
        number = "" if call.seq is None else f" #{call.seq}"
        texts.append((TIMEOUT, f"{call.op}{number} of group {call.group!r} timed out{limit}{where}"))
    if len(late) > MAX_TIMEOUTS:
        texts.append((TIMEOUT, f"{len(late) - MAX_TIMEOUTS} more calls timed out"))
    if records and records[0]:
        texts.append((INFO, f"the {records[0]} calls before these were overwritten (TORCH_FR_BUFFER_SIZE)"))
    return [{"kind": kind, "text": text} for kind, text in texts]


def _durations(calls: Sequence[RecordedCall], sizes: Mapping[str, int | None]) -> Iterator[dict[str, Any]]:
    """Yield a summary of the durations that TORCH_NCCL_ENABLE_TIMING measured.

    They are times between events around a call, including the wait for other ranks. They have no start time, so overlap
    cannot be computed from them; the shortest of a kind is an upper bound of its transfer time.
    """
    kinds: dict[str, list[float]] = {}
    for call in calls:
        if call.duration_ms is not None:
            size = call.bytes(sizes.get(call.group))
            shape = "" if size is None else f" {size} B {call.dtype}"
            kinds.setdefault(f"{call.op}{shape}, group {call.group}", []).append(call.duration_ms)
    for subject, values in sorted(kinds.items()):
        summary = {"call_ms_min": min(values), "call_ms_median": median(values), "calls_count": len(values)}
        yield from ({"subject": subject, "name": name, "value": value} for name, value in summary.items())
