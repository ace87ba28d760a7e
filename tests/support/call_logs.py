"""Make timelines from lists of calls: a profiler's, an NCCL log's, a flight recorder's dump."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import (
    COMM,
    NONE,
    Annotations,
    Collectives,
    Lanes,
    Recordings,
    Spans,
    Steps,
    column_kinds,
    make,
)
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import Group, RankTimeline, Source
from tests.support.builders import EPOCH_NS


class Call(msgspec.Struct, frozen=True):
    """One call; None is missing."""

    op: str | None
    elements: int | None = None
    dtype: str | None = "float32"
    group: str | None = "0"
    size: int | None = None
    seq: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    state: int = 0
    record: int | None = None
    launch: int | None = None
    """Place in the order of launches, where it is not that of the list."""

    @property
    def bytes(self) -> int | None:
        """Bytes, where the type and the number of elements are known."""
        return self.elements * ITEM_BYTES[self.dtype] if self.elements is not None and self.dtype else None


def _columns(calls: Sequence[Call], names: NameTable) -> dict[str, Any]:
    spelled = {"group": "group", "op": "op", "dtype": "dtype", "algorithm": "algorithm", "protocol": "protocol"}
    numbers = {"seq": "seq", "elements": "elements", "bytes": "bytes", "group_size": "size", "channels": "channels"}
    columns: dict[str, Any] = {"recording": 0, "state": [call.state for call in calls]}
    for column, attribute in spelled.items():
        values = [getattr(call, attribute) for call in calls]
        columns[column] = np.array([-1 if value is None else names.code(value) for value in values], np.int32)
    for column, attribute in {**numbers, "record_function_id": "record"}.items():
        values = [getattr(call, attribute) for call in calls]
        columns[column] = np.array([NONE if value is None else value for value in values], np.int64)
    return columns


def log(calls: Sequence[Call], rank: int = 0, source: str = "nccl.log") -> RankTimeline:
    """Return a timeline of calls in order, without times; `launch` is a time where it is given."""
    names = NameTable()
    launches = [NONE if call.launch is None else EPOCH_NS + call.launch for call in calls]
    return RankTimeline(
        rank=rank,
        basis="log",
        has_device=False,
        recordings=make(Recordings, 1, source=names.code(source), start_ns=NONE, end_ns=NONE),
        spans=make(Spans, 0),
        collectives=make(Collectives, len(calls), launch_ns=launches, **_columns(calls, names)),
        steps=make(Steps, 0),
        lanes=make(Lanes, 0),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )


def trace(calls: Sequence[Call], rank: int = 0, source: str = "trace.json", start_ns: int = EPOCH_NS) -> RankTimeline:
    """Return a timeline with a kernel for each call, 100 ns apart, launched in the order of the list or of `launch`."""
    names = NameTable()
    rows = len(calls)
    order = np.array([at if call.launch is None else call.launch for at, call in enumerate(calls)], np.int64)
    start = start_ns + 50 + 100 * np.arange(rows)
    return RankTimeline(
        rank=rank,
        basis="trace",
        has_device=True,
        recordings=make(Recordings, 1, source=names.code(source), start_ns=start_ns, end_ns=start_ns + 100 * rows + 99),
        spans=make(
            Spans,
            rows,
            recording=0,
            lane=0,
            kind=COMM,
            name=names.code("ncclDevKernel_Generic"),
            start_ns=start,
            end_ns=start + 60,
            launch_ns=start_ns + order,
            collective=np.arange(rows),
        ),
        collectives=make(
            Collectives, rows, start_ns=start, end_ns=start + 60, launch_ns=start_ns + order, **_columns(calls, names)
        ),
        steps=make(Steps, 0),
        lanes=make(Lanes, 1),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )


def calls_in(timeline: RankTimeline) -> list[Call]:
    """Return a timeline's calls in the order of its table."""
    table: dict[str, list[Any]] = {}
    for column, kind in column_kinds(timeline.collectives).items():
        values = getattr(timeline.collectives, column).tolist()
        if kind == "name":
            table[column] = [timeline.names[code] if code >= 0 else None for code in values]
        else:
            table[column] = [None if value == NONE else value for value in values]
    return [
        Call(op, elements, dtype, group, size, seq, algorithm, protocol, channels, state, record)
        for op, elements, dtype, group, size, seq, algorithm, protocol, channels, state, record in zip(
            *(table[column] for column in (
                "op", "elements", "dtype", "group", "group_size", "seq", "algorithm", "protocol", "channels", "state",
                "record_function_id",
            )),
            strict=True,
        )
    ]  # fmt: skip


def members_facts(communicators: dict[str, Sequence[int]], only: Iterable[int] | None = None) -> Facts:
    """Return the members of communicators by their world ranks; only of the ranks `only`, which have logs."""
    names = NameTable()
    rows = [
        (names.code(name), member, len(ranks), rank)
        for name, ranks in communicators.items()
        for member, rank in enumerate(ranks)
        if only is None or rank in only
    ]
    columns = dict(zip(("communicator", "member", "members", "rank"), zip(*rows, strict=True), strict=False))
    return Facts(names=tuple(names.to_list()), members=make(Members, len(rows), **columns))


def communicator_groups(communicators: dict[str, Sequence[int]]) -> tuple[Group, ...]:
    """Return communicators as groups, as a log of all ranks reports them."""
    return tuple(Group(name=name, size=len(r), ranks=tuple(sorted(r))) for name, r in communicators.items())


def reading(path: str, *timelines: RankTimeline, facts: Facts | None = None, groups: tuple[Group, ...] = ()) -> Reading:
    """Return the content of a file as a Reading."""
    return Reading(
        source=Source(path=path, format="made up"), timelines=timelines, facts=facts or Facts(), groups=groups
    )
