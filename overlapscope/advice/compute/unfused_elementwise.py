"""Rule: where compute is nearly all of a step, elementwise kernels and copies that a compiler could fuse; and what
compute is."""

from collections.abc import Iterable
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.compute.copy_kernels import casts, copies_as_they_are
from overlapscope.advice.losses.gradient_accumulation import outside_model
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of, window_of
from overlapscope.analysis.common.cause_table import START_OF_RECORDING
from overlapscope.analysis.job_step.headline import Headline, few_communicate
from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.per_rank.kernel_families import (
    COMPILED,
    ELEMENTWISE,
    FAMILIES,
    OTHER,
    family_of,
    family_times,
)
from overlapscope.analysis.per_rank.kernels import KernelTotals
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.intervals import intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

LITTLE_LOST: Final = 0.1
"""Compute decides how long a step takes where less of it is exposed communication or idle. A choice."""
MUCH_COPIED: Final = 0.05
"""From this share of a step in copies alone on it is not said that kernels decide how long it takes. A choice."""
LEAST: Final = 0.1
"""Share of a step from which elementwise kernels are worth a trial. A choice: fused ones save a part of it."""
NAMED: Final = 0.03
"""Least share of compute for a family to be named, and of these kernels for copies to be, and ..."""
UNKNOWN: Final = 0.5
"""... largest share in kernels of no family for any to be. Choices."""


class _Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a compiler could fuse on a rank, a window."""

    busy_ns: float
    copies_ns: float
    """Of it, the model's copies and casts."""
    kernels: float


def unfused_elementwise(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where little else is lost and elementwise kernels, with the model's copies and casts,
    take `LEAST` of a step, in a job that trains and runs no kernel of a compiler; None without a device."""
    if not given.run_has_device or given.job.serves or not compute_decides(given.figures):
        return None
    names = {name for timeline in given.run.ranks.values() for name in timeline.names}
    if any(map(FAMILIES[COMPILED].search, names)):
        return None
    found = [_taken(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    mean = sum(each.busy_ns for each in found) / max(len(found), 1)
    if not mean or mean < LEAST * given.step_ns:
        return None
    kernels = round(sum(each.kernels for each in found) / len(found))
    copies_ns = sum(each.copies_ns for each in found) / len(found)
    what = "elementwise kernels and copies" if copies_ns >= NAMED * mean else "elementwise kernels"
    return recommended(
        given,
        id="unfused_elementwise",
        title=f"Try torch.compile: {what} take {ms(mean)} of a {ms(given.step_ns)} {given.per} "
        f"({percent_text(mean / given.step_ns)}; kernels: {kernels}), "
        "and each reads and writes its tensors anew",
        verdict="trial",
        apply={"torch": "model = torch.compile(model)  # before it is wrapped"},
        evidence={"elementwise_ns": round(mean), "kernels": kernels, "copies_ns": round(copies_ns)},
        measured=[
            "the time of PyTorch's elementwise kernels of the model, by their names, and of copies and casts in it"
        ],
        assumed=[],
    )


def _taken(timeline: RankTimeline, windows: Windows) -> _Taken:
    """Return what a compiler could fuse in the windows of a rank."""
    spans = timeline.spans
    computes = np.flatnonzero(spans.kind == COMPUTE)
    own = computes[rows_named(spans.name[computes], timeline.names, lambda name: family_of(name) == ELEMENTWISE)]
    # Compiling the model changes none of what stores, sends and clips gradients, and of the optimizer.
    own = own[~in_optimizer(timeline, own) & ~outside_model(timeline, own)]
    copies = np.concatenate([copies_as_they_are(timeline)[0], casts(timeline)])
    copies = copies[spans.kind[copies] == COMPUTE]
    every = np.union1d(own, copies)
    every = every[window_of(windows, spans.start_ns[every]) != NONE]
    inside = time_of(windows)
    busy, copied = (
        length(intersection(union((spans.start_ns[rows], spans.end_ns[rows])), inside)) / len(windows)
        for rows in (every, copies)
    )
    return _Taken(busy_ns=busy, copies_ns=copied, kernels=every.size / len(windows))


def compute_decides(figures: Headline) -> bool:
    """Return whether less than `LITTLE_LOST` of a step is exposed communication or idle."""
    lost_ns = (figures.exposed_comm_ns or 0) + (figures.idle_ns or 0)
    return bool(figures.step_ns and figures.compute_only_ns and lost_ns < LITTLE_LOST * figures.step_ns)


def loses_elsewhere(analysis: Analysis) -> bool:
    """Return whether more than a little is lost that complete steps do not show: the job's step is longer than its
    ranks' own windows, or the recordings' exposed communication, mean over ranks, is more of them."""
    head = analysis.headline
    if head.steps_by == "job_step" and (head.outside_ns or 0) >= LITTLE_LOST * (head.step_ns or 0) > 0:
        return True
    whole = [each.whole for each in analysis.ranks if each.rank in head.ranks]
    exposed_ns = sum((each.exposed_comm_ns or 0) - each.causes.get(START_OF_RECORDING, 0) for each in whole)
    return exposed_ns >= LITTLE_LOST * sum(each.window_ns or 0 for each in whole) > 0


def _nothing_else_decides(figures: Headline) -> bool:
    """Return whether compute decides how long all steps take: copies do not, and neither do few long steps, or those of
    another kind, which a median does not show."""
    step_ns, each_ns = figures.step_ns or 0, [each.step_ns for each in figures.job_steps]
    mean_ns = fmean(each_ns) if each_ns else step_ns
    return (
        compute_decides(figures)
        and (figures.copy_only_ns or 0) < MUCH_COPIED * step_ns
        and mean_ns < (1 + LITTLE_LOST) * step_ns
        and few_communicate(figures) is None
    )


def compute_words(figures: Headline, tables: Iterable[KernelTotals]) -> str:
    """Return what compute is where it decides how long a step takes; else, or where names say little, nothing."""
    times = family_times(tables) if _nothing_else_decides(figures) else {}
    total = sum(times.values())
    if not total or times.get(OTHER, 0) > UNKNOWN * total:
        return ""
    named = {family: ns for family, ns in times.items() if family != OTHER and ns >= NAMED * total}
    parts = [f"{family} {percent_text(ns / total, 0)}" for family, ns in named.items()]
    rest = total - sum(named.values())
    parts += [f"the rest {percent_text(rest / total, 0)}"] if rest >= NAMED * total else []
    lost = ((figures.exposed_comm_ns or 0) + (figures.idle_ns or 0)) / (figures.step_ns or 1)
    of = "step" if figures.window == "step" else "recording"
    return (
        f"{percent_text(lost)} of the {of} is exposed or idle, so its kernels decide how long it takes, by their "
        f"names: {', '.join(parts)} of compute"
    )
