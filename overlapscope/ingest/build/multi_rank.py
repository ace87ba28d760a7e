"""Split one recording of several processes and devices into a timeline for each rank.

A rank is a process on a device. A process that works on several devices is several ranks, except where it merely
touches a device on which another process does more (a context on GPU 0 is a common accident), or only copies there:
that work counts with the process's own device. A process that runs no kernel is not a rank.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.build.launch_links import link_and_classify
from overlapscope.ingest.build.nccl_api_ranges import NcclPayload, api_calls
from overlapscope.ingest.build.timeline import BuiltTimeline, device_timeline
from overlapscope.ingest.build.trace_columns import KERNEL, Mask, Ranges, TraceColumns
from overlapscope.ingest.build.user_marks import step_ranges
from overlapscope.timeline.columns import NONE, UNCLASSIFIED, HostSpans, Ints, Small, Syncs, make
from overlapscope.timeline.names import Codes, NameTable
from overlapscope.timeline.run import Group

MAX_SHOWN = 16
NO_RANK = -1
_NOTHING: Final = np.empty(0, np.int64)


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels and copies of all processes."""

    process: Ints
    """Key of the process; NONE where the recording does not state it."""
    device: Ints
    stream: Ints
    sort: Any
    """KERNEL, MEMCPY or MEMSET."""
    name: Codes
    start_ns: Ints
    end_ns: Ints
    correlation: Ints
    opaque: Mask
    """Whether the parts of the work were not recorded, such as those of a CUDA graph."""


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of the runtime's and the driver's interface."""

    process: Ints
    thread: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    correlation: Ints


class HostRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges that the user, the framework or a library set."""

    process: Ints
    thread: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    is_annotation: Mask


class HostCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What host threads did besides: calls of the operating system, and the profiler's own work."""

    process: Ints = _NOTHING
    thread: Ints = _NOTHING
    kind: Small = _NOTHING.astype(np.int8)
    """SYSTEM or OVERHEAD."""
    name: Codes = _NOTHING.astype(np.int32)
    start_ns: Ints = _NOTHING
    end_ns: Ints = _NOTHING


class SyncRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded synchronisations; NONE for what is missing or does not apply."""

    process: Ints = _NOTHING
    device: Ints = _NOTHING
    stream: Ints = _NOTHING
    """Stream that waits."""
    awaited_stream: Ints = _NOTHING
    kind: Small = _NOTHING.astype(np.int8)
    correlation: Ints = _NOTHING
    awaited_correlation: Ints = _NOTHING
    start_ns: Ints = _NOTHING
    end_ns: Ints = _NOTHING


class DeviceRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one recording."""

    names: NameTable
    work: DeviceWork
    launches: Launches
    ranges: HostRanges
    calls: HostCalls = HostCalls()
    syncs: SyncRecords = SyncRecords()
    payloads: Mapping[int, NcclPayload]
    """By row of the ranges."""
    process_ids: Mapping[int, int]
    """Process id by process key; an absent key is the process id itself."""
    stream_word: str = "stream"
    """The profiler's word for a stream, used in the names of lanes."""
    base_ns: int = 0
    """Added to all times."""


class RankUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a device."""

    process: int
    device: int


class BuiltRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a recording."""

    unit: RankUnit
    process_id: int
    built: BuiltTimeline


def rank_timelines(
    recording: DeviceRecording, classifier: Classifier, *, source: str, truncated: bool
) -> tuple[list[BuiltRank], int]:
    """Return each rank's timeline, in the order of `rank_units`, and the number of device events of no rank."""
    work = recording.work
    units, place = rank_units(work.process, work.device, work.sort == KERNEL, work.end_ns - work.start_ns)
    sizes = {
        payload.group: payload.members
        for payload in recording.payloads.values()
        if payload.group is not None and payload.members is not None
    }
    groups = tuple(Group(name=name, size=members) for name, members in sorted(sizes.items()))
    built = []
    for at, unit in enumerate(units):
        alone = sum(each.process == unit.process for each in units) == 1
        columns, opaque, host = _columns(recording, unit, np.flatnonzero(place == at), alone=alone)
        names = columns.names.to_list()
        payloads = {new: recording.payloads[old] for new, old in enumerate(host.tolist()) if old in recording.payloads}
        ranges = columns.host
        columns = replace(
            columns, api_calls=api_calls(ranges.lane, ranges.name, ranges.start_ns, names, payloads, sizes)
        )
        found = step_ranges(ranges.lane, ranges.name, ranges.start_ns, ranges.end_ns, names)
        steps = found.steps(ranges.start_ns + recording.base_ns, ranges.end_ns + recording.base_ns)
        linked = link_and_classify(columns, classifier)
        linked = replace(linked, note=np.where(opaque[linked.row], np.int8(UNCLASSIFIED), linked.note))
        one = device_timeline(
            columns, linked, classifier, steps, groups, base_ns=recording.base_ns, source=source, truncated=truncated
        )
        notes = (*one.notes, found.note) if found.note else one.notes
        built.append(
            BuiltRank(unit=unit, process_id=_process_id(recording, unit.process), built=replace(one, notes=notes))
        )
    return built, int((place == NO_RANK).sum())


def device_order_note(built: list[BuiltRank], why: str = "") -> str:
    """Return a note that the ranks were numbered in the order of devices, listing the devices."""
    devices = ", ".join(f"device {each.unit.device} (process {each.process_id})" for each in built[:MAX_SHOWN])
    more = f" and {len(built) - MAX_SHOWN} more" if len(built) > MAX_SHOWN else ""
    return f"it does not name its ranks; assumed to be, in order, {devices}{more}{why}"


def _process_id(recording: DeviceRecording, key: int) -> int:
    return recording.process_ids.get(key, key)


def _columns(recording: DeviceRecording, unit: RankUnit, rows: Ints, *, alone: bool) -> tuple[TraceColumns, Mask, Ints]:
    """Return one rank's columns, a mask of its opaque device events, and the rows of its host ranges.

    `alone`: its process is no other rank.
    """
    work, launches, ranges = recording.work, recording.launches, recording.ranges
    anyone = unit.process == NONE
    calls = _launches(recording, unit, rows)
    host = np.arange(ranges.process.size) if anyone else np.flatnonzero(ranges.process == unit.process)
    lanes: dict[tuple[str, str], int] = {}
    device_lane = _lanes(lanes, work.device[rows], work.stream[rows], recording.stream_word)
    launch_lane = _threads(lanes, recording, launches.process[calls], launches.thread[calls])
    host_lane = _threads(lanes, recording, ranges.process[host], ranges.thread[host])
    host_rest = _host_rest(recording, unit, lanes)
    syncs = _syncs(recording, unit, lanes, alone=alone)
    columns = TraceColumns(
        lanes=list(lanes),
        names=recording.names,
        device_lane=device_lane,
        device_sort=work.sort[rows],
        device_name=work.name[rows],
        device_start_ns=work.start_ns[rows],
        device_end_ns=work.end_ns[rows],
        device_correlation=work.correlation[rows],
        device_blocks=np.full(rows.size, NONE, np.int64),
        launch_lane=launch_lane,
        launch_name=launches.name[calls],
        launch_start_ns=launches.start_ns[calls],
        launch_end_ns=launches.end_ns[calls],
        launch_correlation=launches.correlation[calls],
        host=Ranges(
            lane=host_lane,
            name=ranges.name[host],
            start_ns=ranges.start_ns[host],
            end_ns=ranges.end_ns[host],
            is_annotation=ranges.is_annotation[host],
        ),
        host_rest=host_rest,
        syncs=syncs,
        events=rows.size + calls.size + host.size,
    )
    return columns, work.opaque[rows], host


def _host_rest(recording: DeviceRecording, unit: RankUnit, lanes: dict[tuple[str, str], int]) -> HostSpans:
    calls = recording.calls
    own = np.flatnonzero((calls.process == unit.process) | (unit.process == NONE))
    return make(
        HostSpans,
        own.size,
        recording=0,
        lane=_threads(lanes, recording, calls.process[own], calls.thread[own]),
        kind=calls.kind[own],
        name=calls.name[own],
        start_ns=calls.start_ns[own],
        end_ns=calls.end_ns[own],
    )


def _syncs(recording: DeviceRecording, unit: RankUnit, lanes: dict[tuple[str, str], int], *, alone: bool) -> Syncs:
    """Return the synchronisations of one rank: all of its process, or those on its device where others share it.

    Nsight writes device 0 for those of processes on other devices.
    """
    syncs = recording.syncs
    here = (syncs.device == unit.device) | (syncs.device == NONE) | alone
    own = np.flatnonzero(here & ((syncs.process == unit.process) | (unit.process == NONE)))

    def lane_of(stream: Ints) -> Ints:
        known = stream != NONE
        lane = np.full(stream.size, NONE, np.int64)
        device = np.full(int(known.sum()), unit.device, np.int64)
        lane[known] = _lanes(lanes, device, stream[known], recording.stream_word)
        return lane

    return make(
        Syncs,
        own.size,
        recording=0,
        kind=syncs.kind[own],
        correlation=syncs.correlation[own],
        lane=lane_of(syncs.stream[own]),
        awaited_lane=lane_of(syncs.awaited_stream[own]),
        awaited_correlation=syncs.awaited_correlation[own],
        start_ns=syncs.start_ns[own],
        end_ns=syncs.end_ns[own],
    )


def _launches(recording: DeviceRecording, unit: RankUnit, rows: Ints) -> Ints:
    """Return the rows of one rank's launches, without those of its process on other devices, which are other ranks'."""
    work, launches = recording.work, recording.launches
    anyone = unit.process == NONE
    calls = np.arange(launches.process.size) if anyone else np.flatnonzero(launches.process == unit.process)
    others = (work.process == unit.process) if not anyone else np.ones(work.process.size, np.bool_)
    others[rows] = False
    if others.any():
        elsewhere = np.isin(launches.correlation[calls], work.correlation[others])
        calls = calls[~elsewhere | np.isin(launches.correlation[calls], work.correlation[rows])]
    return calls


def _lanes(lanes: dict[tuple[str, str], int], device: Ints, stream: Ints, word: str) -> Ints:
    devices, streams, at = distinct_pairs(device, stream)
    codes = [
        lanes.setdefault((_shown(of_device), word if of_stream == NONE else f"{word} {of_stream}"), len(lanes))
        for of_device, of_stream in zip(devices.tolist(), streams.tolist(), strict=True)
    ]
    return np.array(codes, np.int64)[at]


def _threads(lanes: dict[tuple[str, str], int], recording: DeviceRecording, process: Ints, thread: Ints) -> Ints:
    processes, threads, at = distinct_pairs(process, thread)
    codes = [
        lanes.setdefault((_shown(_process_id(recording, key)), _shown(of_thread)), len(lanes))
        for key, of_thread in zip(processes.tolist(), threads.tolist(), strict=True)
    ]
    return np.array(codes, np.int64)[at]


def _shown(number: int) -> str:
    return "?" if number == NONE else str(number)


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the two columns of the sorted distinct pairs, and for each row the index of its pair."""
    firsts, seconds = np.unique(first), np.unique(second)
    packed = np.searchsorted(firsts, first) * seconds.size + np.searchsorted(seconds, second)
    pairs = np.unique(packed)
    if pairs.size == 0:
        return pairs, pairs, pairs
    return firsts[pairs // seconds.size], seconds[pairs % seconds.size], np.searchsorted(pairs, packed)


def rank_units(process: Ints, device: Ints, is_kernel: Mask, duration_ns: Ints) -> tuple[list[RankUnit], Ints]:
    """Return the ranks, sorted by device and then process, and for each device event the index of its rank or NO_RANK.

    If no kernel was recorded, every process on every device is a rank.
    """
    of_process, of_device, at = distinct_pairs(process, device)
    kernels = np.bincount(at[is_kernel], minlength=of_process.size)
    busy = np.bincount(at[is_kernel], duration_ns[is_kernel].astype(np.float64), of_process.size)
    works = kernels > 0 if kernels.any() else np.ones(kernels.size, np.bool_)
    home = np.full(kernels.size, NO_RANK, np.int64)
    for owner in np.unique(of_process[works]).tolist():
        mine = np.flatnonzero((of_process == owner) & works)
        main = int(mine[busy[mine].argmax()])
        home[of_process == owner] = main
        for pair in mine.tolist():
            elsewhere = np.flatnonzero((of_device == of_device[pair]) & (of_process != owner) & works)
            if pair == main or not (busy[elsewhere] > busy[pair]).any():
                home[pair] = pair
    ranks = np.unique(home[home != NO_RANK])
    ranks = ranks[np.lexsort((of_process[ranks], of_device[ranks]))]
    place = np.full(kernels.size + 1, NO_RANK, np.int64)
    place[ranks] = np.arange(ranks.size)
    units = [RankUnit(process=int(of_process[pair]), device=int(of_device[pair])) for pair in ranks.tolist()]
    return units, place[home][at]
