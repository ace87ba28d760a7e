"""Rule: the optimizer's kernels take long, and none of them does the whole update at once."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.job_kind import FUSABLE, FUSED
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.intervals import intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Share of a step from which the optimizer is worth a trial. A choice: a fused one saves a part of it."""
MANY_AT_ONCE: Final = re.compile(r"multi_tensor_apply_kernel")
"""Kernels of torch's `foreach` optimizers, which update many parameters by one operation each. Of fused ones, too,
whose names say so (`FUSED`)."""


def unfused_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where kernels of torch's optimizer take `LEAST` of a step, and it has a fused form that
    is not in use; None without a device."""
    names = {name for timeline in given.run.ranks.values() for name in timeline.names}
    optimizer = given.job.optimizer
    if not given.run_has_device or given.job.is_npu or optimizer not in FUSABLE or any(map(FUSED.search, names)):
        return None
    found = [_taken(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    mean = sum(ns for ns, _ in found) / max(len(found), 1)
    if not mean or mean < LEAST * given.step_ns:
        return None
    kernels = round(sum(count for _, count in found) / len(found))
    return recommended(
        given,
        id="unfused_optimizer",
        title=f"Try fused=True: {kernels} kernels of {optimizer} take {ms(mean)} of a {ms(given.step_ns)} {given.per} "
        f"({percent_text(mean / given.step_ns)}), and each reads and writes its tensors anew",
        verdict="trial",
        apply={"torch": f"optimizer = torch.optim.{optimizer}(..., fused=True)"},
        evidence={"optimizer": optimizer, "optimizer_ns": round(mean), "kernels": kernels},
        measured=["the time of kernels launched in the optimizer's step"],
        assumed=[],
    )


def _taken(timeline: RankTimeline, windows: Windows) -> tuple[float, float]:
    """Return for how long kernels ran that were launched in the optimizer's step, in ns a window, and their number."""
    spans = timeline.spans
    computes = np.flatnonzero(spans.kind == COMPUTE)
    own = computes[in_optimizer(timeline, computes)]
    if not rows_named(spans.name[own], timeline.names, MANY_AT_ONCE.search).any():
        return 0.0, 0.0
    inside = time_of(windows)
    times = intersection(union((spans.start_ns[own], spans.end_ns[own])), inside)
    within = np.searchsorted(inside.starts, spans.start_ns[own], side="right") - 1
    count = np.count_nonzero((within >= 0) & (spans.start_ns[own] < inside.ends[within]))
    return length(times) / len(windows), count / len(windows)
