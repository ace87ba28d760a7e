"""Read the JSON and CSV files beside an Ascend `trace_view.json`.

`profiler_info_N.json` and `profiler_metadata.json` hold versions, world size and groups. Writer: torch_npu
`profiler/profiler_interface.py` and `profiler/_add_metadata.py`; Megatron adds its groups.

`communication.json` and `communication_matrix.json` hold HCCL's measurements of each collective and each link. Writer:
torch_npu `profiler/analysis/prof_view/_communication_parser.py`: step, then p2p and collective, then the operation, its
times (ms) and, by kind of link, the data it moved (MB, 1e6 bytes). The sums among the operations, called "Total Op
Info", are left out.

`step_trace_time.csv` holds the profiler's own sums of each step, shown beside ours. Writer: torch_npu
`profiler/analysis/prof_view/_trace_step_time_parser.py`. Overlapped is Communication minus Communication(Not
Overlapped); Stage runs from the first to the last device work of the step.

`kernel_details.csv` is used where `trace_view.json` is missing: when the device computed and communicated. Writer:
torch_npu `profiler/analysis/prof_view/_kernel_view_parser.py`. Start times end in a tab; rows on the accelerator `HCCL`
or `COMMUNICATION` are collectives, all others are compute. It has no streams, launches, copies or step marks, so it
gives one lane for each of the two, and whole recordings only.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_name, display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.collective_args import parse_count, parse_ranks
from overlapscope.ingest.formats.ascend.device import operation_of
from overlapscope.ingest.formats.ascend.folder import noted_rank, rank_of
from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.parsing.json_values import read_json
from overlapscope.ingest.parsing.timestamps import text_to_ns
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    NONE,
    Annotations,
    Collectives,
    Flags,
    Ints,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Group, RankTimeline, Source

_VERSIONS = ("torch_npu_version", "cann_version")
TOTAL: Final = "Total Op Info"
_TIMES: Final = {
    "Elapse Time(ms)": "elapse_ms",
    "Transit Time(ms)": "transit_ms",
    "Wait Time(ms)": "wait_ms",
    "Synchronization Time(ms)": "synchronization_ms",
    "Idle Time(ms)": "idle_ms",
}
_LINK: Final = {"Transit Size(MB)": "moved_mb", "Transit Time(ms)": "moving_ms", "Bandwidth(GB/s)": "gbs"}
_STEP: Final = re.compile(r"^step(\d{0,18})$")
FIGURES: Final = {
    "Computing": "computing_us",
    "Communication(Not Overlapped)": "communication_not_overlapped_us",
    "Overlapped": "overlapped_us",
    "Communication": "communication_us",
    "Free": "free_us",
    "Stage": "stage_us",
    "Bubble": "bubble_us",
    "Communication(Not Overlapped and Exclude Receive)": "communication_not_overlapped_nor_receiving_us",
    "Preparing": "preparing_us",
}
_KERNEL_COLUMNS = ("Name", "Accelerator Core", "Start Time(us)", "Duration(us)")
_COLLECTIVE_CORES = frozenset({"HCCL", "COMMUNICATION"})


def _source(path: Path, rank: int, stream: ByteStream, *, events: int, dropped: int = 0) -> Source:
    ranks = () if rank == UNKNOWN_RANK else (rank,)
    return Source(path=display_path(path), ranks=ranks, events=events, dropped=dropped, warnings=tuple(stream.warnings))


def read_info(path: Path, context: ReadContext) -> Reading:
    """Read either JSON file of the job. Raises InputError when it is not complete JSON."""
    content, stream = read_json(path, context.max_bytes, context.progress)
    fields = content if isinstance(content, dict) else {}
    job = fields.get("distributed_args")
    world_size = parse_count(job.get("world_size")) if isinstance(job, dict) else None
    rank = noted_rank(path)
    rank = rank_of(path) if rank is None else rank
    return Reading(
        world_size=world_size if world_size and world_size <= MAX_RANKS else None,
        groups=_groups(fields.get("parallel_group_info")),
        fingerprint={key: fields[key] for key in _VERSIONS if isinstance(fields.get(key), str)},
        source=_source(path, rank, stream, events=1),
    )


def _groups(config: Any) -> tuple[Group, ...]:
    groups = []
    for name, fields in config.items() if isinstance(config, dict) else ():
        if isinstance(fields, dict):
            ranks, _ = parse_ranks(fields.get("global_ranks"))
            description = fields.get("group_name")
            groups.append(
                Group(
                    name=name,
                    description=description if isinstance(description, str) else None,
                    size=len(ranks) if ranks else None,
                    ranks=ranks or None,
                )
            )
    return tuple(groups)


def read_communication(path: Path, context: ReadContext) -> Reading:
    """Read either JSON file of HCCL. Raises InputError when it holds no operation with figures."""
    content, stream = read_json(path, context.max_bytes, context.progress)
    figures = FigureRows(rank_of(path))
    operations = unusable = 0
    for step, name, fields in _operations(content):
        operations += 1
        added = (
            _add_times(figures, step, name, fields)
            if "Communication Time Info" in fields
            else _add_links(figures, step, name, fields)
        )
        unusable += not added
    if operations == unusable:
        raise InputError(f"{display_path(path)}: holds no operation with figures")
    return Reading(
        facts=figures.facts(display_name(path)),
        source=_source(path, figures.rank, stream, events=operations, dropped=unusable),
    )


def _operations(content: Any) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Yield (step, operation, its fields); msprof's own file has neither steps nor kinds."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if not isinstance(value, dict):
            continue
        step = _STEP.match(key)
        if step is None:
            if key != TOTAL:
                yield None, key, value
            continue
        number = int(step[1]) if step[1] else None
        for kind in value.values():
            if isinstance(kind, dict):
                yield from (
                    (number, name, each) for name, each in kind.items() if name != TOTAL and isinstance(each, dict)
                )


def _add_times(figures: FigureRows, step: int | None, name: str, fields: dict[str, Any]) -> bool:
    times = fields["Communication Time Info"]
    if not isinstance(times, dict):
        return False
    added = [figures.add(name, short, times.get(title), step=step) for title, short in _TIMES.items()]
    links = fields.get("Communication Bandwidth Info")
    for kind, link in links.items() if isinstance(links, dict) else ():
        if isinstance(link, dict) and link.get("Transit Size(MB)"):
            for title, short in _LINK.items():
                figures.add(name, f"{kind.lower()}_{short}", link.get(title), step=step)
    return any(added)


def _add_links(figures: FigureRows, step: int | None, name: str, fields: dict[str, Any]) -> bool:
    added = False
    for pair, link in fields.items():
        if isinstance(link, dict) and "Transit Size(MB)" in link:
            kind = str(link.get("Transport Type") or "link").lower()
            for title, short in _LINK.items():
                added |= figures.add(f"{name} {pair}", f"{kind}_{short}", link.get(title), step=step)
    return added


def read_step_times(path: Path, context: ReadContext) -> Reading:
    """Read `step_trace_time.csv`. Raises InputError when it has no row with a figure."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    figures = FigureRows(rank_of(path))
    usable = []
    for row in rows_of(stream, path):
        device = row.get("Device_id")
        subject = f"device {device}" if device and device != "-1" else None
        step = step_of(row.get("Step"))
        added = [figures.add(subject, name, number_of(row.get(title)), step=step) for title, name in FIGURES.items()]
        usable.append(any(added))
    if not any(usable):
        raise InputError(f"{display_path(path)}: holds no step with figures")
    return Reading(
        facts=figures.facts(display_name(path)),
        source=replace(
            _source(path, figures.rank, stream, events=len(usable), dropped=usable.count(False)),
            truncated=stream.truncated,
        ),
    )


def read_kernels(path: Path, context: ReadContext) -> Reading:
    """Read `kernel_details.csv`. Raises InputError when it holds no timed kernel."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    columns: dict[str, list[str]] = {title: [] for title in _KERNEL_COLUMNS}
    for row in rows_of(stream, path):
        for title, cells in columns.items():
            cells.append(row.get(title, ""))
    names, cores, starts, durations = columns.values()
    start, timed = text_to_ns(starts)
    duration, measured = text_to_ns(durations)
    good = timed & measured & (duration >= 0)
    if not good.any():
        raise InputError(f"{display_path(path)}: holds no kernel with a time")
    rows = np.flatnonzero(good)
    talks = np.array([cores[row].upper() in _COLLECTIVE_CORES for row in rows.tolist()], np.bool_)
    rank = rank_of(path)
    timeline = _timeline([names[row] for row in rows.tolist()], talks, start[rows], duration[rows], display_path(path))
    return Reading(
        stands_in=True,
        timelines=(replace(timeline, rank=rank),),
        fingerprint={"device": "Ascend NPU"},
        source=replace(
            _source(path, rank, stream, events=len(names), dropped=int((~good).sum())),
            truncated=stream.truncated,
            unlinked=rows.size,
        ),
    )


def _timeline(spelled: list[str], talks: Flags, start: Ints, duration: Ints, path: str) -> RankTimeline:
    names = NameTable()
    code = names.encode(spelled)
    calls = np.flatnonzero(talks)
    collective = np.full(start.size, NONE, np.int64)
    collective[calls] = np.arange(calls.size)
    end = start + duration
    return RankTimeline(
        rank=UNKNOWN_RANK,
        basis="trace",
        has_device=True,
        recordings=make(Recordings, 1, source=names.code(path), start_ns=start.min(), end_ns=end.max()),
        spans=make(
            Spans,
            start.size,
            recording=0,
            lane=talks.astype(np.int64),
            kind=np.where(talks, COMM, COMPUTE),
            name=code,
            start_ns=start,
            end_ns=end,
            collective=collective,
        ),
        collectives=make(
            Collectives,
            calls.size,
            recording=0,
            op=[names.code(operation_of(spelled[row]) or "unknown") for row in calls.tolist()],
            start_ns=start[calls],
            end_ns=end[calls],
        ),
        steps=make(Steps, 0),
        lanes=make(
            Lanes,
            2,
            process=names.code("kernel_details.csv"),
            label=[names.code("computing"), names.code("communication")],
        ),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )


def rows_of(stream: ByteStream, path: Path) -> Iterator[dict[str, str]]:
    """Yield each row by column title. Raises InputError for malformed CSV, and as `ByteStream.blocks` does."""
    table = csv.reader(line.decode("utf-8", "replace").replace("\x00", "") for line in iter_lines(stream))
    try:
        titles = [each.strip().removeprefix("\ufeff") for each in next(table, [])]
        for row in table:
            if row:
                yield dict(zip(titles, (cell.strip() for cell in row), strict=False))
    except csv.Error as error:
        raise InputError(f"{display_path(path)}: line {table.line_num} is not a row of a table: {error}") from error


def number_of(cell: str | None) -> float | None:
    """Return a cell's number; None for an empty cell, `N/A` and anything else that is not a number."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def step_of(cell: str | None) -> int | None:
    """Return a cell's step number; None where the profile was not divided into steps."""
    return int(cell) if cell and cell.isdecimal() and len(cell) < 19 else None
