"""Read the SQLite export of an Nsight Systems report: kernels, copies, launches and NVTX ranges of each rank in it.

The rank of a recorded process comes from the environment and the command line it was started with. Only the variables
named here are read, because an environment holds secrets.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_name, display_path, size_text
from overlapscope.errors import InputError
from overlapscope.ingest.build.multi_rank import BuiltRank, device_order_note, rank_timelines
from overlapscope.ingest.formats.nsight import REPORT_MAGIC
from overlapscope.ingest.formats.nsight.nvtx import member_facts
from overlapscope.ingest.formats.nsight.tables import KERNELS, NsightTables
from overlapscope.ingest.parsing.gzip_stream import GZIP_MAGIC
from overlapscope.ingest.parsing.json_values import hash_of
from overlapscope.ingest.parsing.sqlite import SqliteFile, as_text
from overlapscope.ingest.reader import ReadContext, Reading, rank_from_path
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Source

_VARIABLE: Final = re.compile(r"(?P<name>[A-Z0-9_]{3,40})=\"?(?P<value>[^\"]{0,40})\"?")
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables of rank and world size, by launcher; the first that is set decides."""
_SESSION_TIMES: Final = (
    ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
    ("TARGET_INFO_SESSION_START_TIME", "systemClockNs"),
    ("ANALYSIS_DETAILS", "stopTime"),
)
"""Tables and columns that say when the session began, on two clocks, and when it ended, on the system's clock."""
MACHINE_BITS: Final = 48
"""Bits of a process key below those that tell machines (hardware and virtual machine) apart."""
KNOWN: Final = frozenset(name for pair in _VARIABLES for name in pair if name)
_OPTION: Final = re.compile(r"--?(?P<name>nnodes|node[-_]rank|nproc[-_]per[-_]node)(?:=(?P<value>.*))?")


def read_nsight(path: Path, context: ReadContext) -> Reading:
    """Read one export. Raises InputError when it is a report that was not exported, holds no device work, or its
    kernels cannot be read."""
    name = display_path(path)
    try:
        _require_export(path, context.max_bytes)
        log_ahead = path.with_name(path.name + "-wal")
        behind = log_ahead.is_file() and log_ahead.stat().st_size > 0
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
    with SqliteFile(path, context.progress) as file:
        tables = NsightTables(file)
        recording = tables.read()
        info = _info(file)
        damage = tuple(file.damage)
        views = f"; {KERNELS} is no ordinary table" if KERNELS in file.others else ""
    if tables.lost_kernels:
        why = f"table {KERNELS} is damaged from its first row on"
        raise InputError(f"{name}: its kernels cannot be read ({why}): copy the file again, or export it anew")
    if recording.work.start_ns.size == 0:
        why = f" ({damage[0]})" if damage else views or "; record with --trace=cuda,nvtx"
        raise InputError(f"{name}: holds no device work{why}")
    work = recording.work
    base_ns, time_note = _epoch(info, int(work.start_ns.min()), int(work.end_ns.max()))
    recording = replace(recording, base_ns=base_ns)
    built, left_out = rank_timelines(recording, context.classifier, source=name, truncated=bool(damage))
    hint = rank_hint(_variables(info), _arguments(info), [each.unit.device for each in built])
    warnings = [*damage, *time_note, *_counted(tables, left_out)]
    if behind:
        warnings.append("the write-ahead log beside it was not read: close the program that wrote the database")
    ranks = _ranks(built, hint, path)
    by_device = hint.assumed and ranks != [UNKNOWN_RANK]
    warnings += [] if hint.assumed else _rank_notes(built, hint)
    warnings += list(dict.fromkeys(note for each in built for note in each.built.notes))
    warnings += _no_payloads(info, built)
    groups = {group.name: group for each in built for group in each.built.groups}
    clock = _clock(info, built, name)
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
            replace(each.built.timeline, rank=rank, recorded=clock) for each, rank in zip(built, ranks, strict=True)
        ),
        world_size=hint.world_size,
        groups=tuple(groups.values()),
        fingerprint=_fingerprint(info),
        facts=member_facts(recording),
        peers_in_groups=True,
        ranks_assumed=by_device or (len(built) > 1 and hint.first is None),
        assumption=_assumption(built, hint, ranks[0]) if by_device else "",
    )


def _require_export(path: Path, max_bytes: int) -> None:
    """Raise InputError when the file must be exported or decompressed first, or is too large."""
    name = display_path(path)
    with open(path, "rb") as file:
        begin = file.read(len(REPORT_MAGIC))
    if begin == REPORT_MAGIC:
        raise InputError(
            f"{name}: is an Nsight Systems report; export it with "
            f"`nsys export --type sqlite -o {display_name(path.with_suffix('.sqlite'))} {display_name(path)}`"
        )
    if begin.startswith(GZIP_MAGIC):
        raise InputError(
            f"{name}: is a compressed SQLite export; decompress it first with `gunzip {display_name(path)}`"
        )
    if path.stat().st_size > max_bytes:
        raise InputError(f"{name}: holds more than {size_text(max_bytes)}; raise --max-gib to read it")


class RankHint(msgspec.Struct, frozen=True, kw_only=True):
    """Rank of a recording's first process and world size, from its environment; None where unknown."""

    first: int | None = None
    assumed: bool = False
    """Whether `first` is the rank of its node's device 0, and each process is assumed to have its device's number in
    the node: fewer processes were recorded than the node has."""
    world_size: int | None = None
    said_by: str = ""


def _ranks(built: list[BuiltRank], hint: RankHint, path: Path) -> list[int]:
    """Return the rank of each process; of a single one without a hint, or with a mere assumption against its file's
    name, UNKNOWN_RANK."""
    if len(built) == 1 and (hint.first is None or (hint.assumed and rank_from_path(path) is not None)):
        return [UNKNOWN_RANK]
    places = [each.unit.device for each in built] if hint.assumed else range(len(built))
    return [min((hint.first or 0) + place, MAX_RANKS) for place in places]


def _clock(info: Mapping[str, list[str]], built: list[BuiltRank], name: str) -> dict[str, str]:
    """Return the clock of a report's ranks: of one session on one machine, as process keys tell machines apart."""
    machines = {each.unit.process >> MACHINE_BITS for each in built}
    starts = sorted(set(info.get("utcEpochNs", ())))
    if len(machines) > 1 or len(starts) > 1:
        return {}
    return {"clock": f"nsys session {starts[0] if starts else hash_of(name.encode())}"}


def _no_payloads(info: Mapping[str, list[str]], built: list[BuiltRank]) -> list[str]:
    """Return a note where calls lack their sizes, as the export left out what NCCL said of them."""
    without = [info.get(f"EXPORT_PARAM_INCLUDE_{each}") == ["false"] for each in ("BLOBS", "JSON")]
    calls = [each.built.timeline.collectives for each in built]
    if not any(size(each) for each in calls) or not all(without) or any((each.bytes != NONE).any() for each in calls):
        return []
    return [
        "sizes, groups and peers of calls were not exported, by which they are matched and compared: nsys export "
        "--type sqlite --include-blobs=true"
    ]


def _rank_notes(built: list[BuiltRank], hint: RankHint) -> list[str]:
    if len(built) == 1:
        where = "on its command line" if hint.said_by.startswith("--") else "in its environment"
        return [] if hint.first is None else [f"rank {hint.first}, as {hint.said_by} {where} says"]
    return [
        device_order_note(built, "" if hint.first is None else f"; {hint.said_by} says that the first is {hint.first}")
    ]


def _assumption(built: list[BuiltRank], hint: RankHint, rank: int) -> str:
    device = built[0].unit.device
    more = f" (device {device}), the others likewise" if len(built) > 1 else f": device {device} of its node"
    return f"it does not name its rank; assumed to be rank {rank}{more}, with {hint.said_by}; --rank overrules it"


def _counted(tables: NsightTables, left_out: int) -> list[str]:
    counted = (
        (tables.dropped, "rows without valid times left out"),
        (tables.repaired, "device events end before they begin; their duration is taken as 0"),
        (left_out, "copies of processes that run no kernel left out"),
        (tables.unended, "NVTX ranges that never end left out"),
        (
            tables.graphs,
            "CUDA graphs were recorded as a whole: what computes and what communicates in them is unknown; record "
            "with --cuda-graph-trace=node",
        ),
        (tables.unread_payloads, "NCCL payloads are of an unknown layout: their sizes are not read"),
    )
    return [f"{count} {what}" for count, what in counted if count]


def _info(file: SqliteFile) -> Mapping[str, list[str]]:
    """Return the facts about the capture and the machine that are used: lists of values by name."""
    info: dict[str, list[str]] = {}
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        if {"name", "value"} <= set(file.columns(table)):
            for keys, values in file.rows(table, (), ("name", "value")):
                for name, value in zip(keys, values, strict=True):
                    info.setdefault(as_text(name) or "", []).append(as_text(value) or "")
    if "name" in file.columns("TARGET_INFO_GPU"):
        for (names,) in file.rows("TARGET_INFO_GPU", (), ("name",)):
            info.setdefault("GPU", []).extend(as_text(name) or "" for name in names)
    for table, column in _SESSION_TIMES:
        if column in file.columns(table):
            for (times,) in file.rows(table, (column,)):
                info.setdefault(column, []).extend(str(time) for time in times if time is not None)
    return info


def _epoch(info: Mapping[str, list[str]], begin_ns: int, end_ns: int) -> tuple[int, list[str]]:
    """Return the offset in ns from stored times to the Unix epoch; 0 with a note where the file does not state it.

    `begin_ns` and `end_ns` are the first and the last stored time of device work.
    """
    if "true" in info.get("EXPORT_PARAM_TIME_NORMALIZE", ()):
        return 0, []  # exported with --ts-normalize=true: times are since the epoch
    start = _only_time(info, "utcEpochNs")
    if start is not None:
        return start - _zero_ns(info, begin_ns, end_ns), []
    return 0, ["the file does not state when its session began: times of several files cannot be compared"]


def _zero_ns(info: Mapping[str, list[str]], begin_ns: int, end_ns: int) -> int:
    """Return the stored time at which the session began: 0, but on the system's clock where the stored times lie within
    the session on that clock alone, as they are longer after 0 than the session lasted."""
    system, stop = _only_time(info, "systemClockNs"), _only_time(info, "stopTime")
    if system is None or stop is None:
        return 0
    return system if system <= begin_ns and stop - system < end_ns <= stop else 0


def _only_time(info: Mapping[str, list[str]], name: str) -> int | None:
    """Return the one whole time of this name; None where there are none or several, or it is out of range."""
    times = {int(text) for text in info.get(name, ()) if text.isdecimal()}
    return time if len(times) == 1 and 0 < (time := times.pop()) < np.iinfo(np.int64).max // 4 else None


def _variables(info: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the environment variables that set a rank: of the started process, else of the device's agent."""
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


def rank_hint(variables: Mapping[str, str], arguments: Sequence[str], devices: Sequence[int]) -> RankHint:
    """Return the rank and world size that the environment and arguments of a recording state; `devices` holds the
    device of each of its processes.

    A rank variable is the rank of a single process only. torchrun's options give the world size, and the first rank of
    a node; a single node begins with rank 0. Of fewer processes than the node has, each is assumed to have the number
    of its device.
    """
    processes = len(devices)
    if processes == 1:
        for rank_name, size_name in _VARIABLES:
            rank = _number(variables.get(rank_name))
            size = _number(variables.get(size_name))
            if rank is not None and (size is None or rank < size):
                return RankHint(first=rank, world_size=size or None, said_by=f"{rank_name}={rank}")
    options = _options(arguments)
    nodes, node, per_node = (options.get(name) for name in ("nnodes", "node_rank", "nproc_per_node"))
    if not nodes or not per_node or processes > per_node or nodes * per_node > MAX_RANKS:
        return RankHint()
    said_by = f"--nnodes=1 --nproc-per-node={per_node}"
    if nodes > 1:
        said_by = f"--node-rank={node} --nproc-per-node={per_node}"
    node = 0 if nodes == 1 else node
    assumed = processes < per_node
    told_apart = len(set(devices)) == processes and all(0 <= device < per_node for device in devices)
    if node is None or node >= nodes or (assumed and not told_apart):
        return RankHint(world_size=nodes * per_node)
    return RankHint(first=node * per_node, world_size=nodes * per_node, assumed=assumed, said_by=said_by)


def _options(arguments: Sequence[str]) -> dict[str, int]:
    found = {}
    for at, text in enumerate(arguments):
        option = _OPTION.fullmatch(text)
        if option:
            following = arguments[at + 1] if at + 1 < len(arguments) else None
            value = _number(option["value"] if option["value"] is not None else following)
            if value is not None:
                found[option["name"].replace("-", "_")] = value
    return found


def _number(text: str | None) -> int | None:
    if text is None or not re.fullmatch(r"[0-9]{1,7}", text.strip()):
        return None
    return int(text) if int(text) <= MAX_RANKS else None
