"""Judge one metric: is its difference large enough to matter, and more than chance?"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.analysis.job_step.metrics import Better, Metric, Unit
from overlapscope.analysis.job_step.step_table import StepTable
from overlapscope.gate.calibrate import NoiseFloor, noise_bound, noise_of, own_spread
from overlapscope.gate.policy import JUDGED, Policy
from overlapscope.gate.statistics import ROUNDING, bootstrap, holm, permutation_test, shift_interval, tail_probabilities

MetricOutcome = Literal["improved", "unchanged", "regressed", "inconclusive", "not_applicable"]
OutcomeReason = Literal[
    "told", "within_minimum", "within_noise", "not_significant", "too_few_runs", "too_few_steps",
    "missing", "missing_in_base", "missing_in_candidate", "within_interval", "other_workload",
]  # fmt: skip
MANY_RUNS: Final = 4
"""With so many runs on each side, the runs themselves are tested; with fewer, their steps and the noise floor."""
CONFIDENCE: Final = 0.9


class MetricVerdict(msgspec.Struct, kw_only=True, frozen=True):
    """The verdict on one metric and its evidence. The difference is candidate minus base, of medians of runs."""

    name: str
    unit: Unit
    better: Better
    gates: bool
    """Whether it can fail the gate; otherwise it is only reported."""
    verdict: MetricOutcome
    reason: OutcomeReason
    """`told`: the difference exceeds the minimum and is more than chance. Of priced times only: `within_interval`, the
    interval holds 0; `other_workload`, batch or sequence differ."""
    base: int | float | None
    candidate: int | float | None
    difference: int | float | None
    relative: float | None
    base_runs: int
    """Number of runs that have a value."""
    candidate_runs: int
    minimum: float | None
    """The least difference that counts: the larger of the relative and the absolute minimum."""
    test: Literal["permutation", "bootstrap", "priced"] | None
    """`permutation` over runs where each side has four or more; else `bootstrap` over their steps. `priced`: these are
    estimated times of dry runs, and the difference is over draws of the price's constants."""
    probability: float | None
    """Probability of so large a difference in this direction by chance; adjusted for the number of gating metrics."""
    low: float | None
    """90 % interval of the difference: over runs, or over the steps of these runs; 80 % of priced times."""
    high: float | None
    floor: float | None
    """With fewer than four runs, the difference that unchanged code stays below; null where the runs are tested."""
    calibrated: bool | None
    """Whether the floor was measured; otherwise it is the documented default."""


class _Tested(msgspec.Struct, frozen=True, kw_only=True):
    """The test result of a metric, before it is adjusted for several metrics."""

    test: Literal["permutation", "bootstrap"]
    worse: float | None = None
    """Probability by chance of so much worse a value."""
    better: float | None = None
    interval: tuple[float, float] | None = None


def judge_metrics(
    metrics: Sequence[Metric],
    tables: tuple[Sequence[StepTable], Sequence[StepTable]],
    policy: Policy,
    floor: NoiseFloor | None,
) -> list[MetricVerdict]:
    """Judge every metric that has a better direction; those that gate come first, in the policy's order."""
    by_name = {each.name: each for each in metrics}
    order = [*policy.metrics, *(name for name in JUDGED if name not in policy.metrics)]
    tests = {name: _tested(by_name[name], tables, policy.seed) for name in order}
    gating = [name for name in policy.metrics if tests[name] is not None]
    found = []
    for name in order:
        family = gating if name in gating else [name]
        tested = tests[name]
        chances = None
        if tested is not None and tested.worse is not None:
            chances = _adjusted(name, family, tests)
        found.append(_judged(by_name[name], by_name, tested, chances, len(family), policy=policy, floor=floor))
    return found


def _adjusted(name: str, family: Sequence[str], tests: Mapping[str, _Tested | None]) -> tuple[float, float]:
    """Return the probabilities of a metric for worse and for better, adjusted for all that gate.

    A metric that could not be tested counts with probability 1.
    """
    worse = [1.0 if (t := tests[each]) is None or t.worse is None else t.worse for each in family]
    better = [1.0 if (t := tests[each]) is None or t.better is None else t.better for each in family]
    at = family.index(name)
    return holm(worse)[at], holm(better)[at]


def _tested(metric: Metric, tables: tuple[Sequence[StepTable], Sequence[StepTable]], seed: int) -> _Tested | None:
    ours, theirs = ([v for v in side.by_run if v is not None] for side in (metric.base, metric.candidate))
    if not ours or not theirs:
        return None
    if min(len(ours), len(theirs)) >= MANY_RUNS:
        higher, lower = permutation_test(ours, theirs)
        worse, better = _by_direction(metric, higher, lower)
        interval = shift_interval(ours, theirs, CONFIDENCE)
        return _Tested(test="permutation", worse=worse, better=better, interval=interval)
    definition = JUDGED[metric.name]
    series = [[definition.series(table) for table in side] for side in tables]
    known = [[kept for run in side if (kept := run[~np.isnan(run)]).size] for side in series]
    draws = bootstrap(known[0], known[1], seed)
    if draws is None:
        return _Tested(test="bootstrap")
    worse, better = _by_direction(metric, *tail_probabilities(draws))
    cut = round((1 - CONFIDENCE) / 2 * draws.size)
    return _Tested(test="bootstrap", worse=worse, better=better, interval=(float(draws[cut]), float(draws[-1 - cut])))


def _by_direction(metric: Metric, higher: float, lower: float) -> tuple[float, float]:
    return (higher, lower) if metric.better == "lower" else (lower, higher)


def _judged(
    metric: Metric,
    by_name: Mapping[str, Metric],
    tested: _Tested | None,
    chances: tuple[float, float] | None,
    family: int,
    *,
    policy: Policy,
    floor: NoiseFloor | None,
) -> MetricVerdict:
    runs = [sum(value is not None for value in side.by_run) for side in (metric.base, metric.candidate)]
    minimum = noise = calibrated = probability = None
    verdict: MetricOutcome = "not_applicable"
    reason: OutcomeReason = "missing"
    if metric.difference is None or metric.base.value is None or tested is None:
        if metric.base.value is not None or metric.candidate.value is not None:
            reason = "missing_in_base" if metric.base.value is None else "missing_in_candidate"
    else:
        least = policy.min_absolute_ratio if metric.unit == "ratio" else policy.min_absolute_ns
        minimum = max(policy.min_relative * abs(metric.base.value), float(least))
        if tested.test == "bootstrap":
            known = noise_of(metric, by_name, floor)
            calibrated = floor is not None and any(each.name == metric.name for each in floor.metrics)
            shown = None if calibrated else own_spread(metric)
            floors = [noise_bound(*each, runs[0], runs[1], policy.alpha / family) for each in (known, shown) if each]
            noise = max(floors, default=None)
        worse = metric.difference if metric.better == "lower" else -metric.difference
        probability = None if chances is None else chances[0 if worse > 0 else 1]
        reason = _reason(abs(worse), minimum, noise, tested, probability, runs, family=family, alpha=policy.alpha)
        verdict = "unchanged" if reason == "within_minimum" else "inconclusive"
        if reason == "told":
            verdict = "regressed" if worse > 0 else "improved"
    low, high = tested.interval if tested and tested.interval else (None, None)
    return MetricVerdict(
        name=metric.name, unit=metric.unit, better=metric.better, gates=metric.name in policy.metrics,
        verdict=verdict, reason=reason, base=metric.base.value, candidate=metric.candidate.value,
        difference=metric.difference, relative=metric.relative, base_runs=runs[0], candidate_runs=runs[1],
        minimum=minimum, test=None if tested is None else tested.test, probability=probability, low=low, high=high,
        floor=noise, calibrated=calibrated,
    )  # fmt: skip


def _reason(
    size: float,
    minimum: float,
    noise: float | None,
    tested: _Tested,
    probability: float | None,
    runs: Sequence[int],
    *,
    family: int,
    alpha: float,
) -> OutcomeReason:
    """Return why there is no verdict of a change; `told` where there is one."""
    if size < minimum or size == 0:
        return "within_minimum"
    if probability is None:
        return "too_few_steps"
    if tested.test == "bootstrap" and (noise is None or size <= noise):
        return "within_noise"
    if probability <= alpha + ROUNDING:
        return "told"
    # With few runs even the most extreme order may be likelier than the level for several metrics.
    few = tested.test == "permutation" and family / math.comb(sum(runs), runs[0]) > alpha + ROUNDING
    return "too_few_runs" if few else "not_significant"
