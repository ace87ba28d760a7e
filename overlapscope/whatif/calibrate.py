"""From measured steps to a model that can be trusted elsewhere: fit interference, and carry all that is not known.

One number is fitted: how much compute and a collective slow each other. What else is assumed is varied within its
range, the fit is made anew each time, and what the predictions do then is their interval.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Floats
from overlapscope.whatif.ddp_step import Settings, ddp_job
from overlapscope.whatif.priority_step import priority_job
from overlapscope.whatif.replay import Job, Replay, replay
from overlapscope.whatif.sharded_step import sharded_job
from overlapscope.whatif.workload import Interference, Workload

PRIOR: Final = (1.2, 1.3, 1.4)
"""Slowdown of compute where no run tells it: low, middle, high. Echo (arXiv 2412.12487) measured 1.27 for matrix
products and 1.38 over all kernels."""
WIDE_PRIOR: Final = (1.0, 1.6)
"""What an interval must allow for where it is not identified."""
MOST: Final = 2.0
"""A fit beyond this explains something else: no source reports a mean slowdown of it."""
SELF_TEST: Final = 0.03
"""A replay that misses the recorded step by more gives no advice; one that does not may miss other steps by it."""
TELLING: Final = 2.0
"""Interference is identified where the prior's range moves the step by so many times the noise."""
LEAST_NOISE: Final = 0.01
"""What noise is at least taken to be, there: a model is not finer than that."""
ENOUGH: Final = 1e-5
"""A fit that misses by less is not made better."""
SLOWDOWN: Final = "interference"
"""Name of the slowdown among the values that a recorded workload is built from."""
Values = Mapping[str, float]


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """Something nobody measured: what it is taken to be, and between what it may lie."""

    name: str
    value: float
    low: float
    high: float
    known_from: str

    @classmethod
    def of(cls, name: str, values: Sequence[float], known_from: str) -> Self:
        """Take low, value and high from `values`."""
        low, value, high = values
        return cls(name=name, value=value, low=low, high=high, known_from=known_from)


def step_ns(workload: Workload, settings: Settings, slowdown: float) -> float:
    """Return the replayed step with compute and collectives slowing each other so much."""
    return _replayed(workload, step_job(workload, settings), slowdown).step_ns


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was measured."""

    settings: Settings
    step_ns: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How much compute slows beside communication."""

    slowdown: float
    low: float
    high: float
    identified: bool
    reason: str
    """Why it is not identified; empty where it is."""


def fit(workload: Workload, measured: Sequence[Measured], noise: float) -> Fit:
    """Fit the slowdown beside communication to measured steps; the prior, with the reason, where they do not tell it.

    `noise` is the share by which two measurements of one setting differ. Both ends of the range are fits too: to steps
    that are lower and higher by the noise.
    """
    if not measured:
        return prior("no measured step was given")
    missed = _missed(workload, measured)
    moved = missed(PRIOR[2]) - missed(PRIOR[0])
    if moved < TELLING * max(noise, LEAST_NOISE):
        return prior(
            "the measured settings overlap too little to tell it, "
            f"{PRIOR[0]:g} to {PRIOR[2]:g} moves their steps by {moved * 100:.1f} %"
        )
    best = _root(missed)
    if best in (1.0, MOST):
        side = f"more than {MOST:g}" if best == MOST else "less than 1"
        return prior(f"the measured steps would need a slowdown of {side}: something else takes time in them")
    low, high = _root(lambda slowdown: missed(slowdown) + noise), _root(lambda slowdown: missed(slowdown) - noise)
    return Fit(slowdown=best, low=low, high=high, identified=True, reason="")


class Predictions(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Steps of all settings under all variations of what is assumed. Row 0 is what is taken to hold."""

    settings: tuple[Settings, ...]
    steps_ns: Floats
    """(variation, setting)."""
    variations: tuple[str, ...]
    """The assumption that each row varies; two rows each, low and high."""
    exposed_ns: Floats
    """Of row 0, by setting."""
    spent_ns: Floats
    """Of row 0, by setting, on the rank that ends last: compute and gaps alone, compute beside collectives, exposed."""
    fit: Fit
    noise: float
    replay_error: float | None
    """The worst miss of a measured step, as a share of it; None without one."""

    def times(self, factor: float) -> Self:
        """Return them with all times so many times as long."""
        return replace(
            self, steps_ns=self.steps_ns * factor, exposed_ns=self.exposed_ns * factor, spent_ns=self.spent_ns * factor
        )

    def half_width(self, values: Floats) -> Floats:
        """Return the half of a 90 % interval of something that has a row for each variation, about row 0."""
        return half_width(values, self.variations)

    def depends_on(self, place: int) -> dict[str, tuple[float, float]]:
        """Return for each assumption the least and the greatest step in ns of one setting as it varies."""
        found = {}
        for name in dict.fromkeys(self.variations[1:]):
            rows = [number for number, each in enumerate(self.variations) if each == name]
            steps = self.steps_ns[rows, place]
            found[name] = (float(steps.min()), float(steps.max()))
        return found


def half_width(values: Floats, variations: Sequence[str]) -> Floats:
    """Return the half of a 90 % interval of values about row 0, with a row for each named variation.

    Independent causes add up as squares; of the two directions of one the larger counts.
    """
    total = np.zeros(values.shape[1:])
    for name in dict.fromkeys(variations[1:]):
        rows = [place for place, each in enumerate(variations) if each == name]
        total = total + np.abs(values[rows] - values[0]).max(axis=0) ** 2
    half: Floats = np.sqrt(total)
    return half


def predict(
    build: Callable[[Values], Workload],
    assumptions: Sequence[Assumption],
    measured: Sequence[Measured],
    settings: Sequence[Settings],
    noise: float,
    told: Fit | None = None,
) -> Predictions:
    """Predict the steps of settings: as assumed, and with each assumption at both ends of its range, fitted anew.

    With `told` nothing is fitted: a recording tells the slowdown, and `build` takes it as the value `SLOWDOWN`.
    """
    if told is not None:
        return _predict_told(build, assumptions, measured, settings, noise, told)
    nominal = {each.name: each.value for each in assumptions}
    base = build(nominal)
    found = fit(base, measured, noise)
    jobs = [step_job(base, each) for each in settings]
    results = [_replayed(base, job, found.slowdown) for job in jobs]
    rows, names = [[each.step_ns for each in results]], [""]
    for each in assumptions:
        for value in (each.low, each.high):
            workload = build({**nominal, each.name: value})
            slowdown = _root(_missed(workload, measured)) if found.identified else found.slowdown
            rows.append([step_ns(workload, one, slowdown) for one in settings])
            names.append(each.name)
    for slowdown in (found.low, found.high):
        rows.append([_replayed(base, job, slowdown).step_ns for job in jobs])
        names.append("interference")
    misses = [step_ns(base, each.settings, found.slowdown) / each.step_ns - 1 for each in measured]
    return _predictions(settings, rows, names, results, found, noise, misses)


def _predict_told(
    build: Callable[[Values], Workload],
    assumptions: Sequence[Assumption],
    measured: Sequence[Measured],
    settings: Sequence[Settings],
    noise: float,
    told: Fit,
) -> Predictions:
    nominal = {**{each.name: each.value for each in assumptions}, SLOWDOWN: told.slowdown}
    base = build(nominal)
    results = [replay(step_job(base, each)) for each in settings]
    rows, names = [[each.step_ns for each in results]], [""]
    ranges = [*((each.name, each.low, each.high) for each in assumptions), (SLOWDOWN, told.low, told.high)]
    for name, *ends in ranges:
        for value in ends:
            workload = build({**nominal, name: value})
            rows.append([replay(step_job(workload, one)).step_ns for one in settings])
            names.append(name)
    misses = [replay(step_job(base, each.settings)).step_ns / each.step_ns - 1 for each in measured]
    return _predictions(settings, rows, names, results, told, noise, misses)


def _predictions(
    settings: Sequence[Settings],
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    results: Sequence[Replay],
    used: Fit,
    noise: float,
    misses: Sequence[float],
) -> Predictions:
    """Put together the steps of all variations with what the first of them exposes; `misses` are of measured steps."""
    return Predictions(
        settings=tuple(settings),
        steps_ns=np.array(rows),
        variations=tuple(names),
        exposed_ns=np.array([max(each.exposed_comm_ns.values()) for each in results]),
        spent_ns=np.array([_spent(each) for each in results]),
        fit=used,
        noise=noise,
        replay_error=max(misses, key=abs) if misses else None,
    )


def model_error(predictions: Predictions) -> float:
    """Give by what share a step may be missed besides all that was varied: noise, and what the self-test lets pass."""
    return sqrt(predictions.noise**2 + SELF_TEST**2)


def _spent(result: Replay) -> tuple[float, float, float]:
    last = max(result.ended_ns, key=lambda rank: result.ended_ns[rank])
    hidden, exposed = result.hidden_comm_ns[last], result.exposed_comm_ns[last]
    return max(result.step_ns - hidden - exposed, 0.0), hidden, exposed


def _replayed(workload: Workload, job: Job, slowdown: float) -> Replay:
    both = Interference(compute=slowdown, comm=1 + workload.comm_share * (slowdown - 1))
    return replay(replace(job, interference=both))


def _missed(workload: Workload, measured: Sequence[Measured]) -> Callable[[float], float]:
    """Return the function that tells by what share, on the mean, a slowdown's replays exceed the measured steps."""
    jobs = [step_job(workload, each.settings) for each in measured]

    def missed(slowdown: float) -> float:
        steps = [_replayed(workload, job, slowdown).step_ns for job in jobs]
        return sum(step / each.step_ns - 1 for step, each in zip(steps, measured, strict=True)) / len(steps)

    return missed


def _root(missed: Callable[[float], float]) -> float:
    """Return the slowdown that misses by nothing, or the end of 1 to `MOST` that is nearest to it.

    False position, Illinois variant (Dowell and Jarratt 1971): the step is nearly linear in the slowdown.
    """
    low, high = 1.0, MOST
    at_low, at_high = missed(low), missed(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    side, middle = 0, low
    for _ in range(30):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        here = missed(middle)
        if abs(here) < ENOUGH or high - low < ENOUGH:
            break
        if here < 0:
            low, at_low = middle, here
            at_high, side = (at_high / 2, -1) if side == -1 else (at_high, -1)
        else:
            high, at_high = middle, here
            at_low, side = (at_low / 2, 1) if side == 1 else (at_low, 1)
    return middle


def prior(reason: str) -> Fit:
    """Return what holds where nothing tells the slowdown, and why nothing does."""
    return Fit(slowdown=PRIOR[1], low=WIDE_PRIOR[0], high=WIDE_PRIOR[1], identified=False, reason=reason)


def step_job(workload: Workload, settings: Settings) -> Job:
    """Return the job of one optimizer step. Raises KeyError where the workload has no curve for what is needed."""
    if settings.sharding is not None:
        return sharded_job(workload, settings)
    return priority_job(workload, settings) if settings.priority else ddp_job(workload, settings)
