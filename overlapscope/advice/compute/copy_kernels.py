"""Which work of a device copies its tensors, and for which operation of PyTorch: a copy as it is, or a cast."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.communication_copies import DDP_OUT, FSDP
from overlapscope.advice.losses.gradient_accumulation import OUTSIDE_MODEL, times_in
from overlapscope.advice.rule_input import lie_within
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import COPIES, family_of
from overlapscope.timeline.columns import COMPUTE, COPY, NONE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline

AS_IT_IS: Final = ("aten::reshape", "aten::contiguous", "aten::clone")
"""Operations that copy a tensor in another layout, or into memory of its own. One calls those after it: the copy is the
first one's."""
CAST: Final = "aten::_to_copy"
NO_OPERATION: Final = -1
_FILLS: Final = re.compile(r"FillFunctor")
_ON_DEVICE: Final = re.compile(r"DtoD|DeviceToDevice|Device-to-Device|D2D", re.I)
"""Names of copies by the runtime that stay on the device, as those of tensors without gaps are."""
_STRIDED: Final = re.compile(
    r"(?<!_)elementwise_kernel(?:_manual_unroll)?<.*gpu_kernel_impl_nocast<.*direct_copy_kernel_cuda"
)
"""A copy between two layouts, of one type: PyTorch has the runtime copy what has no gaps and one layout (Copy.cu),
casts in `gpu_kernel_impl`, and runs other names where both tensors are contiguous (CUDALoops.cuh, where ROCm has
`manual_unroll`)."""
_TRANSPOSES: Final = re.compile(
    r"^(?:void )?(?:batched_transpose_\d+x\d+|transpose_[NCDHW]{4,5}2[NCDHW]{4,5}(?![A-Za-z]))"
    r"|nchwToNhwcKernel|nhwcToNchwKernel"
)
"""Kernels that MIOpen and cuDNN launch before and after a kernel that takes another layout than its tensors have."""
_FOR_COMMUNICATION: Final = re.compile(rf"^(?:{FSDP.pattern}|{re.escape(DDP_OUT)})$")


def copies_as_they_are(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return the device's copies (rows of spans) that such an operation of the model asked for, and which one, as its
    place in `AS_IT_IS`; not those for the optimizer, for gradients or for communication.

    What was launched before the recording began has no operation: it counts where all others of its name do.
    """
    rows = _copying(timeline, copied=True)
    of = np.full(rows.size, NO_OPERATION)
    for at, name in enumerate(AS_IT_IS):
        of[(of == NO_OPERATION) & _below(timeline, rows, name)] = at
    of[_for_others(timeline, rows)] = NO_OPERATION
    names, alone = timeline.spans.name[rows], timeline.spans.launch_ns[rows] == NONE
    for code in values_in(names[alone]).tolist():
        known = of[(names == code) & ~alone]
        if known.size and (known != NO_OPERATION).all():
            of[(names == code) & alone] = known[0]
    return rows[of != NO_OPERATION], of[of != NO_OPERATION]


def layout_copies_by_name(timeline: RankTimeline) -> Ints:
    """Return the kernels (rows of spans) that copy to another layout by their names, where no kernel's operation was
    recorded; else none: `copies_as_they_are` knows them then."""
    spans = timeline.spans
    computes = np.flatnonzero(spans.kind == COMPUTE)
    if (spans.host_op[computes] >= 0).any():
        return np.empty(0, np.int64)
    named = rows_named(spans.name[computes], timeline.names, _STRIDED.search)
    return computes[named | rows_named(spans.name[computes], timeline.names, _TRANSPOSES.search)]


def casts(timeline: RankTimeline) -> Ints:
    """Return the device's copies (rows of spans) by which the model converts tensors to another type."""
    rows = _copying(timeline, copied=False)
    return rows[_below(timeline, rows, CAST) & ~_for_others(timeline, rows)]


def _copying(timeline: RankTimeline, *, copied: bool) -> Ints:
    """Return the kernels that copy; with `copied`, also the runtime's own copies on the device."""
    spans, names = timeline.spans, timeline.names
    own = rows_named(spans.name, names, lambda name: family_of(name) == COPIES and _FILLS.search(name) is None)
    own &= spans.kind == COMPUTE
    if copied:
        own |= (spans.kind == COPY) & rows_named(spans.name, names, _ON_DEVICE.search)
    return np.flatnonzero(own)


def _below(timeline: RankTimeline, rows: Ints, operation: str) -> Flags:
    """Return which spans were launched in an operation of this name, or in others that it called."""
    spans = timeline.spans
    called = times_in(timeline, re.compile(rf"^{re.escape(operation)}$"))
    own: Flags = rows_named(spans.host_op[rows], timeline.names, operation.__eq__)
    return own | lie_within(called, spans.launch_ns[rows])


def _for_others(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which spans are of the optimizer, of gradients, or of what communication sends and receives."""
    launch_ns, others = timeline.spans.launch_ns[rows], in_optimizer(timeline, rows)
    for ranges in (OUTSIDE_MODEL, _FOR_COMMUNICATION):
        others |= lie_within(times_in(timeline, ranges), launch_ns)
    return others
