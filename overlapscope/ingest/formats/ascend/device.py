"""Classify the tasks of an Ascend device by their type, and build the collectives of its trace.

Types are those of msprof (`analysis/csrc/domain/services/modeling`, STARS, HWTS and FFTS+ task types). The profiler
itself counts as compute the tasks that have a known operator; waiting, recording and writing flags are not compute.

Collectives are the rows that HCCL shows for each group, not the tasks they are made of. A row is called
`hcom_allReduce__868_3_1`: operation, the last three digits of the group's hash, the running number in the group in this
recording. (That number begins at 0 with each recording, so it is not a sequence number.)
"""

import re
from functools import cache
from typing import Final

import numpy as np

from overlapscope.ingest.build.kernel_names import COMMUNICATES, FUSES, UNPLACED, Classifier, canonical_operation
from overlapscope.ingest.build.kernel_names import COMPUTES as NAMED_COMPUTE
from overlapscope.ingest.formats.ascend.events import AscendColumns
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    COPY,
    FUSED,
    NONE,
    PLAIN,
    UNCLASSIFIED,
    Collectives,
    Flags,
    Ints,
    Small,
    integers,
    make,
)
from overlapscope.timeline.intervals import BusyTime, difference, length, union
from overlapscope.timeline.names import Codes
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, full_elements, volume_bytes
from overlapscope.timeline.rows import split_by

NO_WORK, COMPUTES, COPIES, SERVES, UNKNOWN = range(5)
"""Synchronisation; computation; a copy; a step inside a collective; a type that matches no rule."""
_RULES: Final = (
    (COMPUTES, r"^(?:AI_?CORE|AI_?CPU|AI_?VECTOR|AIV|AIC|MIX|FFTS|DSA|VPC|JPEG|KERNEL_|HOST_CPU|VECTOR)"),
    (SERVES, r"^(?:ROCC?E|RDMA|CCU|UB_?DMA)|^(?:Reduce|Memcpy) ?(?:Inline|TBE)"),
    (NO_WORK, r"EVENT|NOTIFY|WAIT|RECORD|PLACE.?HOLDER|WRITE.?VALUE|LABEL|STREAM|MODEL|PROFILER|MAINTENANCE|^MsTx"),
    (NO_WORK, r"FLIP|NOP|COND|CMO|END.?GRAPH|BARRIER|TIMEOUT"),
    (COPIES, r"SDMA|PCIE_?DMA|MEMCPY"),
)
_COMPILED: Final = tuple((sort, re.compile(pattern, re.IGNORECASE)) for sort, pattern in _RULES)
_UNNAMED: Final = re.compile(
    r"^(?:KERNEL_\w+|FFTS_PLUS|AI_?CORE|AI_?CPU|AI_?VECTOR_CORE|AIV|AIC|MIX_AI[CV]|AIV_SQE)$", re.IGNORECASE
)
"""A task with the name of its type: its operator is unknown."""
_COLLECTIVE_KERNEL: Final = re.compile(r"(?:aicpu|aiv)_?kernel$", re.IGNORECASE)
"""The device's part of a collective (`allreduceAicpuKernel`, `...AivKernel`)."""
DTYPES: Final = {
    "FP64": "float64", "FP32": "float32", "FP16": "float16", "BFP16": "bfloat16", "BF16": "bfloat16",
    "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8", "UINT64": "uint64",
    "UINT32": "uint32", "UINT16": "uint16", "UINT8": "uint8", "FP8E4M3": "float8_e4m3fn",
    "FP8E5M2": "float8_e5m2", "FP8E8M0": "float8_e8m0fnu",
}  # fmt: skip
_ROW: Final = re.compile(r"^(?:hcom_|hccl_?)?(?P<op>[A-Za-z]+?)_*(?:__?(?P<group>\d+)_\d+(?:_\d+)?(?:@.*)?)?$", re.I)
_THREAD: Final = re.compile(r"^(?:Group\s*+(?P<group>.*?))?Communication(?:\s++Aicpu)?\s*+$")
_PLANE: Final = re.compile(r"^Plane\s*\d+$")
_INSIDE: Final = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|batch_?send_?recv|broadcast|receive|scatter|gather|reduce|send|barrier",
    re.I,
)
"""An operation inside a longer name, such as `MatmulAllReduceAicpu`; longer ones first."""
_SHARDED: Final = frozenset({"all_gather", "gather", "reduce_scatter", "scatter"})
"""HCCL counts one member's part of these, as its API does."""
_NOTIFY_WAIT: Final = re.compile(r"notify.?wait", re.I)
_WAITS_AT_BEGIN: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Operations in which every member moves data of its own."""
_MOVED_BEFORE: Final = 0.1
"""Waiting for the last member comes before a call has moved data for this share of the time for which it does: before
it, members copy within their own memory. A choice."""


@cache
def sort_of(task_type: str) -> int:
    """Return what tasks of this type do."""
    return next((sort for sort, pattern in _COMPILED if pattern.search(task_type)), UNKNOWN)


def device_tasks(
    columns: AscendColumns, names: list[str], classifier: Classifier, there: Ints, rows: Ints
) -> tuple[Ints, Small, Small]:
    """Return those of the hardware events `there` that count as spans, with the kind and note of each.

    Evidence, in this order: the user's patterns, the kernel's name, its task's type. Steps inside one of the
    collectives `rows` are left out, because the collective's own row counts them.
    """
    ranges = columns.ranges
    name, task_type = ranges.name[there], columns.task_type[there]
    sort = _by_code([sort_of(each) for each in names], np.where(task_type >= 0, task_type, name))
    used = set(np.unique(name).tolist())
    placed = {code: classifier.place(names[code]) for code in used}
    role = _by_code([placed[code][0].role if code in used else UNPLACED for code in range(len(names))], name)
    own = _marked([code in used and placed[code][1] for code in range(len(names))], name)
    unnamed = _marked([_UNNAMED.match(each) is not None for each in names], name) & (sort == COMPUTES)
    collective = _marked([_COLLECTIVE_KERNEL.search(each) is not None for each in names], name)
    talks = (role == COMMUNICATES) | collective | (sort == SERVES)
    during = _overlaps_any(ranges.start_ns[there], ranges.end_ns[there], ranges.start_ns[rows], ranges.end_ns[rows])
    connected = np.isin(columns.connection[there], _known(columns.connection[rows]))
    inside = during & ~own & (talks | unnamed | ((sort == COPIES) & connected))
    comm = np.where(own, role == COMMUNICATES, talks)
    compute = np.where(own, role == NAMED_COMPUTE, ~talks & np.isin(sort, (COMPUTES, UNKNOWN)))
    keep = ~inside & (comm | compute | (sort == COPIES))
    kind = np.where(comm, COMM, np.where(compute, COMPUTE, COPY)).astype(np.int8)
    fused = compute & (role == FUSES) & ~own
    doubtful = compute & (unnamed | (sort == UNKNOWN)) & ~own
    note = np.where(fused, FUSED, np.where(doubtful, UNCLASSIFIED, PLAIN)).astype(np.int8)
    return there[keep], kind[keep], note[keep]


def _by_code(values: list[int], codes: Codes) -> Ints:
    return np.array([*values, 0], np.int64)[codes]


def _marked(values: list[bool], codes: Codes) -> Flags:
    return np.array([*values, False], np.bool_)[codes]


def _known(numbers: Ints) -> Ints:
    return np.unique(numbers[numbers != NONE])


def _overlaps_any(start: Ints, end: Ints, others_start: Ints, others_end: Ints) -> Flags:
    """Return for each interval whether it shares time with any of the others, or one of them contains its start."""
    if others_start.size == 0:
        return np.zeros(start.size, np.bool_)
    order = np.argsort(others_start, kind="stable")
    reach = np.maximum.accumulate(others_end[order])
    before = np.searchsorted(others_start[order], np.maximum(end, start + 1), side="left")
    return (before > 0) & (reach[np.maximum(before - 1, 0)] > start)


def is_row(thread: str, name: str) -> bool:
    """Return whether an event of HCCL's process is a collective: it stands on a group's own row, not on a plane's."""
    if on_plane(thread):
        return False
    return _THREAD.match(thread) is not None or name.lower().startswith(("hcom_", "hccl"))


def on_plane(thread: str) -> bool:
    """Return whether a thread of HCCL's process holds the tasks that collectives are made of."""
    return _PLANE.match(thread) is not None


def operation_of(name: str) -> str | None:
    """Return the canonical operation of a row; None when its name contains none."""
    found = _ROW.match(name)
    spelled = canonical_operation(found["op"]) if found else None
    if spelled is not None:
        return spelled
    inside = _INSIDE.search(name)
    return canonical_operation(inside[0].lower()) if inside else None


def collectives(columns: AscendColumns, rows: Ints, launch_ns: Ints, step: Ints) -> tuple[Collectives, list[str]]:
    """Return the chosen events of the trace as collectives, in their order, and notes on unknown properties."""
    names = columns.names.to_list()
    code = columns.names.code
    groups, notes = _groups(columns, names, rows)
    spelled = [names[each] for each in columns.ranges.name[rows].tolist()]
    ops = [operation_of(name) or "unknown" for name in spelled]
    dtypes = [DTYPES.get(names[each].upper()) if each >= 0 else None for each in columns.data_type[rows].tolist()]
    counted = columns.elements[rows].tolist()
    elements = [_elements(op, count) for op, count in zip(ops, counted, strict=True)]
    volumes = [volume_bytes(count, dtype) for count, dtype in zip(elements, dtypes, strict=True)]
    calls = make(
        Collectives,
        rows.size,
        recording=0,
        step=step,
        group=columns.names.codes(groups),
        op=[code(op) for op in ops],
        dtype=[-1 if d is None or op in OPS_WITHOUT_VOLUME else code(d) for op, d in zip(ops, dtypes, strict=True)],
        elements=integers(elements),
        bytes=integers(volumes),
        algorithm=columns.algorithm[rows],
        launch_ns=launch_ns,
        start_ns=columns.ranges.start_ns[rows],
        end_ns=columns.ranges.end_ns[rows],
        waited_ns=_waited_ns(columns, names, rows, ops),
    )
    return calls, notes


def _waited_ns(columns: AscendColumns, names: list[str], rows: Ints, ops: list[str]) -> Ints:
    """Return how long each collective waited for other members before it moved data, as its tasks show; else NONE.

    That is the longest time in which one of its Notify Waits ran, and nothing that moves data or reduces it. A task is
    of the collective that has its connection, if it lies within it.
    """
    found = np.full(rows.size, NONE, np.int64)
    ranges = columns.ranges
    of = {int(columns.connection[row]): at for at, row in enumerate(rows.tolist()) if ops[at] in _WAITS_AT_BEGIN}
    of.pop(NONE, None)
    tasks = np.flatnonzero((columns.task_type >= 0) & np.isin(columns.connection, list(of)))
    call = np.array([of[each] for each in columns.connection[tasks].tolist()], np.int64)
    inside = ranges.start_ns[tasks] >= ranges.start_ns[rows][call]
    inside &= ranges.end_ns[tasks] <= ranges.end_ns[rows][call]
    tasks, call = tasks[inside], call[inside]
    waits = _marked([_NOTIFY_WAIT.search(each) is not None for each in names], columns.task_type[tasks])
    moves = ~waits & _marked([sort_of(each) != NO_WORK for each in names], columns.task_type[tasks])
    for own in split_by(call):
        waiting, moving = (
            union((ranges.start_ns[tasks[own[which[own]]]], ranges.end_ns[tasks[own[which[own]]]]))
            for which in (waits, moves)
        )
        alone = difference(waiting, moving)
        before = BusyTime(moving).before(alone.starts) <= _MOVED_BEFORE * length(moving)
        if waiting.starts.size and moving.starts.size:
            found[call[own[0]]] = int((alone.ends - alone.starts)[before].max(initial=0))
    return found


def _elements(op: str, counted: int) -> int | None:
    """Return the elements of the whole operation; unknown from one member's part without the group's size."""
    if counted in (NONE, 0) or op in _SHARDED or op in ("unknown", "all_to_all", "send_recv"):
        return None
    return full_elements(op, counted, counted, None)


def _groups(columns: AscendColumns, names: list[str], rows: Ints) -> tuple[list[str | None], list[str]]:
    """Return each collective's group, under a name that is the same on all ranks, and notes.

    In newer versions the thread names the group itself. In older ones it names only the group's index in this file, so
    the hash in the row's own name is used.
    """
    found: list[tuple[str | None, str | None]] = []
    for lane, name in zip(columns.ranges.lane[rows].tolist(), columns.ranges.name[rows].tolist(), strict=True):
        thread = _THREAD.match(columns.threads.get(columns.lanes[lane], ""))
        row = _ROW.match(names[name])
        found.append(((thread["group"] or "").rstrip() if thread else None, row["group"] if row else None))
    numbered: dict[str, set[str]] = {}
    for thread_group, tag in found:
        if tag is not None and thread_group is not None and _is_index(thread_group):
            numbered.setdefault(tag, set()).add(thread_group)
    shared = {tag for tag, groups in numbered.items() if len(groups) > 1}
    named: list[str | None] = []
    for thread_group, tag in found:
        if thread_group and not _is_index(thread_group):
            named.append(thread_group)
        elif tag is not None:
            named.append(f"{tag} (group {thread_group} of the file)" if tag in shared else tag)
        else:
            named.append(f"group {thread_group} of the file" if thread_group else None)
    notes = [
        f"several groups have the tag {tag}; they can be distinguished on this rank only" for tag in sorted(shared)
    ]
    return named, notes


def _is_index(group: str) -> bool:
    return group.isdecimal() and len(group) < 5
