"""Compare the kernels of the optimizers of devices: their work depends on parameters alone, not on a batch.

So in a data-parallel group, whose ranks hold equal parts of the model, a device whose optimizer takes longer by about
as much as everything else is slower; where only the rest takes longer, it may have more to do.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.stragglers.work_by_phase import holds_another_part
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline, Run

MULTI_TENSOR: Final = "multi_tensor_apply"
"""In the name of torch's and Apex's kernels over lists of parameters or gradients: their steps, norms and averages."""
FEWEST: Final = 3
"""Kernels, so that one that was interrupted decides nothing. A choice."""


def times_in_optimizer(rank: int, others: Sequence[int], run: Run) -> float | None:
    """Return how many times as long as the median of others a device took for the same kernels of its optimizer.

    Compared are kernels of one name that each of these ranks ran as often: their lists, and so their grids in sum, are
    those of the parameters. None with fewer than FEWEST, without
    other devices, or where ranks may hold unequal parts of the model.
    """
    timelines = [run.ranks[each] for each in (rank, *others)]
    if len(timelines) < 2 or any(not each.has_device or holds_another_part(each) for each in timelines):
        return None
    own, *theirs = map(_kernels, timelines)
    same = [name for name, (count, _) in own.items() if all(found.get(name, (0, 0))[0] == count for found in theirs)]
    usual_ns = sum(float(np.median([found[name][1] for found in theirs])) for name in same)
    if sum(own[name][0] for name in same) < FEWEST or not usual_ns:
        return None
    return sum(own[name][1] for name in same) / usual_ns


def _kernels(timeline: RankTimeline) -> dict[str | None, tuple[int, int]]:
    """Return how many kernels of each name the optimizer ran, and how long they took in ns."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
    launched = in_optimizer(timeline, rows) & (spans.launch_ns[rows] != NONE)
    rows = rows[launched | rows_named(spans.name[rows], timeline.names, _over_lists)]
    names, place, counts = np.unique(spans.name[rows], return_inverse=True, return_counts=True)
    took = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], names.size)
    return {
        timeline.name(name): (count, round(ns))
        for name, count, ns in zip(names.tolist(), counts.tolist(), took.tolist(), strict=True)
    }


def _over_lists(name: str) -> bool:
    return MULTI_TENSOR in name
