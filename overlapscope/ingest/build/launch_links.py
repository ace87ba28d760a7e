"""Turn device events into spans: link each to its launch and host operation, and classify communication and compute."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.ingest.build.kernel_names import (
    COMMUNICATES,
    COMPUTES,
    FUSES,
    LIBRARY_RANGE,
    Classifier,
    surrounds_collective,
)
from overlapscope.ingest.build.profiler_names import BETWEEN_DEVICES, LAUNCHES_KERNEL, SYNCHRONISATION
from overlapscope.ingest.build.trace_columns import KERNEL, MEMCPY, Mask, TraceColumns, matching
from overlapscope.ingest.build.user_marks import launched_inside
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, FUSED, NONE, PLAIN, UNCLASSIFIED, Ints, Small
from overlapscope.timeline.rows import values_in

_TORCH_OP: Final = re.compile(r"(?:aten|autograd)::")
"""Operations of torch itself: what they launch computes."""

LAUNCHES_ONE: Final = re.compile(r"Launch(?:Cooperative)?Kernel", re.IGNORECASE)
NO_KERNELS: Final = re.compile(r"BeginCapture")
"""Launches that a stream captures for a graph have no kernels of their own."""
FEWEST_LOST: Final = 20
"""Fewest launches in a row without a kernel that a recorder lost. A choice: single kernels miss for other reasons."""


class DeviceSpans(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each device span; `row` is its row in the device columns of the trace."""

    row: Ints
    kind: Small
    note: Small
    launch_ns: Ints
    launch_lane: Ints
    """Host lane of the launch; NONE without one."""
    host_row: Ints
    """Row of the innermost host range around the launch; NOWHERE without one."""
    device_note: Ints
    """Row of the library range projected on the device, for spans without a launch; NOWHERE without one."""
    last_launch_ns: int
    """Latest launch that has a device span, NONE without one."""
    lost_launch_ns: int
    """Earliest kernel launch after all that have a device span, NONE without one."""
    lost: tuple[tuple[int, int], ...]
    """First and last launch of each stretch of which no device span was recorded."""
    marked: Mask
    """Whether a span communicates only according to our mark, and is not a collective of any library."""
    ambiguous: int
    """Number of spans left without a launch because several processes of the file use their correlation id."""


def link_and_classify(columns: TraceColumns, classifier: Classifier) -> DeviceSpans:
    """Return the device spans of a trace with launch, host operation, kind and note.

    Evidence for communication, in this order: the user's patterns; a fused kernel's name (which counts as
    compute); a mark of ours around its launch; the span's own collective arguments; the innermost host range around
    its launch; its name.
    """
    names = columns.names.to_list()
    waits = matching(SYNCHRONISATION, names)
    row = np.flatnonzero(~waits[columns.device_name]) if waits.any() else np.arange(columns.device_name.size)
    launch, ambiguous = _launches(columns, columns.device_correlation[row])
    linked = launch != NOWHERE
    # The appended last element is the value for NOWHERE (-1).
    launch_ns = np.append(columns.launch_start_ns, NONE)[launch]
    launch_lane = np.append(columns.launch_lane, NONE)[launch]
    host_row = innermost_range(columns.host, launch_lane, launch_ns)
    device_note = _device_notes(columns, names, row, ~linked)
    marked = launched_inside(columns, launch_lane, launch_ns)
    kind, note, marked = _kinds(columns, names, classifier, row, host_row, device_note, marked)
    last, lost = _launch_bounds(columns, names, launch[linked])
    return DeviceSpans(
        row=row,
        kind=kind,
        note=note,
        launch_ns=launch_ns,
        launch_lane=launch_lane,
        host_row=host_row,
        device_note=device_note,
        last_launch_ns=last,
        lost_launch_ns=lost,
        lost=() if ambiguous else _lost(columns, names, launch[linked]),
        marked=marked,
        ambiguous=ambiguous,
    )


def _launches(columns: TraceColumns, correlation: Ints) -> tuple[Ints, int]:
    """Return each span's launch (row of the launch columns) by correlation id, and the number of ambiguous spans.

    Many spans of a CUDA graph share one launch. A correlation id that several processes of the file use is ambiguous:
    its spans stay without a launch.
    """
    known = np.flatnonzero(columns.launch_correlation != NONE)
    if known.size == 0:
        return np.full(correlation.size, NOWHERE, np.int64), 0
    order = known[np.lexsort((columns.launch_start_ns[known], columns.launch_correlation[known]))]
    keys = columns.launch_correlation[order]
    at = np.minimum(np.searchsorted(keys, correlation), keys.size - 1)
    hit = (keys[at] == correlation) & (correlation != NONE)
    launch = np.where(hit, order[at], NOWHERE)
    codes: dict[str, int] = {}  # numpy would give each name the room of the longest
    of_lane = np.array([codes.setdefault(process, len(codes)) for process, _ in columns.lanes], np.int64)
    process = of_lane[columns.launch_lane[order]]
    if values_in(process).size == 1:
        return launch, 0
    clash = keys[1:][(keys[1:] == keys[:-1]) & (process[1:] != process[:-1])]
    doubtful = hit & np.isin(correlation, clash)
    return np.where(doubtful, NOWHERE, launch), int(doubtful.sum())


def _device_notes(columns: TraceColumns, names: list[str], row: Ints, wanted: Mask) -> Ints:
    """Return the library range on the same stream around each span in the mask `wanted`; NOWHERE for others."""
    notes = columns.device_notes
    found = np.full(row.size, NOWHERE, np.int64)
    if notes.name.size == 0 or not wanted.any():
        return found
    is_library = matching(LIBRARY_RANGE, names)[notes.name]
    at = row[wanted]
    # Projected ranges are padded by 1 to 2 ns, so the span's own start lies inside.
    found[wanted] = innermost_range(notes, columns.device_lane[at], columns.device_start_ns[at], is_library)
    inside = found != NOWHERE
    inside[inside] = notes.end_ns[found[inside]] >= columns.device_end_ns[row[inside]]
    return np.where(inside, found, NOWHERE)


def _kinds(
    columns: TraceColumns,
    names: list[str],
    classifier: Classifier,
    row: Ints,
    host_row: Ints,
    device_note: Ints,
    marked: Mask,
) -> tuple[Small, Small, Mask]:
    """Return kind and note of each span, and a mask of those that communicate only according to our mark."""
    name = columns.device_name[row]
    sort = columns.device_sort[row]
    used = values_in(name)
    role = np.zeros(len(names), np.int8)
    own = np.zeros(len(names), np.bool_)
    crosses = np.zeros(len(names), np.bool_)
    for code in used.tolist():
        placement, own[code] = classifier.place(names[code])
        role[code] = placement.role
    for code in values_in(name[sort == MEMCPY]).tolist():
        crosses[code] = BETWEEN_DEVICES.search(names[code]) is not None
    role, own, crosses = role[name], own[name], crosses[name]

    has_args = np.zeros(columns.device_name.size, np.bool_)
    has_args[list(columns.device_collectives)] = True
    # The last element is the value for NOWHERE (-1).
    surrounds = np.array([surrounds_collective(each) for each in names] + [False], np.bool_)
    host_name = np.append(columns.host.name, np.int32(-1))[host_row]
    launched_by_collective = (surrounds[host_name] & (host_row != NOWHERE)) | (device_note != NOWHERE)

    is_kernel = sort == KERNEL
    can_carry = is_kernel | ((sort == MEMCPY) & crosses)
    evident = can_carry & (has_args[row] | launched_by_collective)
    by_name = is_kernel & (role == COMMUNICATES)
    fused = is_kernel & (role == FUSES)
    comm = np.where(own, role == COMMUNICATES, ~fused & (marked | evident | by_name))
    kind = np.where(comm, COMM, np.where(is_kernel | (own & (role == COMPUTES)), COMPUTE, COPY)).astype(np.int8)
    note = np.where(fused & ~own, FUSED, PLAIN).astype(np.int8)
    lane = columns.device_lane[row]
    by_torch = np.append(matching(_TORCH_OP, names), False)[host_name]
    unknown = (kind == COMPUTE) & (note == PLAIN) & (role != COMPUTES) & ~by_torch
    note[unknown & ~_on_compute_lanes(columns, row, lane, kind, unknown)] = UNCLASSIFIED
    return kind, note, marked & comm & ~(own | evident | by_name)


def _on_compute_lanes(columns: TraceColumns, row: Ints, lane: Ints, kind: Small, unknown: Mask) -> Mask:
    """Return a mask of the spans on compute lanes: with a known compute kernel, or with the most compute time."""
    lanes = len(columns.lanes)
    busy = np.zeros(lanes, np.int64)
    computing = kind == COMPUTE
    np.add.at(busy, lane[computing], (columns.device_end_ns - columns.device_start_ns)[row][computing])
    computes = np.zeros(lanes, np.bool_)
    computes[lane[computing & ~unknown]] = True
    if busy.any():
        computes[int(busy.argmax())] = True
    return np.asarray(computes[lane], np.bool_)


def _launch_bounds(columns: TraceColumns, names: list[str], linked: Ints) -> tuple[int, int]:
    """Return the last launch with a device span, and the first kernel launch after it, whose span was not recorded."""
    if linked.size == 0:
        return NONE, NONE
    last = int(columns.launch_start_ns[linked].max())
    later = np.flatnonzero(columns.launch_start_ns > last)
    called = columns.launch_name[later]
    launching = [code for code in values_in(called).tolist() if LAUNCHES_KERNEL.search(names[code])]
    lost = columns.launch_start_ns[later[np.isin(called, launching)]]
    return last, int(lost.min()) if lost.size else NONE


def _lost(columns: TraceColumns, names: list[str], linked: Ints) -> tuple[tuple[int, int], ...]:
    """Return the times of the first and last launch of each stretch of launches that no device span is linked to."""
    called = values_in(columns.launch_name).tolist()
    launching = [code for code in called if LAUNCHES_ONE.search(names[code])]
    if any(NO_KERNELS.search(names[code]) for code in called):
        return ()
    rows = np.flatnonzero(np.isin(columns.launch_name, launching) & (columns.launch_correlation != NONE))
    rows = rows[np.argsort(columns.launch_start_ns[rows], kind="stable")]
    start_ns = columns.launch_start_ns[rows]
    return tuple((int(start_ns[first]), int(start_ns[end - 1])) for first, end in lost_stretches(np.isin(rows, linked)))


def lost_stretches(has_span: Mask) -> list[tuple[int, int]]:
    """Return the positions (first, end) of launches in a row, in order of time, without a device span: `FEWEST_LOST` or
    more of them; none where no launch has one."""
    edges = np.diff(np.concatenate([[False], ~has_span, [False]]).astype(np.int8))
    first, end = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    many = (end - first >= FEWEST_LOST) & has_span.any()
    return list(zip(first[many].tolist(), end[many].tolist(), strict=True))
