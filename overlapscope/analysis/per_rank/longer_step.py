"""Find why a step computes longer than others in which the same kernels run: it had more to compute, or its device was
slower.

What an optimizer does depends on parameters alone, not on a batch: where all other kernels take longer by one factor
and those of the optimizer do not, the batch, or its sequences, were longer; where these do, too, the device was slower.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import ELEMENTWISE, family_of
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Floats, Ints
from overlapscope.timeline.rows import split_by
from overlapscope.timeline.run import RankTimeline

OF_OPTIMIZER: Final = "optimizer"
OF_MEMORY: Final = frozenset({ELEMENTWISE, "normalisation", "softmax and loss"})
"""Families whose kernels mostly wait for memory: where a clock is lowered these may take as long as ever, as those of
the optimizer do, so that they have to take longer, too, before a batch is called longer."""
LONGER_TOO: Final = 0.5
"""A kernel takes longer as all do if it does by this share of what all do. A choice: what runs beside communication is
slowed by that, too."""
EVEN: Final = 0.85
"""Kernels with this share of the time take longer so. A choice: of less, some other cause may be part of it."""
AS_USUAL: Final = 0.25
"""The optimizer takes as long as usual where it takes longer by at most this share of what the other kernels do. A
choice: between this and `LONGER_TOO` nothing is said."""
FEWEST: Final = 2
"""Other steps with the same kernels, so that a median says what is usual."""


class LongerStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the same kernels took in a step that computes longer than others."""

    slower_device: bool
    """Whether all took longer by about one factor, the optimizer's, too; else these did not, and there was more to
    compute."""
    kernels: int
    times: float
    """How many times as long as usual all kernels but the optimizer's took, and ..."""
    optimizer_times: float
    """... the optimizer's."""


def longer_step(timeline: RankTimeline, step: int, others: Sequence[int]) -> LongerStep | None:
    """Return why a step computes longer than `others`, by its kernels; None where these have other kernels, by name and
    number, or not nearly all but the optimizer's take longer by one factor, or no optimizer is known."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0) & np.isin(spans.step, [step, *others]))
    rows = rows[np.lexsort((spans.start_ns[rows], spans.name[rows], spans.step[rows]))]
    by_step = {int(spans.step[rows[at[0]]]): rows[at] for at in split_by(spans.step[rows])}
    own = by_step.get(step)
    if own is None:
        return None
    names = spans.name[own]
    same = [each for at in others if (each := by_step.get(at)) is not None and np.array_equal(spans.name[each], names)]
    if len(same) < max(FEWEST, len(others) / 2):
        return None
    taken = _taken_ns(timeline, own)
    usual = np.asarray(np.median([_taken_ns(timeline, each) for each in same], axis=0), np.float64)
    codes, at = np.unique(names, return_inverse=True)
    families = np.array([family_of(timeline.name(code) or "") for code in codes.tolist()])[at]
    optimizes = in_optimizer(timeline, own) | (families == OF_OPTIMIZER)
    found = _why(taken, usual, optimizes, families)
    others_rows = [each[~optimizes] for each in same]
    return found if found is not None and _fits_grids(found, timeline, own[~optimizes], others_rows) else None


def _why(taken: Floats, usual: Floats, optimizes: Flags, families: np.ndarray) -> LongerStep | None:
    """Return why the kernels of a step took longer than usual, where that is known."""
    if optimizes.all() or not usual[optimizes].sum():
        return None
    times, of_optimizer = (float(taken[which].sum() / max(usual[which].sum(), 1)) for which in (~optimizes, optimizes))
    longer = taken >= (1 + LONGER_TOO * (times - 1)) * usual
    parts = [~optimizes, ~optimizes & np.isin(families, sorted(OF_MEMORY))]
    if times <= 1 or any(usual[part & longer].sum() < EVEN * usual[part].sum() for part in parts):
        return None
    found = LongerStep(slower_device=False, kernels=taken.size, times=times, optimizer_times=of_optimizer)
    if of_optimizer <= 1 + AS_USUAL * (times - 1):
        return found if usual[parts[1]].any() else None
    slower = usual[optimizes & longer].sum() >= EVEN * usual[optimizes].sum()
    return msgspec.structs.replace(found, slower_device=True) if slower else None


def _fits_grids(found: LongerStep, timeline: RankTimeline, own: Ints, others: Sequence[Ints]) -> bool:
    """Return whether the grids of all kernels but the optimizer's, where they are known, are larger as there is more to
    compute, or as large on a slower device."""
    blocks = timeline.spans.blocks
    if any((blocks[rows] == NONE).any() for rows in (own, *others)):
        return True
    larger = float(blocks[own].sum() / max(np.median([blocks[rows].sum() for rows in others]), 1))
    if found.slower_device:
        return larger <= 1 + AS_USUAL * (found.times - 1)
    return larger >= 1 + LONGER_TOO * (found.times - 1)


def _taken_ns(timeline: RankTimeline, rows: Ints) -> Floats:
    return np.asarray((timeline.spans.end_ns - timeline.spans.start_ns)[rows], np.float64)
