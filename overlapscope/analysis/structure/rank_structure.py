"""What one rank's step communicates and computes, as columns that two steps can be compared by."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import (
    COLLECTIVE,
    HOST_SYNC,
    NONE,
    UNKNOWN_PREFETCH,
    WAIT,
    Codes,
    Collectives,
    Flags,
    Ints,
    take,
)
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.run import Group, RankTimeline, Run

Names = npt.NDArray[np.object_]
"""Names of rows; None where a row has none."""
COMPUTE_STREAM: Final = "compute"
BUCKET_COPIES: Final = ("aten.mul.out", "aten.copy_.default")
"""What DDP runs once for each gradient before its bucket is reduced, unless gradients are views of the bucket."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one step of a rank, in the order of the program; columns of one length."""

    op: Names
    group: Names
    """The members of the group, as text; its name where they are not known."""
    group_name: Names
    group_size: Ints
    dimension: Names
    dtype: Names
    elements: Ints
    size_bytes: Ints
    phase: Names
    peer: Ints
    module: Names
    source: Names
    """Line of the user's code that launches the call."""
    stream: Names
    parameters: Ints
    """Elements of the parameters that the call gathers or reduces; NONE where that is not known."""
    prefetched: Flags
    """Whether compute runs between its launch by the host and the wait for its result."""
    overlappable: Flags
    """Whether compute can run beside it: on its device, between what it waits for and what waits for it."""
    known: Flags
    """Whether the step waits for its result, so that the two columns before are known."""
    before_backward_ends: Flags
    """Whether backward has compute after its launch."""
    context: npt.NDArray[np.object_]
    """Shape (calls, 2): names of the operations before and after it."""
    position: npt.NDArray[np.float64]
    """Share of the step's FLOPs before its launch."""
    launch_order: Ints
    """Rows of the table of operations, as in `Schedule`; NONE where there is none."""
    ready_order: Ints
    needed_order: Ints


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of the table of operations: those that compute, or those in which the host waits."""

    name: Names
    phase: Names
    flops: Ints
    module: Names
    source: Names
    context: npt.NDArray[np.object_]
    position: npt.NDArray[np.float64]


class RankStructure(msgspec.Struct, frozen=True, kw_only=True):
    """The structure of one rank's step."""

    rank: int
    calls: Calls
    computes: Work
    host_syncs: Work
    peak_bytes: int | None
    at_peak_bytes: Mapping[str, int]
    peak_module: str | None
    peak_source: str | None
    flops_until: Ints
    """FLOPs of the compute stream before each row of the table of operations, and at last of all rows."""
    bucket_copies: Ints
    """Rows in which a gradient is copied into a bucket of DDP."""
    set_up: Mapping[str, str] = {}
    """Line that wrapped a module for communication, by the module's name; empty where that was not recorded."""


def structure_of(run: Run) -> dict[int, RankStructure]:
    """Return the structure of each rank of a dry run; empty for any other run."""
    members = group_keys(run.groups)
    return {rank: _rank(each, members) for rank, each in run.ranks.items() if each.schedule.launch_order.size
            or each.operations.order.size}  # fmt: skip


def group_keys(groups: Sequence[Group]) -> dict[str, str]:
    """Return the members of each group by its name: what a group is recognised by, whatever it is called."""
    return {each.name: " ".join(map(str, each.ranks)) for each in groups if each.ranks}


def _rank(timeline: RankTimeline, members: Mapping[str, str]) -> RankStructure:
    operations = timeline.operations
    named = _Named(timeline.names)
    sources = named(operations.source)
    computes, syncs = operations.flops > 0, operations.work == HOST_SYNC
    does = named(operations.name)
    position = _position(operations.flops)
    neighbours = _neighbours(does, ~np.isin(operations.work, (WAIT, COLLECTIVE)))

    def work(rows: Flags) -> Work:
        return Work(
            name=does[rows],
            phase=named(operations.phase)[rows],
            flops=operations.flops[rows],
            module=named(operations.module)[rows],
            source=sources[rows],
            context=neighbours[rows],
            position=position[rows],
        )

    memory = timeline.recorded.get("memory") or {}
    peak = memory.get("peak_order", -1)
    has_peak = isinstance(peak, int) and 0 <= peak < sources.size
    return RankStructure(
        rank=timeline.rank,
        calls=_calls(timeline, members, named, neighbours),
        computes=work(computes),
        host_syncs=work(syncs),
        peak_bytes=memory.get("peak_bytes"),
        at_peak_bytes=dict(memory.get("at_peak_bytes") or {}),
        peak_module=named(operations.module)[peak] if has_peak else None,
        peak_source=sources[peak] if has_peak else None,
        set_up=dict(timeline.recorded.get("set_up") or {}),
        flops_until=_flops_until(timeline, named),
        bucket_copies=np.flatnonzero(
            (named(operations.phase) == BACKWARD)
            & (operations.module < 0)
            & (named(operations.stream) == COMPUTE_STREAM)
            & np.isin(does.astype(str), BUCKET_COPIES)
        ),
    )


class _Named:
    """Names of codes, None for -1."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = np.array([*names, None], np.object_)

    def __call__(self, codes: Codes) -> Names:
        found: Names = self._names[codes]
        return found


def call_names(calls: Collectives, names: Sequence[str], members: Mapping[str, str]) -> dict[str, Names]:
    """Return the columns of calls that hold names, and `group`: the members of each call's group."""
    named = _Named(names)
    groups = named(calls.group)
    of_name = {name: members.get(name, f"group {name}") for name in {*groups.tolist()} - {None}}
    return {
        "op": named(calls.op),
        "group": np.array([of_name.get(name) for name in groups.tolist()], np.object_),
        "group_name": groups,
        "dimension": named(calls.dimension),
        "dtype": named(calls.dtype),
        "phase": named(calls.phase),
        "module": named(calls.module),
    }


def _calls(timeline: RankTimeline, members: Mapping[str, str], named: _Named, neighbours: Names) -> Calls:
    schedule, operations = timeline.schedule, timeline.operations
    launched = np.argsort(schedule.launch_order, kind="stable")
    calls, schedule = take(timeline.collectives, launched), take(schedule, launched)
    until = _flops_until(timeline, named)
    backward = np.where(named(operations.phase) == BACKWARD, np.diff(until), 0)
    until_backward = np.concatenate([[0], np.cumsum(backward)])
    known = schedule.needed_order != NONE
    needed = np.where(known, schedule.needed_order, 0)
    ready = np.where(schedule.ready_order == NONE, -1, schedule.ready_order)
    return Calls(
        **call_names(calls, timeline.names, members),
        group_size=calls.group_size,
        elements=calls.elements,
        size_bytes=calls.bytes,
        peer=calls.peer,
        source=named(schedule.source),
        stream=named(operations.stream)[schedule.launch_order],
        parameters=schedule.parameters,
        prefetched=known & (until[needed] > until[schedule.launch_order]),
        overlappable=known & (until[needed] > until[ready + 1]),
        known=known & (schedule.prefetched != UNKNOWN_PREFETCH),
        before_backward_ends=until_backward[-1] > until_backward[schedule.launch_order],
        context=neighbours[schedule.launch_order],
        position=_position(operations.flops)[schedule.launch_order],
        launch_order=schedule.launch_order,
        ready_order=schedule.ready_order,
        needed_order=schedule.needed_order,
    )


def _flops_until(timeline: RankTimeline, named: _Named) -> Ints:
    operations = timeline.operations
    flops = np.where(named(operations.stream) == COMPUTE_STREAM, operations.flops, 0)
    found: Ints = np.concatenate([[0], np.cumsum(flops)])
    return found


def _position(flops: Ints) -> npt.NDArray[np.float64]:
    """Return for each row the share of all FLOPs before it."""
    shares: npt.NDArray[np.float64] = (np.cumsum(flops) - flops) / max(1, int(flops.sum()))
    return shares


def _neighbours(names: Names, rows: Flags) -> Names:
    """Return for each row the names of the nearest chosen rows before and after it; shape (rows, 2)."""
    padded = np.concatenate([names, np.array([None], np.object_)])
    at = np.where(rows, np.arange(names.size), -1)
    last = np.concatenate([[-1], np.maximum.accumulate(at)[:-1]]) if names.size else at
    after = np.where(rows, np.arange(names.size), names.size)
    following = np.concatenate([np.minimum.accumulate(after[::-1])[::-1][1:], [names.size]]) if names.size else after
    return np.stack([padded[last], padded[following]], axis=1)
