"""Read `kernel_details.csv`, which stands in for a `trace_view.json`: when the device computed and communicated.

Writer: torch_npu `profiler/analysis/prof_view/_kernel_view_parser.py`. Start times carry a tab behind them; rows on
the accelerator `HCCL` or `COMMUNICATION` are collectives, all others compute. There are no streams, launches, copies
or step marks in it, so it gives one lane for each of the two, and whole recordings only.
"""

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.ascend_collectives import operation_of
from overlapscope.ingest.ascend_folder import rank_of
from overlapscope.ingest.ascend_tables import rows_of
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.timestamps import text_to_ns
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
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline, Source

_COLLECTIVE_CORES = frozenset({"HCCL", "COMMUNICATION"})


def read_kernels(path: Path, context: ReadContext) -> Reading:
    """Read the table. Raises InputError when it holds no timed kernel."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    names: list[str] = []
    cores: list[str] = []
    starts: list[str] = []
    durations: list[str] = []
    for row in rows_of(stream, path):
        names.append(row.get("Name", ""))
        cores.append(row.get("Accelerator Core", "").upper())
        starts.append(row.get("Start Time(us)", ""))
        durations.append(row.get("Duration(us)", ""))
    start, timed = text_to_ns(starts)
    duration, measured = text_to_ns(durations)
    good = timed & measured & (duration >= 0)
    if not good.any():
        raise InputError(f"{shown(path)}: holds no kernel with a time")
    rows = np.flatnonzero(good)
    talks = np.array([cores[row] in _COLLECTIVE_CORES for row in rows.tolist()], np.bool_)
    rank = rank_of(path)
    timeline = _timeline([names[row] for row in rows.tolist()], talks, start[rows], duration[rows], shown(path))
    return Reading(
        stands_in=True,
        timelines=(replace(timeline, rank=rank),),
        fingerprint={"device": "Ascend NPU"},
        source=Source(
            path=shown(path),
            ranks=() if rank == UNKNOWN_RANK else (rank,),
            events=len(names),
            dropped=int((~good).sum()),
            truncated=stream.truncated,
            unlinked=rows.size,
            warnings=tuple(stream.warnings),
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
