"""Divide the columns of a process that works on several devices: a process on a device is a rank."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.trace_columns import KERNEL, Mask, Ranges, TraceColumns, with_lanes
from overlapscope.timeline.columns import NONE, Ints, Syncs, take
from overlapscope.timeline.rows import are_among, sum_by, unique

LEAST_SHARE: Final = 0.02
"""Least time of a device's kernels, as a share of the busiest one's, for which it is one that the process works on. A
choice: a context on device 0, or a number that is computed there, is a common accident."""
T = TypeVar("T")


def devices_at_work(columns: TraceColumns) -> list[str]:
    """Return the devices that the process works on, as the trace names them, in the order of their numbers; those with
    few kernels are left out."""
    if not columns.device_lane.size:
        return []
    device, names = _devices(columns)
    kernels = columns.device_sort == KERNEL
    busy = sum_by(device[kernels], (columns.device_end_ns - columns.device_start_ns)[kernels], len(names))
    working = np.flatnonzero((busy > 0) & (busy >= LEAST_SHARE * busy.max())).tolist()
    return sorted((names[code] for code in working), key=_in_order)


def of_each_device(columns: TraceColumns, devices: list[str]) -> list[TraceColumns]:
    """Return the columns of each of the process's `devices`: its device work, the calls that enqueued it or no other
    device's, and all host ranges. Work of devices that are not listed is the first one's."""
    device, names = _devices(columns)
    place = np.array([devices.index(name) if name in devices else 0 for name in names], np.int64)[device]
    return [_of(columns, place == at, name, devices) for at, name in enumerate(devices)]


def _in_order(device: str) -> tuple[int, str]:
    return (int(device) if device.isdecimal() else -1, device)


def _devices(columns: TraceColumns) -> tuple[Ints, list[str]]:
    """Return the code of each device event's device, and the names of these codes."""
    codes: dict[str, int] = {}
    of_lane = np.zeros(len(columns.lanes), np.int64)
    for lane in unique(columns.device_lane).tolist():
        of_lane[lane] = codes.setdefault(columns.lanes[lane][0], len(codes))
    return of_lane[columns.device_lane], list(codes)


def _of(columns: TraceColumns, own: Mask, name: str, devices: list[str]) -> TraceColumns:
    rows, rest = np.flatnonzero(own), np.flatnonzero(~own)
    enqueues = columns.launch_correlation
    here, there = (are_among(enqueues, columns.device_correlation[each]) for each in (rows, rest))
    calls = np.flatnonzero(here | ~there | (enqueues == NONE))
    device: dict[str, Any] = {each: getattr(columns, each)[rows] for each in _OF_DEVICE}
    launch: dict[str, Any] = {each: getattr(columns, each)[calls] for each in _OF_LAUNCH}
    streams = unique(np.concatenate([columns.device_lane, columns.syncs.lane, columns.syncs.awaited_lane]))
    others = [at for at in streams[streams != NONE].tolist() if columns.lanes[at][0] in {*devices} - {name}]
    foreign = np.array(others, np.int64)
    chosen = replace(
        columns,
        device_collectives=_moved(columns.device_collectives, rows),
        device_notes=_ranges(columns.device_notes, foreign),
        syncs=_syncs(columns.syncs, foreign),
        events=rows.size + calls.size + columns.host.name.size,
        **device,
        **launch,
    )
    code = np.full(len(columns.lanes), NONE, np.int64)
    lanes = [at for at in range(code.size) if at not in others]
    code[lanes] = np.arange(len(lanes))
    return with_lanes(chosen, [columns.lanes[at] for at in lanes], code)


_OF_DEVICE: Final = tuple(
    f"device_{each}" for each in ("lane", "sort", "name", "start_ns", "end_ns", "correlation", "blocks")
)
_OF_LAUNCH: Final = tuple(f"launch_{each}" for each in ("lane", "name", "start_ns", "end_ns", "correlation"))


def _moved(values: Mapping[int, T], rows: Ints) -> dict[int, T]:
    """Return the values of these rows by their new numbers."""
    return {new: values[old] for new, old in enumerate(rows.tolist()) if old in values}


def _ranges(ranges: Ranges, foreign: Ints) -> Ranges:
    kept = ~np.isin(ranges.lane, foreign)
    columns = {name: getattr(ranges, name) for name in Ranges.__struct_fields__}
    return Ranges(**{name: values[kept] if values.size else values for name, values in columns.items()})


def _syncs(syncs: Syncs, foreign: Ints) -> Syncs:
    """Return the synchronisations without those of other devices' streams; what is awaited there is not known."""
    own = take(syncs, np.flatnonzero(~np.isin(syncs.lane, foreign)))
    elsewhere = np.isin(own.awaited_lane, foreign)
    return replace(
        own,
        awaited_lane=np.where(elsewhere, NONE, own.awaited_lane),
        awaited_correlation=np.where(elsewhere, NONE, own.awaited_correlation),
    )
