"""Read the SQLite export of an Nsight Systems report: kernels, copies, launches and NVTX ranges of each rank in it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.display_path import shown, shown_name
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import GZIP_MAGIC
from overlapscope.ingest.communicator_members import member_facts
from overlapscope.ingest.device_recording import RankBuilt, order_note, rank_timelines
from overlapscope.ingest.formats.nsight import REPORT_MAGIC
from overlapscope.ingest.launch_environment import KNOWN, RankHint, rank_hint
from overlapscope.ingest.nsight_tables import KERNELS, NsightTables
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.sqlite_file import SqliteFile, as_text
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Source
from overlapscope.timeline.size_text import size_text

_VARIABLE: Final = re.compile(r"(?P<name>[A-Z0-9_]{3,40})=\"?(?P<value>[^\"]{0,40})\"?")


def _begins(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def read_nsight(path: Path, context: ReadContext) -> Reading:
    """Read one export. Raises InputError when it is a report that was not exported, or holds no device work."""
    name = shown(path)
    try:
        _require_export(path, context.max_bytes)
        behind = _has_log_ahead(path)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    with SqliteFile(path, context.progress) as file:
        tables = NsightTables(file)
        recording = tables.read()
        info = _info(file)
        damage = tuple(file.damage)
        views = _not_tables(file)
    if recording.work.start_ns.size == 0:
        why = f" ({damage[0]})" if damage else views or "; record with --trace=cuda,nvtx"
        raise InputError(f"{name}: holds no device work{why}")
    base_ns, time_note = _epoch(info)
    recording = replace(recording, base_ns=base_ns)
    built, left_out = rank_timelines(recording, context.classifier, source=name, truncated=bool(damage))
    hint = rank_hint(_variables(info), _arguments(info), len(built))
    warnings = [*damage, *time_note, *_counted(tables, left_out)]
    if behind:
        warnings.append("a write-ahead log lies beside it, which was not read: let the program that wrote it close it")
    warnings += _told_ranks(built, hint)
    warnings += list(dict.fromkeys(note for each in built for note in each.built.notes))
    groups = {group.name: group for each in built for group in each.built.groups}
    return Reading(
        source=Source(
            path=name,
            events=tables.events,
            repaired=tables.repaired,
            dropped=tables.dropped,
            truncated=bool(damage),
            unlinked=sum(each.built.unlinked for each in built),
            warnings=tuple(warnings),
        ),
        timelines=tuple(
            replace(each.built.timeline, rank=_rank(at, hint, len(built))) for at, each in enumerate(built)
        ),
        world_size=hint.world_size,
        groups=tuple(groups.values()),
        fingerprint=_fingerprint(info),
        facts=member_facts(recording),
        ranks_assumed=len(built) > 1 and hint.first is None,
    )


def _require_export(path: Path, max_bytes: int) -> None:
    """Raise InputError where the file must be exported or decompressed first, or is too large."""
    name = shown(path)
    if _begins(path, REPORT_MAGIC):
        raise InputError(
            f"{name}: is a report of Nsight Systems; export it with "
            f"`nsys export --type sqlite -o {shown_name(path.with_suffix('.sqlite'))} {shown_name(path)}`"
        )
    if _begins(path, GZIP_MAGIC):
        raise InputError(f"{name}: is a compressed SQLite export; decompress it first with `gunzip {shown_name(path)}`")
    if path.stat().st_size > max_bytes:
        raise InputError(f"{name}: holds more than {size_text(max_bytes)}; raise --max-gib if that is meant")


def _has_log_ahead(path: Path) -> bool:
    ahead_log = path.with_name(path.name + "-wal")
    return ahead_log.is_file() and ahead_log.stat().st_size > 0


def _rank(at: int, hint: RankHint, ranks: int) -> int:
    if hint.first is None and ranks == 1:
        return UNKNOWN_RANK
    return min((hint.first or 0) + at, MAX_RANKS)


def _told_ranks(built: list[RankBuilt], hint: RankHint) -> list[str]:
    if len(built) == 1:
        return [] if hint.first is None else [f"rank {hint.first}, as {hint.said_by} in its environment says"]
    return [order_note(built, "" if hint.first is None else f"; {hint.said_by} says that the first is {hint.first}")]


def _counted(tables: NsightTables, left_out: int) -> list[str]:
    notes = []
    if tables.dropped:
        notes.append(f"{tables.dropped} rows without sound times left out")
    if tables.repaired:
        notes.append(f"{tables.repaired} device events that end before they begin; taken as 0 long")
    if left_out:
        notes.append(f"{left_out} copies of processes that run no kernel left out")
    if tables.unended:
        notes.append(f"{tables.unended} NVTX ranges that never end left out")
    if tables.graphs:
        notes.append(
            f"{tables.graphs} CUDA graphs were recorded as a whole: what computes and what communicates in them is not "
            "known; record with --cuda-graph-trace=node"
        )
    if tables.unread_payloads:
        notes.append(f"{tables.unread_payloads} NCCL payloads are of an unknown layout: no sizes from them")
    return notes


def _not_tables(file: SqliteFile) -> str:
    return f"; {KERNELS} is no ordinary table" if KERNELS in file.others else ""


def _info(file: SqliteFile) -> Mapping[str, list[str]]:
    """Give the few facts that are used of the capture and the machine: values by name."""
    info: dict[str, list[str]] = {}
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        if {"name", "value"} <= set(file.columns(table)):
            for keys, values in file.rows(table, (), ("name", "value")):
                for name, value in zip(keys, values, strict=True):
                    info.setdefault(as_text(name) or "", []).append(as_text(value) or "")
    if "name" in file.columns("TARGET_INFO_GPU"):
        for (names,) in file.rows("TARGET_INFO_GPU", (), ("name",)):
            info.setdefault("GPU", []).extend(as_text(name) or "" for name in names)
    if "utcEpochNs" in file.columns("TARGET_INFO_SESSION_START_TIME"):
        for (times,) in file.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
            info.setdefault("utcEpochNs", []).extend(str(time) for time in times if time is not None)
    return info


def _epoch(info: Mapping[str, list[str]]) -> tuple[int, list[str]]:
    """Give what to add to times for nanoseconds since the Unix epoch; 0 with a note where the file does not say."""
    if "true" in info.get("EXPORT_PARAM_TIME_NORMALIZE", ()):
        return 0, []  # exported with --ts-normalize=true: they are since the epoch
    starts = {int(text) for text in info.get("utcEpochNs", ())}
    if len(starts) == 1 and 0 < (start := starts.pop()) < np.iinfo(np.int64).max // 4:
        return start, []
    return 0, ["the file does not say when its session began: times of several files cannot be compared"]


def _variables(info: Mapping[str, list[str]]) -> dict[str, str]:
    """Give the environment variables that tell a rank: of the process that was started, else of the device's agent."""
    found: dict[str, str] = {}
    texts = info.get("PROCESS_0:ENVIRONMENT_VARIABLE", [])
    agent = [part for text in info.get("DeviceEnvironment", ()) for part in text.split(";")]
    for text in (*texts, *agent):
        variable = _VARIABLE.fullmatch(text.strip())
        if variable and variable["name"] in KNOWN:
            found.setdefault(variable["name"], variable["value"])
    return found


def _arguments(info: Mapping[str, list[str]]) -> list[str]:
    arguments: list[str] = []
    while texts := info.get(f"PROCESS_0:ARGUMENT_{len(arguments)}"):
        arguments.append(texts[0])
    return arguments


def _fingerprint(info: Mapping[str, list[str]]) -> dict[str, str | int | None]:
    devices = sorted({name for name in info.get("GPU", ()) if name})
    driver = next(iter(info.get("CudaDriverVersion", ())), "")
    known: dict[str, str | int | None] = {}
    if len(devices) == 1:
        known["device"] = devices[0]
    if re.fullmatch(r"[0-9]{1,9}", driver):
        known["cuda_driver_version"] = int(driver)
    return known
