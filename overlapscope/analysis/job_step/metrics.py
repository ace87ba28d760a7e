"""The metrics by which runs are compared: a run's value is the median over its steps of a figure over its ranks."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.job_step.step_table import StepFigures
from overlapscope.timeline.columns import NONE, Floats

Unit = Literal["ns", "ratio"]
Fold = Literal["mean", "max", "sum", "span"]
Better = Literal["lower", "higher"] | None


class Estimate(msgspec.Struct, kw_only=True, frozen=True):
    """The values of one metric on one side."""

    value: int | float | None
    """Median of the runs' values; null where no run has one. Nanoseconds are integers."""
    low: int | float | None
    """The smallest of the runs' values, with two runs or more."""
    high: int | float | None
    by_run: list[int | float | None]
    """One value for each run: the median over its complete steps."""
    steps: int
    """Complete steps of all runs that the values are computed from."""


class Metric(msgspec.Struct, kw_only=True, frozen=True):
    """One figure on both sides. The difference is candidate less base, null where either is."""

    name: str
    unit: Unit
    over_ranks: Fold
    """How the ranks of a step are combined into one figure: ratios are ratios of sums over the ranks; `span` is from
    the earliest start to the latest end over the ranks."""
    better: Better
    """Null where a higher value is neither better nor worse."""
    base: Estimate
    candidate: Estimate
    difference: int | float | None
    relative: float | None
    """difference / base; null where the base is 0."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """How a metric is computed: `series` returns one figure for each step, NaN where it is not known."""

    name: str
    unit: Unit
    over_ranks: Fold
    better: Better
    series: Callable[[StepFigures], Floats]

    def median(self, table: StepFigures) -> int | float | None:
        """Return the median over the steps in which it is known; None without one."""
        known = self.series(table)
        return middle(known[~np.isnan(known)].tolist(), self.unit)


def _known(table: StepFigures, name: str) -> Floats:
    """Return a figure as floats, NaN where it is missing or the step was not recorded completely."""
    values = table.figures[name]
    return np.where(table.recorded & (values != NONE), values, np.nan)


def _mean(name: str, *, of_comm: bool = False) -> Callable[[StepFigures], Floats]:
    return lambda table: _over_ranks(table, name, np.mean, of_comm=of_comm)


def _max(name: str, *, of_comm: bool = False) -> Callable[[StepFigures], Floats]:
    return lambda table: _over_ranks(table, name, np.max, of_comm=of_comm)


def _over_ranks(table: StepFigures, name: str, fold: Callable[[Floats], float], *, of_comm: bool) -> Floats:
    """Combine the ranks that recorded a step; NaN where one of them does not know the figure."""
    values = _known(table, name)
    if of_comm and not communicates(table):
        return np.full(len(table.steps), np.nan)
    columns = [values[table.recorded[:, at], at] for at in range(len(table.steps))]
    return np.array([fold(column) if column.size else np.nan for column in columns], np.float64)


def communicates(table: StepFigures) -> bool:
    """Return whether any communication was recorded: without any, exposed time is unknown, not 0."""
    values = table.figures["comm_ns"]
    return bool((values[table.recorded & (values != NONE)] > 0).any())


def _ratio(above: str, *below: str, least: bool = False) -> Callable[[StepFigures], Floats]:
    """Return the ratio of sums over the ranks; with `least`, the smallest of the sums `below` over their total."""

    def series(table: StepFigures) -> Floats:
        sums = [np.where(table.recorded, _known(table, name), 0.0).sum(axis=0) for name in (above, *below)]
        whole = sum(sums[1:], np.zeros(len(table.steps)))
        part = np.minimum(*sums[1:]) if least else sums[0]
        no_comm = np.where(table.recorded, _known(table, "comm_ns"), 0.0).sum(axis=0) == 0
        result: Floats = np.full(part.shape, np.nan)
        np.divide(part, whole, out=result, where=(whole > 0) & ~no_comm)
        return result

    return series


def _exposed_fraction(table: StepFigures) -> Floats:
    """Return exposed communication over the step of the job; by longest windows over own windows, sums over ranks."""
    if table.windows is None:
        return _ratio("exposed_comm_ns", "window_ns")(table)
    exposed, job = _mean("exposed_comm_ns", of_comm=True)(table), table.job.step_ns
    shares: Floats = np.full(job.shape, np.nan)
    np.divide(exposed, job, out=shares, where=job > 0)
    return shares


def _mean_of(name: str, *, better: Better = "lower", of_comm: bool = False) -> Definition:
    series = _mean(name, of_comm=of_comm)
    return Definition(name=name, unit="ns", over_ranks="mean", better=better, series=series)


def _mean_of_comm(name: str, *, better: Better = "lower") -> Definition:
    return _mean_of(name, better=better, of_comm=True)


def _ratio_of(name: str, better: Better, series: Callable[[StepFigures], Floats]) -> Definition:
    return Definition(name=name, unit="ratio", over_ranks="sum", better=better, series=series)


def _step_time(table: StepFigures) -> Floats:
    """Return the length of each step of the job; NaN where a rank's window is not known."""
    known = ~np.isnan(_max("window_ns")(table))
    return np.where(known, table.job.step_ns, np.nan)


def _exposed_wait(table: StepFigures) -> Floats:
    """Return exposed waiting of each step; where only some steps communicate, exposed time times the share of waiting.

    There the medians of exposed time and of waiting are of unlike steps, and the one would be no part of the other.
    """
    waiting = _mean("exposed_wait_ns", of_comm=True)(table)
    if (_mean("comm_ns")(table) != 0).all():
        return waiting
    exposed = _mean("exposed_comm_ns", of_comm=True)(table)
    known = ~np.isnan(waiting) & ~np.isnan(exposed)
    whole = float(exposed[known].sum())
    return np.where(known, exposed * (float(waiting[known].sum()) / whole), np.nan) if whole else waiting


def _lacking(name: str) -> Definition:
    """Return the mean over ranks of what their windows lack of the job's step."""

    def series(table: StepFigures) -> Floats:
        sums, ranks = getattr(table.job, name).sum(axis=0), table.recorded.sum(axis=0)
        result: Floats = np.full(ranks.shape, np.nan)
        np.divide(sums, ranks, out=result, where=ranks > 0)
        return result

    return Definition(name=name, unit="ns", over_ranks="mean", better=None, series=series)


STEP_TIME: Final = "step_time_ns"
METRICS: Final = (
    Definition(name=STEP_TIME, unit="ns", over_ranks="span", better="lower", series=_step_time),
    _mean_of_comm("exposed_comm_ns"),
    Definition(
        name="exposed_comm_worst_ns",
        unit="ns",
        over_ranks="max",
        better="lower",
        series=_max("exposed_comm_ns", of_comm=True),
    ),
    Definition(name="exposed_wait_ns", unit="ns", over_ranks="mean", better="lower", series=_exposed_wait),
    _mean_of_comm("hidden_wait_ns"),
    Definition(name="blame_ns", unit="ns", over_ranks="max", better="lower", series=_max("blame_ns", of_comm=True)),
    _mean_of_comm("overlapped_ns", better=None),
    _mean_of_comm("comm_ns"),
    _mean_of("compute_ns"),
    _mean_of("compute_only_ns", better=None),
    _mean_of("copy_ns"),
    _mean_of("copy_only_ns"),
    _mean_of("idle_ns"),
    _ratio_of("overlap_efficiency", "higher", _ratio("overlapped_ns", "comm_ns")),
    _ratio_of("exposed_fraction", "lower", _exposed_fraction),
    _ratio_of("comm_comp_ratio", None, _ratio("comm_ns", "compute_ns")),
    _ratio_of("overlap_potential", None, _ratio("comm_ns", "comm_ns", "compute_ns", least=True)),
    _lacking("start_of_recording_ns"),
    _lacking("outside_ns"),
)
DEFINITIONS: Final = {each.name: each for each in METRICS}
OF_JOB_STEPS: Final = ("start_of_recording_ns", "outside_ns")
"""Metrics that a comparison by the longest windows does not have."""


def metrics(base: Sequence[StepFigures], candidate: Sequence[StepFigures], *, of_steps: bool) -> list[Metric]:
    """Return every metric of two sides; each side holds one table of comparable steps for each run.

    Without `of_steps` the tables hold whole recordings, whose length is no step time.
    """
    spans = all(table.windows is not None for table in (*base, *candidate))
    fold: Fold = "span" if spans else "max"
    step_time = replace(DEFINITIONS[STEP_TIME], over_ranks=fold)
    if not of_steps:
        step_time = replace(step_time, series=lambda _: np.empty(0))
    others = [each for each in METRICS[1:] if spans or each.name not in OF_JOB_STEPS]
    return [_metric(each, base, candidate) for each in (step_time, *others)]


def _metric(each: Definition, base: Sequence[StepFigures], candidate: Sequence[StepFigures]) -> Metric:
    ours, theirs = _estimate(each, base), _estimate(each, candidate)
    known = ours.value is not None and theirs.value is not None
    difference = theirs.value - ours.value if known else None  # type: ignore[operator]
    return Metric(
        name=each.name,
        unit=each.unit,
        over_ranks=each.over_ranks,
        better=each.better,
        base=ours,
        candidate=theirs,
        difference=difference,
        relative=difference / ours.value if difference is not None and ours.value else None,
    )


def _estimate(each: Definition, runs: Sequence[StepFigures]) -> Estimate:
    series = [each.series(table) for table in runs]
    known = [values[~np.isnan(values)] for values in series]
    values = [middle(v.tolist(), each.unit) for v in known]
    some = [value for value in values if value is not None]
    return Estimate(
        value=middle(some, each.unit),
        low=min(some) if len(some) > 1 else None,
        high=max(some) if len(some) > 1 else None,
        by_run=values,
        steps=sum(v.size for v in known),
    )


def middle(values: Sequence[int | float], unit: Unit) -> int | float | None:
    """Return the median, in whole nanoseconds; None without values."""
    if not values:
        return None
    return round(median(values)) if unit == "ns" else median(values)
