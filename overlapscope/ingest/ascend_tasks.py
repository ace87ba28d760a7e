"""What a task on an Ascend device is, by the type its event carries.

Types are those of msprof (`analysis/csrc/domain/services/modeling`, STARS, HWTS and FFTS+ task types). The profiler
itself counts as computing the tasks that an operator is known for; waiting, recording and writing flags are none.
"""

import re
from functools import cache
from typing import Final

import numpy as np

from overlapscope.ingest.ascend_events import AscendColumns
from overlapscope.ingest.classify import COMMUNICATES, FUSES, UNPLACED, Classifier
from overlapscope.ingest.classify import COMPUTES as NAMED_COMPUTE
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, FUSED, NONE, PLAIN, UNCLASSIFIED, Flags, Ints, Small
from overlapscope.timeline.names import Codes

NO_WORK, COMPUTES, COPIES, SERVES, UNKNOWN = range(5)
"""Synchronisation; computation; a copy; a step inside a collective; a type that no rule places."""

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
_COLLECTIVE_KERNEL: Final = re.compile(r"(?:aicpu|aiv)_?kernel$", re.IGNORECASE)


@cache
def sort_of(task_type: str) -> int:
    """Give what tasks of this type do."""
    return next((sort for sort, pattern in _COMPILED if pattern.search(task_type)), UNKNOWN)


def is_unnamed(name: str) -> bool:
    """Whether a task carries the name of its type: no operator is known for it."""
    return _UNNAMED.match(name) is not None


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel is the device's part of a collective (`allreduceAicpuKernel`, `...AivKernel`)."""
    return _COLLECTIVE_KERNEL.search(name) is not None


def device_tasks(
    columns: AscendColumns, names: list[str], classifier: Classifier, there: Ints, rows: Ints
) -> tuple[Ints, Small, Small]:
    """Give those of the hardware's events `there` that count as spans, each with kind and note.

    Evidence, in this order: the user's patterns, the kernel's name, its task's type. Steps inside one of the
    collectives `rows` are left out, for its own row counts them.
    """
    ranges = columns.ranges
    name, task_type = ranges.name[there], columns.task_type[there]
    sort = _by_code([sort_of(each) for each in names], np.where(task_type >= 0, task_type, name))
    used = set(np.unique(name).tolist())
    placed = {code: classifier.place(names[code]) for code in used}
    role = _by_code([placed[code][0].role if code in used else UNPLACED for code in range(len(names))], name)
    own = _marked([code in used and placed[code][1] for code in range(len(names))], name)
    unnamed = _marked([is_unnamed(each) for each in names], name) & (sort == COMPUTES)
    talks = (role == COMMUNICATES) | _marked([is_collective_kernel(each) for each in names], name) | (sort == SERVES)
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
    """Tell for each interval whether any of the others shares time with it, or holds its start."""
    if others_start.size == 0:
        return np.zeros(start.size, np.bool_)
    order = np.argsort(others_start, kind="stable")
    reach = np.maximum.accumulate(others_end[order])
    before = np.searchsorted(others_start[order], np.maximum(end, start + 1), side="left")
    return (before > 0) & (reach[np.maximum(before - 1, 0)] > start)
