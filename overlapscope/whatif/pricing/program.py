"""A dry run's step to price and replay: rows of work, calls, and what the compute stream waits for."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.errors import InputError
from overlapscope.timeline.columns import (
    ATTENTION,
    COLLECTIVE,
    HOST_SYNC,
    NONE,
    WAIT,
    Flags,
    Ints,
)
from overlapscope.timeline.operations import ITEM_BYTES, POINT_TO_POINT
from overlapscope.timeline.run import DRY_RUN, RankTimeline, Run

COMPUTE_STREAM: Final = "compute"
WORK, LAUNCH, WAITING = range(3)


class Rows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Rows of work in program order; one entry a row of `Operations`."""

    work: Ints
    flops: Ints
    moved_bytes: Ints
    fused_bytes: Ints
    read_elements: Ints
    dtypes: tuple[str | None, ...]
    modules: tuple[str | None, ...]
    backward_attention: Flags
    on_compute: Flags
    """Whether the row runs on the compute stream."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the step."""

    op: str
    size_bytes: int
    dtype: str | None
    ranks: tuple[int, ...]
    """Members of its group."""
    dimension: str | None
    of_parameters: bool
    """Whether it gathers parameters or reduces their gradients."""
    module: str | None
    group: str
    """Calls of one group run one after the other, in the order of their launches: its communicator sees to that."""
    after: tuple[int, ...]
    """Calls of other groups that must end before it begins."""
    rows_before: tuple[int, ...]
    """Rows of other streams that must end first: a framework's copies into what it sends."""


class Program(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One step of one rank."""

    rank: int
    rows: Rows
    calls: tuple[Call, ...]
    instructions: tuple[tuple[int, int], ...]
    """(WORK, segment), (LAUNCH, call) or (WAITING, call), in the order of the compute stream."""
    segments: tuple[tuple[int, int], ...]
    """First row, and the row after the last, of each segment of work."""
    keys_over_queries: float
    """How many times as long as its queries are the keys of attention, at most; 0 without attention."""
    host_syncs: int
    """How often the host waits for a value of the device."""


def program_of(run: Run, rank: int, *, host_computes: bool = False) -> Program:
    """Return the program of a rank of a dry run.

    A device's host is ahead of it: a call begins when what it needs is there. Where the host computes itself, as on a
    CPU, a call begins where the program makes it, and a wait of any stream is a wait of the host. Raises InputError for
    a recording or a run without operations.
    """
    timeline = run.ranks[rank]
    if timeline.basis != DRY_RUN or not timeline.operations.order.size:
        raise InputError("only a dry run has operations to price; make one with overlapscope dryrun")
    groups = {each.name: tuple(each.ranks or ()) for each in run.groups}
    return _program(timeline, groups, run.world_size or 1, host_computes)


def _program(
    timeline: RankTimeline, groups: Mapping[str, tuple[int, ...]], world_size: int, host_computes: bool
) -> Program:
    operations = timeline.operations
    streams, names = _texts(timeline, operations.stream), _texts(timeline, operations.name)
    dtypes = _texts(timeline, operations.dtype)
    items = np.array([ITEM_BYTES.get(each or "", 1) for each in dtypes], np.int64)
    on_compute = np.array([each == COMPUTE_STREAM for each in streams], np.bool_)
    rows = Rows(
        work=operations.work.astype(np.int64),
        flops=np.maximum(operations.flops, 0),
        moved_bytes=np.maximum(operations.read_bytes, 0) + np.maximum(operations.written_bytes, 0),
        fused_bytes=np.maximum(operations.fused_bytes, 0),
        read_elements=np.maximum(operations.read_bytes, 0) // items,
        dtypes=tuple(dtypes),
        modules=tuple(_texts(timeline, operations.module)),
        backward_attention=np.array(["backward" in (each or "") for each in names], np.bool_),
        on_compute=on_compute,
    )
    calls = _calls(timeline, groups, world_size, streams, rows)
    when = _when_the_host_computes(timeline) if host_computes else _when_the_host_is_ahead(timeline)
    instructions, segments = _instructions(timeline, calls, *when)
    return Program(
        rank=timeline.rank,
        rows=rows,
        calls=calls,
        instructions=instructions,
        segments=segments,
        keys_over_queries=_keys_over_queries(timeline, rows),
        host_syncs=int((rows.work == HOST_SYNC).sum()),
    )


def _keys_over_queries(timeline: RankTimeline, rows: Rows) -> float:
    """Return the ratio from bytes: forward reads queries, keys and values, and writes as much as the queries have."""
    table = timeline.operations
    forward = (rows.work == ATTENTION) & ~rows.backward_attention & (table.written_bytes > 0)
    written = table.written_bytes[forward]
    return float(((table.read_bytes[forward] - written) / (2 * written)).max(initial=0.0))


def _texts(timeline: RankTimeline, codes: Any) -> list[str | None]:
    return [timeline.names[code] if code >= 0 else None for code in codes.tolist()]


def _calls(
    timeline: RankTimeline,
    groups: Mapping[str, tuple[int, ...]],
    world_size: int,
    streams: Sequence[str | None],
    rows: Rows,
) -> tuple[Call, ...]:
    table, launch = timeline.collectives, timeline.schedule.launch_order.tolist()
    ops, dtypes, names = (_texts(timeline, each) for each in (table.op, table.dtype, table.group))
    dimensions, modules = _texts(timeline, table.dimension), _texts(timeline, table.module)
    before, after = _rows_before(rows, launch), _after(timeline, streams)
    found = []
    for number in range(len(launch)):
        size = int(table.group_size[number])
        members = groups.get(names[number] or "") or tuple(range(size if size > 0 else world_size))
        peer = int(table.peer[number])
        if ops[number] in POINT_TO_POINT and peer != NONE:
            members = tuple(sorted({timeline.rank, peer}))
        found.append(Call(
            op=ops[number] or "",
            size_bytes=max(int(table.bytes[number]), 0),
            dtype=dtypes[number],
            ranks=members,
            dimension=dimensions[number],
            of_parameters=int(timeline.schedule.parameters[number]) != NONE,
            module=modules[number],
            group=names[number] or "",
            after=after[number],
            rows_before=before[number],
        ))  # fmt: skip
    return tuple(found)


def _after(timeline: RankTimeline, streams: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Return for each call those calls of other streams that its stream waits for before it begins."""
    table = timeline.operations
    last: dict[str, list[tuple[int, int]]] = {}
    known: dict[str, set[int]] = {}
    found: list[tuple[int, ...]] = [()] * int(timeline.schedule.launch_order.size)
    marked = np.flatnonzero(np.isin(table.work, (COLLECTIVE, WAIT)))
    for at in marked.tolist():
        stream, call, awaited = streams[at] or "", int(table.collective[at]), int(table.awaited[at])
        if call != NONE:
            found[call] = tuple(sorted(known.pop(stream, ())))
            last.setdefault(stream, []).append((at, call))
        elif awaited != NONE and stream != COMPUTE_STREAM:
            other = streams[awaited] or ""
            before = [number for row, number in last.get(other, ()) if row <= awaited] if other != stream else []
            known.setdefault(stream, set()).update(before[-1:])
    return found


def _rows_before(rows: Rows, launch: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each call the rows of work on other streams since the call before it in program order.

    Those after the last call count with it: what a hook does with the last result is waited for like it.
    """
    found: list[tuple[int, ...]] = [()] * len(launch)
    beside = np.flatnonzero(~rows.on_compute & (rows.moved_bytes > 0) & ~np.isin(rows.work, (COLLECTIVE, WAIT)))
    order = np.argsort(launch, kind="stable")
    at = np.searchsorted(np.asarray(launch)[order], beside)
    for row, place in zip(beside.tolist(), at.tolist(), strict=True):
        if launch:
            number = order[min(place, len(launch) - 1)]
            found[number] = (*found[number], row)
    return found


def _when_the_host_is_ahead(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return for each call the last row that it waits for, -1 for none, and where it is needed, or NONE."""
    schedule = timeline.schedule
    ready = np.where(schedule.ready_order == NONE, -1, schedule.ready_order)
    syncs = np.flatnonzero(timeline.operations.work == HOST_SYNC)
    if syncs.size:  # the host launches nothing that follows before it has the value
        place = np.searchsorted(syncs, schedule.launch_order) - 1
        ready = np.where(place >= 0, np.maximum(ready, syncs[np.maximum(place, 0)]), ready)
    return ready, schedule.needed_order


def _when_the_host_computes(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return the same where the host does the work itself."""
    launch, needed = timeline.schedule.launch_order, timeline.schedule.needed_order
    waits = np.flatnonzero(timeline.operations.work == WAIT)
    first = {int(timeline.operations.awaited[at]): int(at) + 1 for at in waits[::-1].tolist()}
    waited = np.array([first.get(at, NONE) for at in launch.tolist()], np.int64)
    earlier = (waited != NONE) & ((needed == NONE) | (waited < needed))
    return launch, np.where(earlier, waited, needed)


def _instructions(
    timeline: RankTimeline, calls: Sequence[Call], ready: Ints, needed: Ints
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return the programme of the compute stream, and its segments of work."""
    launch, rows = timeline.schedule.launch_order, timeline.operations.order.size
    events: list[tuple[int, int, int, int]] = []
    latest: dict[str, int] = {}
    for number in np.argsort(launch, kind="stable").tolist():
        group = calls[number].group
        latest[group] = max(latest.get(group, -1), int(ready[number]))
        events.append((latest[group] + 1, 0, int(launch[number]), number))
        if needed[number] != NONE:
            events.append((max(int(needed[number]), latest[group] + 1), 1, int(launch[number]), number))
    instructions: list[tuple[int, int]] = []
    segments: list[tuple[int, int]] = []
    at = 0
    for position, kind, _, number in sorted(events):
        if position > at:
            instructions.append((WORK, len(segments)))
            segments.append((at, position))
            at = position
        instructions.append((WAITING if kind else LAUNCH, number))
    if at < rows:
        instructions.append((WORK, len(segments)))
        segments.append((at, rows))
    return tuple(instructions), tuple(segments)
