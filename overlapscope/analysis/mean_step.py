"""Decide whether the median step or the mean one is the main figure of text, reports and the dashboard."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import EXPOSED_WAIT, START_OF_RECORDING
from overlapscope.analysis.cost.throughput import Throughput
from overlapscope.analysis.job_step.attribution import divided
from overlapscope.analysis.job_step.headline import PARTS, Headline, StepOfJob, few_communicate
from overlapscope.analysis.job_step.two_kinds import TwoKinds, two_kinds
from overlapscope.analysis.result import (
    Analysis,
    Because,
    MeanStep,
    causes_of_all_steps,
    idle_causes_of_all_steps,
    of_a_day_ns,
    overlapping_ns,
    without_outliers,
)
from overlapscope.timeline.two_lengths import FEWEST

OVERLAP: Final = 0.02
"""Steps of ranks overlap by much where the mean one is shorter than the job's median one by this share or more. A
choice."""
LOSES_MUCH: Final = 0.1
"""The mean step stands first where it loses at least this share, and ..."""
SEVERAL: Final = 3
"""... at least so many times the share that the median step does, and ..."""
FEWEST_LOSSY: Final = 2
"""... so many steps, besides the first, lose more than the mean one: a single pause is an outlier. Choices."""
APART: Final = ("start_of_recording_ns", "outside_ns")
"""Parts of a step of the job that are none of the ranks' own steps."""


def with_mean_step(analysis: Analysis) -> Analysis:
    """Return the analysis with its mean step, where the median one misleads: what reads it shows the same figures."""
    return replace(analysis, mean_step=_mean_step(analysis))


def _mean_step(analysis: Analysis) -> MeanStep | None:
    """Return the mean step where the median one, the headline's, misleads; None where that is the main figure.

    It misleads where at most half of the steps communicate, where steps of the ranks overlap, where some steps lose
    much and the median one has next to nothing of it, and where steps are of two kinds.
    """
    head, cost = analysis.headline, analysis.throughput
    if head.window != "step":
        return None
    if few_communicate(head) is not None:
        return _mean(analysis, head.job_steps, "few_communicate")
    steps = [each for each in head.job_steps if cost is None or each.step not in cost.cut_short]
    if not steps:
        return None
    own_ns = overlapping_ns(analysis)
    if own_ns is not None and head.pace_ns is None and own_ns <= (1 - OVERLAP) * (head.step_ns or 0):
        usual_ns = of_a_day_ns(analysis, "step") or own_ns
        return _of_own_steps(_mean(analysis, steps, "steps_overlap", min(usual_ns, own_ns)), cost)
    lossy, kinds = _lossy_steps(head, steps), _kinds_of_steps(analysis)
    if lossy < FEWEST_LOSSY and (kinds is None or head.exposed_comm_ns is None):
        return None
    found = _mean(analysis, steps, "few_lose" if lossy >= FEWEST_LOSSY else "two_kinds", own_ns)
    return replace(found, lossy=lossy if lossy >= FEWEST_LOSSY else 0, kinds=kinds)


def _mean(analysis: Analysis, steps: Sequence[StepOfJob], because: Because, own_ns: float | None = None) -> MeanStep:
    """Return the mean of these steps; where they overlap, `own_ns` is how long the ranks' own take, which lack what is
    apart."""
    sums = {name: sum(getattr(each, name) or 0 for each in steps) for name in PARTS}
    parts = dict.fromkeys(PARTS, 0) | divided(round(sum(sums.values()) / len(steps)), sums)
    if own_ns is not None:
        parts |= dict.fromkeys(APART, 0)
    step_ns = round(fmean(each.step_ns for each in steps) if own_ns is None else own_ns)
    exposed_ns, head = parts["exposed_comm_ns"], analysis.headline
    comm_ns = exposed_ns + parts["overlapped_ns"]
    causes = divided(exposed_ns, causes_of_all_steps(analysis) or head.causes)
    # Documents of 0.1 name no causes of idle time.
    idle_causes = divided(parts["idle_ns"], idle_causes_of_all_steps(analysis) or head.idle_causes)
    return MeanStep(
        because=because,
        steps=len(steps),
        numbers=[each.step for each in steps if each.step is not None],
        step_ns=step_ns,
        exposed_comm_ns=exposed_ns,
        exposed_wait_ns=None if head.exposed_wait_ns is None else _waits_ns(causes),
        overlapped_ns=parts["overlapped_ns"],
        compute_only_ns=parts["compute_only_ns"],
        copy_only_ns=None if any(each.copy_only_ns is None for each in steps) else parts["copy_only_ns"],
        idle_ns=parts["idle_ns"],
        start_of_recording_ns=parts["start_of_recording_ns"],
        outside_ns=parts["outside_ns"],
        exposed_fraction=exposed_ns / step_ns if step_ns else None,
        overlap_efficiency=parts["overlapped_ns"] / comm_ns if comm_ns else None,
        causes={cause: ns for cause, ns in causes.items() if ns},
        idle_causes={cause: ns for cause, ns in idle_causes.items() if ns},
    )


def _of_own_steps(found: MeanStep, cost: Throughput | None) -> MeanStep:
    """Return the mean of steps that overlap with exposed and idle time as GPU-hours have them: without the start of the
    recording, which its length is without, too."""
    exposed, idle = (cost.exposed_fraction, cost.idle_fraction) if cost else (None, None)
    exposed_ns = None if exposed is None else round(exposed * found.step_ns)
    idle_ns = found.idle_ns if idle is None else round(idle * found.step_ns)
    causes, idle_causes = (
        divided(ns, {cause: its for cause, its in of.items() if cause != START_OF_RECORDING})
        for ns, of in ((exposed_ns or 0, found.causes), (idle_ns, found.idle_causes))
    )
    return replace(
        found,
        exposed_comm_ns=exposed_ns,
        exposed_fraction=exposed,
        exposed_wait_ns=None if found.exposed_wait_ns is None else _waits_ns(causes),
        idle_ns=idle_ns,
        causes={cause: ns for cause, ns in causes.items() if ns},
        idle_causes={cause: ns for cause, ns in idle_causes.items() if ns},
    )


def lacks_start(mean: MeanStep, analysis: Analysis) -> bool:
    """Return whether the mean step is without the start of the recording, of which its steps have some."""
    return START_OF_RECORDING in causes_of_all_steps(analysis) and START_OF_RECORDING not in mean.causes


def _waits_ns(causes: Mapping[str, int]) -> int:
    return sum(causes.get(each, 0) for each in EXPOSED_WAIT)


def _lossy_steps(head: Headline, steps: Sequence[StepOfJob]) -> int:
    """Return how many steps lose more than the mean one, where the median step loses next to nothing beside that.

    It is so even without the first step, which may lose what a job loses once.
    """
    later = steps[1:]
    if head.exposed_comm_ns is None or not later or not head.step_ns:
        return 0
    lost = [each.exposed_comm_ns + each.idle_ns for each in later]
    share = sum(lost) / max(sum(each.step_ns for each in later), 1)
    usual = (head.exposed_comm_ns + (head.idle_ns or 0)) / head.step_ns
    if share < max(SEVERAL * usual, LOSES_MUCH) or sum(ns > fmean(lost) for ns in lost) < FEWEST_LOSSY:
        return 0
    return sum(each.exposed_comm_ns + each.idle_ns > fmean(lost) for each in steps)


def _kinds_of_steps(analysis: Analysis) -> TwoKinds | None:
    """Return the two kinds of a job's steps; None where the long ones are outliers, and where most ranks have less than
    FEWEST long ones: a pause of one rank makes two steps of the job long."""
    kinds = two_kinds(analysis.headline)
    if kinds is None or without_outliers(analysis) is not None:
        return None
    middle_ns, long = (kinds.short_ns + kinds.long_ns) / 2, {*kinds.long}
    ranks = [info for info in analysis.ranks if info.rank in analysis.headline.ranks]
    has_several = [
        sum((each.window_ns or 0) > middle_ns for each in info.steps if each.complete and each.step in long) >= FEWEST
        for info in ranks
    ]
    return kinds if 2 * sum(has_several) > len(ranks) else None
