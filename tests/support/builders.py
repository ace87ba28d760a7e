"""Small hand-made timelines and an oracle for sets of time, shared by the tests."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from overlapscope.timeline.columns import (
    COMPUTE,
    NONE,
    Annotations,
    Collectives,
    Columns,
    Lanes,
    Recordings,
    Spans,
    Steps,
    column_kinds,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline

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


def or_none(values: Iterable[int | None]) -> list[int]:
    """Write None as the columns do."""
    return [NONE if value is None else value for value in values]


def spans_table(spans: Sequence[Span]) -> Spans:
    """Return spans as columns."""
    return make(
        Spans,
        len(spans),
        recording=[span.recording for span in spans],
        lane=[span.lane for span in spans],
        kind=[span.kind for span in spans],
        start_ns=[span.start for span in spans],
        end_ns=[span.end for span in spans],
        launch_ns=or_none(span.launch for span in spans),
        step=or_none(span.step for span in spans),
    )


def timeline(
    *,
    spans: Sequence[Span] = (),
    steps: Sequence[Step] = (),
    recordings: Sequence[Recording] = (Recording(start=0, end=10_000),),
    has_device: bool = True,
) -> RankTimeline:
    """Return the timeline of rank 0 without names, collectives or annotations."""
    return RankTimeline(
        rank=0,
        basis="trace",
        has_device=has_device,
        names=(),
        recordings=make(
            Recordings,
            len(recordings),
            start_ns=[each.start for each in recordings],
            end_ns=[each.end for each in recordings],
            lost_launch_ns=or_none(each.lost_launch for each in recordings),
            truncated=[each.truncated for each in recordings],
        ),
        spans=spans_table(spans),
        collectives=make(Collectives, 0),
        steps=make(
            Steps,
            len(steps),
            recording=[each.recording for each in steps],
            step=[each.step for each in steps],
            start_ns=[each.start for each in steps],
            end_ns=[each.end for each in steps],
        ),
        lanes=make(Lanes, max([span.lane for span in spans], default=0) + 1),
        annotations=make(Annotations, 0),
    )


def full_timeline(
    rank: int = 0, *, start_ns: int = EPOCH_NS, source: str = "trace.json", tag: str = ""
) -> RankTimeline:
    """Return a timeline that has rows in every table, with names and with missing values in every sort of column.

    It lasts 1000 ns from `start_ns`; `tag` is in the names of its kernel and its lane, to tell it from others.
    """
    names = NameTable()
    code = names.code
    names.code("never used")
    recordings = make(
        Recordings,
        1,
        source=code(source),
        start_ns=start_ns,
        end_ns=start_ns + 1000,
        last_launch_ns=start_ns + 500,
        truncated=True,
    )
    spans = make(
        Spans,
        4,
        recording=0,
        lane=[0, 1, 0, 1],
        kind=[0, 1, 2, 1],
        note=[2, 0, 0, 0],
        name=[code(f"gemm{tag}"), code("ncclDevKernel_AllReduce"), -1, code("ncclDevKernel_AllReduce")],
        host_op=[-1, code("nccl:all_reduce"), -1, -1],
        start_ns=[start_ns + 10, start_ns + 20, start_ns + 30, start_ns + 400],
        end_ns=[start_ns + 15, start_ns + 60, start_ns + 33, start_ns + 401],
        launch_ns=[NONE, start_ns + 5, start_ns, NONE],
        correlation=[0, NONE, 7, 2**40],
        step=[0, 0, NONE, 1],
        collective=[NONE, 1, NONE, 0],
    )
    collectives = make(
        Collectives,
        2,
        recording=0,
        step=[NONE, 0],
        group=[code("default_pg"), -1],
        seq=[NONE, 0],
        op=code("all_reduce"),
        dtype=[code("bfloat16"), -1],
        bytes=[NONE, 2**41],
        start_ns=[start_ns + 400, start_ns + 20],
        end_ns=[start_ns + 401, start_ns + 60],
        module=[-1, code(f"layers.7 größer{tag}")],
    )
    return RankTimeline(
        rank=rank,
        basis="trace",
        has_device=True,
        recordings=recordings,
        spans=spans,
        collectives=collectives,
        steps=make(
            Steps,
            2,
            recording=0,
            step=[0, 1],
            start_ns=[start_ns, start_ns + 300],
            end_ns=[start_ns + 300, start_ns + 600],
        ),
        lanes=make(Lanes, 2, kind=[0, 1], process=code("0"), label=[code(f"stream 7{tag}"), -1]),
        annotations=make(
            Annotations, 1, recording=0, lane=1, name=code("ProfilerStep#0"), start_ns=start_ns, end_ns=start_ns + 300
        ),
        names=tuple(names.to_list()),
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
