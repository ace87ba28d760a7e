"""Dry runs by hand: rows of work, collectives and waits in the order of a program."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from overlapscope.timeline.columns import (
    COLLECTIVE,
    NONE,
    WAIT,
    Annotations,
    Collectives,
    Lanes,
    Operations,
    Recordings,
    Schedule,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import DRY_RUN, Group, RankTimeline, Run


class Row(msgspec.Struct, kw_only=True):
    """A row of `Operations`; a collective with `op` has its row of `Collectives` and of `Schedule` as well."""

    work: int
    flops: int = 0
    read: int = 0
    written: int = 0
    fused: int | None = None
    name: str = "aten.mul.Tensor"
    stream: str = "compute"
    module: str = "layers.0"
    dtype: str = "bfloat16"
    awaited: int = NONE
    op: str = ""
    size: int = 0
    group: str = "0"
    dimension: str | None = None
    ready: int = NONE
    needed: int = NONE
    parameters: int = NONE


def call(op: str, size: int, *, ready: int = NONE, needed: int = NONE, **others: Any) -> Row:
    """Return a collective's row."""
    return Row(work=COLLECTIVE, op=op, size=size, ready=ready, needed=needed, **others)


def wait(awaited: int, stream: str = "compute") -> Row:
    """Return the row of a wait."""
    return Row(work=WAIT, awaited=awaited, stream=stream)


def dry_run(rows: Sequence[Row], groups: dict[str, Sequence[int]] | None = None) -> Run:
    """Return a dry run of rank 0."""
    members = {"0": tuple(range(8)), **{name: tuple(ranks) for name, ranks in (groups or {}).items()}}
    names = NameTable()
    calls = [(at, row) for at, row in enumerate(rows) if row.op]
    numbers = {at: number for number, (at, _) in enumerate(calls)}
    operations = make(
        Operations,
        len(rows),
        order=np.arange(len(rows)),
        work=[row.work for row in rows],
        name=names.codes(row.name for row in rows),
        stream=names.codes(row.stream for row in rows),
        phase=names.codes("forward" for _ in rows),
        module=names.codes(row.module for row in rows),
        dtype=names.codes(row.dtype for row in rows),
        flops=[row.flops for row in rows],
        read_bytes=[row.read for row in rows],
        written_bytes=[row.written for row in rows],
        fused_bytes=[row.read + row.written if row.fused is None else row.fused for row in rows],
        collective=[numbers.get(at, NONE) for at in range(len(rows))],
        awaited=[row.awaited for row in rows],
    )
    found = [row for _, row in calls]
    collectives = make(
        Collectives,
        len(found),
        recording=0,
        step=0,
        group=names.codes(row.group for row in found),
        op=names.codes(row.op for row in found),
        dtype=names.codes(row.dtype for row in found),
        bytes=[row.size for row in found],
        group_size=[len(members[row.group]) for row in found],
        module=names.codes(row.module for row in found),
        dimension=names.codes(row.dimension for row in found),
    )
    schedule = make(
        Schedule,
        len(found),
        launch_order=[at for at, _ in calls],
        ready_order=[row.ready for row in found],
        needed_order=[row.needed for row in found],
        parameters=[row.parameters for row in found],
    )
    timeline = RankTimeline(
        rank=0,
        basis=DRY_RUN,
        has_device=True,
        recordings=make(Recordings, 1),
        spans=make(Spans, 0),
        collectives=collectives,
        steps=make(Steps, 1, recording=0, step=0, cut=False),
        lanes=make(Lanes, 0),
        annotations=make(Annotations, 0),
        operations=operations,
        schedule=schedule,
        names=tuple(names.to_list()),
    )
    return Run(
        world_size=max(max(each) for each in members.values()) + 1,
        ranks={0: timeline},
        groups=tuple(Group(name=name, size=len(ranks), ranks=ranks) for name, ranks in members.items()),
        sources=(),
        fingerprint={},
    )
