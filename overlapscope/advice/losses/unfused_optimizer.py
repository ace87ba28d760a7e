"""Rule: the optimizer's kernels take long, and none of them does the whole update at once."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.job_kind import FUSABLE, FUSED
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.intervals import intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Share of a step from which the optimizer is worth a trial. A choice: a fused one saves a part of it."""
MANY_AT_ONCE: Final = re.compile(r"multi_tensor_apply_kernel")
"""Kernels of torch's `foreach` optimizers, which update many parameters by one operation each. Of fused ones, too,
whose names say so (`FUSED`)."""
NOT_AN_UPDATE: Final = re.compile(r"norm|BinaryOpScalarTensor|non_finite|Copy|Zero", re.IGNORECASE)
"""In names of `foreach` kernels that prepare gradients (clipping by norm, scaling, casts, zeros) and update nothing:
where a kernel has no launch of its own, only its name says so. An optimizer that multiplies by tensors takes longer."""
CAPTURABLE: Final = ("Adam", "AdamW")
"""Optimizers of `FUSABLE` that a CUDA graph holds only with `capturable=True`."""


def unfused_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where kernels of torch's optimizer take `LEAST` of a step, and it has a fused form that
    is not in use; None without a device."""
    names = {name for timeline in given.run.ranks.values() for name in timeline.names}
    optimizer = given.job.optimizer
    if not given.run_has_device or given.job.is_npu or optimizer not in FUSABLE or any(map(FUSED.search, names)):
        return None
    found = [_taken(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    mean = sum(ns for ns, *_ in found) / max(len(found), 1)
    if not mean or mean < LEAST * given.step_ns:
        return None
    by_name = any(named for *_, named in found)
    kernels = round(sum(count for _, count, _ in found) / len(found))
    captured = ", capturable=True" if optimizer in CAPTURABLE and any(map(LAUNCHES_GRAPH.search, names)) else ""
    return recommended(
        given,
        id="unfused_optimizer",
        title=f"Try fused=True: {kernels} kernels of {optimizer} take {ms(mean)} of a {ms(given.step_ns)} {given.per} "
        f"({percent_text(mean / given.step_ns)}), and each reads and writes its tensors anew",
        verdict="trial",
        apply={"torch": f"optimizer = torch.optim.{optimizer}(..., fused=True{captured})"},
        evidence={"optimizer": optimizer, "optimizer_ns": round(mean), "kernels": kernels},
        measured=["the time of kernels launched in the optimizer's step"]
        if not by_name
        else ["the time of kernels of foreach optimizers, by their names: their launches are not recorded one by one"],
        assumed=[],
    )


def _taken(timeline: RankTimeline, windows: Windows) -> tuple[float, float, bool]:
    """Return for how long the optimizer's kernels ran, in ns a window, their number, and whether names tell some."""
    spans = timeline.spans
    computes = np.flatnonzero(spans.kind == COMPUTE)
    many = rows_named(spans.name[computes], timeline.names, MANY_AT_ONCE.search)
    if not many.any():
        return 0.0, 0.0, False
    alone = _without_own_launch(timeline, computes)
    updates = alone & many & ~rows_named(spans.name[computes], timeline.names, NOT_AN_UPDATE.search)
    own = computes[updates | (in_optimizer(timeline, computes) & ~alone)]
    if not (many & np.isin(computes, own)).any():
        return 0.0, 0.0, False
    inside = time_of(windows)
    times = intersection(union((spans.start_ns[own], spans.end_ns[own])), inside)
    within = np.searchsorted(inside.starts, spans.start_ns[own], side="right") - 1
    counted = (within >= 0) & (spans.start_ns[own] < inside.ends[within])
    by_name = np.isin(own[counted], computes[updates]).any()
    return length(times) / len(windows), np.count_nonzero(counted) / len(windows), bool(by_name)


def _without_own_launch(timeline: RankTimeline, computes: Ints) -> Flags:
    """Return of which spans no launch is recorded, or that of a whole graph."""
    spans = timeline.spans
    alone: Flags = spans.launch_ns[computes] == NONE
    if timeline.host_is_lost or not any(map(LAUNCHES_GRAPH.search, timeline.names)):
        return alone
    host = timeline.host
    launches = rows_named(host.name, timeline.names, LAUNCHES_GRAPH.search) & (host.correlation != NONE)
    alone |= np.isin(spans.correlation[computes], values_in(host.correlation[launches]))
    return alone
