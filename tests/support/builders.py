"""Small hand-made timelines and an oracle for sets of time, shared by the tests."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from hypothesis import strategies as st
from msgspec import structs

from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import (
    ANNOTATION,
    COMM,
    COMPUTE,
    COPY,
    EVENT_SYNC,
    HOST,
    NONE,
    OPERATION,
    RUNTIME,
    STREAM_WAIT_EVENT,
    UNCLASSIFIED,
    Columns,
    Spans,
    column_kinds,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import rank_timeline

EPOCH_NS = 1_700_000_000_000_000_003
"""A moment of our days, odd, so that no double holds it."""

# --- the raster: one boolean a nanosecond, from FIRST_NS on ---------------------------------------------------------

FIRST_NS = -8
CELLS = 56

Mask = npt.NDArray[np.bool_]
Pairs = Sequence[tuple[int, int]]

moments = st.integers(0, 40)
"""Ends of intervals."""
instants = st.integers(FIRST_NS, FIRST_NS + CELLS)
"""Moments that may also lie outside all intervals."""
intervals = st.lists(st.tuples(moments, moments), max_size=12)
"""Intervals in any order; overlapping, touching, empty and reversed ones among them."""


def raster(pairs: Iterable[tuple[int, int]]) -> Mask:
    """Return for each nanosecond whether any interval covers it."""
    cells = np.zeros(CELLS, np.bool_)
    for start, end in pairs:
        for moment in range(start, end):
            cells[moment - FIRST_NS] = True
    return cells


def blocks(cells: Mask) -> list[tuple[int, int]]:
    """Return the runs of covered cells."""
    found: list[tuple[int, int]] = []
    begun = None
    for moment, covered in enumerate([*cells.tolist(), False], FIRST_NS):
        if covered and begun is None:
            begun = moment
        if not covered and begun is not None:
            found.append((begun, moment))
            begun = None
    return found


def pairs_of(value: tuple[Any, Any]) -> list[tuple[int, int]]:
    """Return starts and ends as a list of pairs."""
    return list(zip(value[0].tolist(), value[1].tolist(), strict=True))


def columns_of_pairs(pairs: Pairs, offset: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return pairs as columns of starts and ends, shifted by `offset`."""
    starts = np.array([start for start, _ in pairs], np.int64)
    ends = np.array([end for _, end in pairs], np.int64)
    return starts + offset, ends + offset


# --- timelines ------------------------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span; `step` is the number of the step that launched it."""

    start: int
    end: int
    kind: int = COMPUTE
    lane: int = 0
    step: int | None = None
    recording: int = 0
    launch: int | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One host annotation."""

    step: int
    start: int
    end: int
    recording: int = 0


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recording window."""

    start: int
    end: int
    lost_launch: int | None = None
    truncated: bool = False


def _times(each: Span | Step | Recording) -> dict[str, Any]:
    return {**structs.asdict(each), "start_ns": each.start, "end_ns": each.end}


def _row(span: Span) -> dict[str, Any]:
    return {**_times(span), "launch_ns": span.launch}


def spans_table(spans: Sequence[Span]) -> Spans:
    """Return spans as columns."""
    return fact_table(Spans, list(map(_row, spans)), NameTable())


def timeline(
    *,
    spans: Sequence[Span] = (),
    steps: Sequence[Step] = (),
    recordings: Sequence[Recording] = (Recording(start=0, end=10_000),),
    has_device: bool = True,
) -> RankTimeline:
    """Return the timeline of rank 0 without names, collectives or annotations."""
    return rank_timeline(
        work=list(map(_row, spans)),
        steps=list(map(_times, steps)),
        recordings=[{**_times(each), "lost_launch_ns": each.lost_launch} for each in recordings],
        lanes=({},) * (max([span.lane for span in spans], default=0) + 1),
        has_device=has_device,
    )


def full_timeline(
    rank: int = 0, *, start_ns: int = EPOCH_NS, source: str = "trace.json", tag: str = ""
) -> RankTimeline:
    """Return a timeline that has rows in every table, with names and with missing values in every sort of column.

    It lasts 1000 ns from `start_ns`; `tag` is in the names of its kernel and its lane, to tell it from others.
    """

    def times(start: int, end: int, launch: int | None = None) -> dict[str, Any]:
        launch_ns = None if launch is None else start_ns + launch
        return {"start_ns": start_ns + start, "end_ns": start_ns + end, "launch_ns": launch_ns}

    nccl = {"name": "ncclDevKernel_AllReduce", "kind": COMM, "lane": 1}
    op = {"op": "all_reduce"}
    return rank_timeline(
        rank,
        names=["never used"],
        recordings=[
            {
                **times(0, 1000),
                "source": source,
                "last_launch_ns": start_ns + 500,
                "truncated": True,
                "host_events": True,
            }
        ],
        spans=[
            {**times(10, 15), "name": f"gemm{tag}", "lane": 0, "note": UNCLASSIFIED, "correlation": 0, "step": 0},
            {**times(20, 60, 5), **nccl, "host_op": "nccl:all_reduce", "step": 0, "collective": 1},
            {**times(30, 33, 0), "kind": COPY, "lane": 0, "correlation": 7},
            {**times(400, 401), **nccl, "correlation": 2**40, "step": 1, "collective": 0},
        ],
        collectives=[
            {**op, **times(400, 401), "group": "default_pg", "dtype": "bfloat16"},
            {**op, **times(20, 60), "step": 0, "seq": 0, "bytes": 2**41, "module": f"layers.7 größer{tag}"},
        ],
        steps=[{**times(300 * step, 300 * (step + 1)), "step": step} for step in (0, 1)],
        lanes=[{"process": "0", "label": f"stream 7{tag}"}, {"kind": HOST, "process": "0"}],
        annotations=[{**times(0, 300), "lane": 1, "name": "ProfilerStep#0"}],
        host=[
            {**times(0, 300), "lane": 1, "name": "ProfilerStep#0", "kind": ANNOTATION},
            {**times(0, 9), "lane": 1, "name": f"aten::mm größer{tag}", "kind": OPERATION},
            {**times(5, 6), "lane": 1, "name": "cudaLaunchKernel", "kind": RUNTIME, "correlation": 2**40},
            {**times(7, 9), "lane": 1, "kind": RUNTIME},
        ],
        syncs=[
            {**times(7, 9), "kind": EVENT_SYNC, "correlation": 8},
            {**times(30, 31), "kind": STREAM_WAIT_EVENT, "lane": 0, "awaited_lane": 0, "awaited_correlation": 2**40},
        ],
    )


def spelled(table: Columns, names: Sequence[str]) -> dict[str, list[object]]:
    """Return a table's columns with the names that the codes stand for, and None where a value is missing."""
    columns: dict[str, list[object]] = {}
    for column, kind in column_kinds(table).items():
        values = getattr(table, column).tolist()
        if kind == "name":
            columns[column] = [names[code] if code >= 0 else None for code in values]
        else:
            columns[column] = [None if value == NONE else value for value in values]
    return columns


def flip_bit(file: Path) -> None:
    """Damage a page of times, which nothing reads when a run is opened."""
    where = pq.ParquetFile(file).metadata.row_group(0)
    chunk = next(each for each in map(where.column, range(where.num_columns)) if each.path_in_schema == "start_ns")
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    file.write_bytes(content)
