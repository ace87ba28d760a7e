"""What a dry run says of a step: calls and bytes by place, FLOPs, memory, assumptions. Nothing in it is timed."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import (
    COLLECTIVE,
    HOST_SYNC,
    IS_PREFETCHED,
    NONE,
    NOT_PREFETCHED,
    WAIT,
    WORK_KINDS,
    Ints,
    or_none,
    size,
)
from overlapscope.timeline.run import DRY_RUN, RankTimeline, Run

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
"""Position in a list, as a part of a module's name."""


class DryCalls(msgspec.Struct, kw_only=True, frozen=True):
    """Calls of collectives that are alike but for the layer."""

    op: str
    dtype: str | None
    bytes: int | None
    """Of one call."""
    group_size: int | None
    dimension: str | None
    phase: str | None
    module: str | None
    """With `*` for positions in lists: `layers.*.attention`."""
    calls: int
    total_bytes: int | None
    prefetched: int
    """Calls with work of the compute stream between when they can begin and where their result is needed; these may
    overlap, the others may not."""
    not_prefetched: int


class DryRank(msgspec.Struct, kw_only=True, frozen=True):
    """One rank's step."""

    rank: int
    operations: int
    flops: dict[str, int]
    """By kind of work; those without FLOPs are not in it."""
    moved_bytes: dict[str, int]
    """Bytes read and written, by kind of work."""
    fused_bytes: dict[str, int]
    """The same where runs of memory-bound operations were one kernel each."""
    host_syncs: dict[str, int]
    """How often the host waits for a value of the device, by line of code."""
    peak_bytes: int | None
    at_peak_bytes: dict[str, int]
    """Memory in use at the peak, by kind."""
    calls: list[DryCalls]
    """In the order of their first call."""
    assumptions: list[str]


class DryStep(msgspec.Struct, kw_only=True, frozen=True):
    """What a dry run says; counts, bytes, groups, order and memory are exact for what was run, and no time is known."""

    ranks: list[DryRank]


def dry_step(run: Run) -> DryStep | None:
    """Return what the dry runs among the ranks say; None for a recorded run."""
    found = [_rank(timeline) for timeline in run.ranks.values() if timeline.basis == DRY_RUN]
    return DryStep(ranks=found) if found else None


def _rank(timeline: RankTimeline) -> DryRank:
    table = timeline.operations
    timed = (table.work != COLLECTIVE) & (table.work != WAIT)
    memory: Mapping[str, Any] = timeline.recorded.get("memory") or {}
    return DryRank(
        rank=timeline.rank,
        operations=int(timed.sum()),
        flops=_by_kind(timeline, table.flops),
        moved_bytes=_by_kind(timeline, table.read_bytes + table.written_bytes),
        fused_bytes=_by_kind(timeline, table.fused_bytes),
        host_syncs=_host_syncs(timeline),
        peak_bytes=memory.get("peak_bytes"),
        at_peak_bytes=dict(memory.get("at_peak_bytes") or {}),
        calls=_calls(timeline),
        assumptions=list(timeline.recorded.get("assumptions") or []),
    )


def _by_kind(timeline: RankTimeline, values: Ints) -> dict[str, int]:
    work = timeline.operations.work
    sums = {name: int(values[work == code].sum()) for code, name in enumerate(WORK_KINDS)}
    return {name: total for name, total in sums.items() if total}


def _host_syncs(timeline: RankTimeline) -> dict[str, int]:
    lines = timeline.operations.source[timeline.operations.work == HOST_SYNC]
    codes, counts = np.unique(lines, return_counts=True)
    return {timeline.name(code) or "?": count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)}


def _calls(timeline: RankTimeline) -> list[DryCalls]:
    calls, prefetched = timeline.collectives, timeline.schedule.prefetched
    found: dict[tuple[Any, ...], list[int]] = {}
    columns = (calls.op, calls.dtype, calls.bytes, calls.group_size, calls.dimension, calls.phase, calls.module)
    for row, key in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        found.setdefault((*key[:6], any_layer(timeline.name(key[6]))), []).append(row)
    return [_like(timeline, key, prefetched[rows]) for key, rows in found.items()] if size(calls) else []


def _like(timeline: RankTimeline, key: tuple[Any, ...], prefetched: Any) -> DryCalls:
    op, dtype, size_bytes, group_size, dimension, phase, module = key
    calls = len(prefetched)
    return DryCalls(
        op=timeline.name(op) or "?",
        dtype=timeline.name(dtype),
        bytes=or_none(size_bytes),
        group_size=or_none(group_size),
        dimension=timeline.name(dimension),
        phase=timeline.name(phase),
        module=module,
        calls=calls,
        total_bytes=None if size_bytes == NONE else size_bytes * calls,
        prefetched=int((prefetched == IS_PREFETCHED).sum()),
        not_prefetched=int((prefetched == NOT_PREFETCHED).sum()),
    )


def any_layer(module: str | None) -> str | None:
    """Return a module's name with `*` for each position in a list."""
    return None if module is None else _NUMBER.sub("*", module)
