"""How much of a step's exposed communication is of the rank that decides how long the step takes."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from overlapscope.advice.rule_input import RuleInput, ms
from overlapscope.analysis.job_step.headline import left_out
from overlapscope.analysis.result import Recommendation, StepBreakdown

MUCH_LESS: Final = 0.5
"""What the rank that computes longest is exposed is said, and bounds what less communication gains, where it is less
than this share of the mean over ranks. A choice: ranks that compute alike differ by chance."""
DECIDING_NS: Final = "deciding_ns"
"""In the evidence: what that is."""
BOUNDED: Final = (
    "for how long the rank that computes longest in each step is exposed, by which a step gets shorter at most"
)
FEWEST: Final = 2
"""Ranks, and steps, so that one may decide and another wait."""


def deciding_ns(given: RuleInput) -> float | None:
    """Return for how long the rank that computes longest in a step is exposed, mean over the usual steps, where that is
    far less than the mean over ranks (`MUCH_LESS`); None elsewhere, and where not all ranks were recorded.

    Without any exposed communication a step takes no less than that rank computes: the others only wait for it then.
    """
    head = given.analysis.headline
    if not given.run_has_device or not given.is_whole or given.per != "step":
        return None
    without = left_out(head)
    by_step: dict[int, list[StepBreakdown]] = {}
    for info in given.analysis.ranks:
        for each in info.steps:
            if each.complete and each.step not in without and each.compute_ns is not None:
                by_step.setdefault(each.step, []).append(each)
    steps = [of for of in by_step.values() if len(of) == len(given.analysis.ranks) >= FEWEST]
    if len(steps) < FEWEST:
        return None
    decide_ns = fmean(_exposed_ns(max(of, key=lambda each: each.compute_ns or 0)) for of in steps)
    mean_ns = fmean(_exposed_ns(each) for of in steps for each in of)
    return decide_ns if decide_ns < MUCH_LESS * mean_ns else None


def deciding_words(ns: float | None) -> str:
    """Return words for a title on what that rank is exposed; empty where it is not known, or not far less."""
    return "" if ns is None else f"; on the rank that computes longest in each step, which decides, {ms(ns)} of it"


def with_deciding_bound(
    settings: Sequence[Recommendation], given: RuleInput, of_exposed: frozenset[str]
) -> list[Recommendation]:
    """Return recommendations, those that shorten exposed communication (`of_exposed`) with what the rank that decides
    is exposed as their bound; without those that are not worth it then."""
    ns = deciding_ns(given)
    found = []
    for each in settings:
        if ns is None or each.id not in of_exposed or each.gain_high_ns is None or each.per != given.per:
            found.append(each)
            continue
        bound = min(round(ns), each.gain_high_ns)
        if given.is_worth(bound):
            lost = None if each.loss_ns is None else min(round(ns), each.loss_ns)
            said = [*each.measured, *[BOUNDED] * (bound != each.gain_high_ns)]
            found.append(replace(each, gain_high_ns=bound, loss_ns=lost, measured=said))
    return found


def _exposed_ns(step: StepBreakdown) -> int:
    return step.exposed_comm_ns or 0
