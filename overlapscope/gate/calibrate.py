"""Measure how much runs of unchanged code differ: the noise that a difference between few runs must exceed."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Annotated, Final, Literal

import msgspec

from overlapscope.analysis.common.job_identity import differences
from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.metrics import STEP_TIME, Metric, Unit, metrics
from overlapscope.errors import InputError
from overlapscope.gate.comparable import BLOCKING
from overlapscope.gate.policy import JUDGED
from overlapscope.gate.statistics import noise_factor, student_quantile

SCHEMA: Literal["overlapscope.floor/1"] = "overlapscope.floor/1"
LEAST_RUNS: Final = 4
"""Least number of runs to measure how much runs differ."""
LEAST_FREEDOM: Final = 2
"""Least degrees of freedom to measure the spread of the runs that are judged."""
DEFAULT_SHARE: Final = 0.02
"""Without calibration: the standard deviation of a run's times, as a share of the base's step time. All parts of a step
use that of the whole step, because a disturbance may show in any of them."""
DEFAULT_RATIO: Final = 0.02
"""Without calibration: the standard deviation of a run's ratios."""


class MetricNoise(msgspec.Struct, kw_only=True, frozen=True):
    """One metric over the calibration runs."""

    name: str
    unit: Unit
    runs: Annotated[int, msgspec.Meta(ge=2)]
    median: float
    deviation: Annotated[float, msgspec.Meta(ge=0)]
    """Standard deviation from run to run, in the metric's unit."""


class NoiseFloor(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.floor/1`: what `gate --calibrate` found."""

    schema_: Literal["overlapscope.floor/1"] = SCHEMA
    runs: list[str]
    identity: dict[str, str]
    """Identity keys and values that are equal in all of these runs."""
    metrics: list[MetricNoise]


def calibrate(runs: Sequence[MeasuredRun]) -> NoiseFloor:
    """Measure the noise of runs of unchanged code. Raises InputError for too few runs, or runs of several jobs."""
    usable = [run for run in runs if run.steps.recorded.any()]
    if len(usable) < LEAST_RUNS:
        raise InputError(
            f"runs with complete steps: {len(usable)}; record at least {LEAST_RUNS} to measure how much runs differ"
        )
    identities = [run.identity for run in usable]
    others = [each.key for each in differences(identities, identities) if each.key in BLOCKING]
    if others:
        raise InputError(
            f"the runs are not of one job, so their noise cannot be measured: they differ in {', '.join(others)}"
        )
    chosen = common_steps(usable, usable)
    found = metrics(chosen.tables[0], chosen.tables[0], of_steps=True)
    first = usable[0].identity
    same = {key: value for key, value in first.items() if all(run.identity.get(key) == value for run in usable)}
    return NoiseFloor(
        runs=[run.name for run in usable],
        identity=same,
        metrics=[each for metric in found if metric.name in JUDGED for each in _noise(metric)],
    )


def _noise(metric: Metric) -> list[MetricNoise]:
    values = [value for value in metric.base.by_run if value is not None]
    if len(values) < LEAST_RUNS:
        return []
    middle, deviation = float(median(values)), float(stdev(values))
    return [MetricNoise(name=metric.name, unit=metric.unit, runs=len(values), median=middle, deviation=deviation)]


def noise_of(
    metric: Metric, by_name: Mapping[str, Metric], floor: NoiseFloor | None
) -> tuple[float, int | None] | None:
    """Return the standard deviation of a metric between runs and its degrees of freedom (None: taken as exact).

    Without calibration the documented default is used; the result is None where the default needs a step time and there
    is none.
    """
    measured = next((each for each in floor.metrics if each.name == metric.name), None) if floor else None
    if measured is not None:
        return measured.deviation, measured.runs - 1
    if metric.unit == "ratio":
        return DEFAULT_RATIO, None
    step = by_name[STEP_TIME].base.value
    return None if step is None else (DEFAULT_SHARE * step, None)


def own_spread(metric: Metric) -> tuple[float, int] | None:
    """Return the standard deviation of runs about the mean of their side, and its degrees of freedom; None below two.

    It shows a machine that is noisier than the default.
    """
    sides = [[value for value in side.by_run if value is not None] for side in (metric.base, metric.candidate)]
    freedom = sum(len(side) - 1 for side in sides)
    if freedom < LEAST_FREEDOM:
        return None
    return math.sqrt(sum((value - fmean(side)) ** 2 for side in sides for value in side) / freedom), freedom


def noise_bound(deviation: float, freedom: int | None, base_runs: int, candidate_runs: int, alpha: float) -> float:
    """Return the increase of the median that unchanged code exceeds with probability `alpha` at most.

    A prediction bound for normal runs: Student's quantile times the deviation of the difference.
    """
    return student_quantile(1 - alpha, freedom) * deviation * noise_factor(base_runs, candidate_runs)
