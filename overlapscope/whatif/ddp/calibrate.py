"""Calibrate the replay to measured steps, and predict steps with intervals.

One number is fitted: the slowdown of compute beside a collective. Every other assumption is varied within its range
with the slowdown fitted again each time; the variation of the predictions gives their interval.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Floats
from overlapscope.whatif.ddp.ddp_step import Settings, ddp_job
from overlapscope.whatif.ddp.priority_step import priority_job
from overlapscope.whatif.ddp.sharded_step import sharded_job
from overlapscope.whatif.pricing.constants import SLOWDOWN_PRIOR
from overlapscope.whatif.replay.replay import Job, Replay, replay
from overlapscope.whatif.workload.workload import Interference, Workload

WIDE_PRIOR: Final = (1.0, 1.6)
"""The range of the slowdown where it could not be measured."""
MOST_SLOWDOWN: Final = 2.0
"""A fitted slowdown above this has another cause: no source reports such a mean slowdown."""
SELF_TEST: Final = 0.03
"""Largest relative error of the replay of a recorded step that still allows advice; predicted steps may be off by
it."""
IDENTIFIED: Final = 2.0
"""The slowdown counts as identified where the range of `SLOWDOWN_PRIOR` changes the step by at least so many times the
noise."""
LEAST_NOISE: Final = 0.01
"""Lower limit of the noise in that test: the model is not more precise than that."""
TOLERANCE: Final = 1e-5
"""The fit stops at this relative error."""
SLOWDOWN: Final = "interference"
"""Name of the slowdown among the values that a recorded workload is built from."""
Values = Mapping[str, float]


class Assumption(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was not measured: its nominal value, its range, and where they come from."""

    name: str
    value: float
    low: float
    high: float
    known_from: str

    @classmethod
    def of(cls, name: str, values: Sequence[float], known_from: str) -> Self:
        """Make an assumption from `values`: low, nominal, high."""
        low, value, high = values
        return cls(name=name, value=value, low=low, high=high, known_from=known_from)


def step_ns(workload: Workload, settings: Settings, slowdown: float) -> float:
    """Return the replayed step in ns, where compute beside a collective takes `slowdown` times as long."""
    return _replayed(workload, step_job(workload, settings), slowdown).step_ns


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A measured step and its settings."""

    settings: Settings
    step_ns: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long compute takes beside communication: fitted, measured, or assumed."""

    slowdown: float
    low: float
    high: float
    identified: bool
    reason: str
    """Why it could not be measured; empty where it is identified."""

    @property
    def of_bounds(self) -> float:
        """What a step without communication is relieved of: the most that was measured, else what is assumed."""
        return self.high if self.identified else self.slowdown

    @property
    def explanation(self) -> str:
        """The sentence for the user where the slowdown is not identified."""
        return f"overlap slowdown could not be measured; assumed {self.slowdown:.3g}x: {self.reason}"


def fit(workload: Workload, measured: Sequence[Measured], noise: float) -> Fit:
    """Fit the slowdown beside communication to measured steps.

    Returns the assumed range `SLOWDOWN_PRIOR`, with the reason, where the steps do not determine it. `noise` is the
    relative difference of two measurements of one setting. The ends of the interval are fits to steps that are lower
    and higher by the noise.
    """
    if not measured:
        return assumed_slowdown("no measured step was given")
    missed = _missed(workload, measured)
    moved = missed(SLOWDOWN_PRIOR[2]) - missed(SLOWDOWN_PRIOR[0])
    if moved < IDENTIFIED * max(noise, LEAST_NOISE):
        return assumed_slowdown(
            f"the measured settings overlap too little: a slowdown of {SLOWDOWN_PRIOR[0]:g} to {SLOWDOWN_PRIOR[2]:g} "
            f"changes their steps by only {moved * 100:.1f} %"
        )
    best = _root(missed)
    if best in (1.0, MOST_SLOWDOWN):
        side = f"more than {MOST_SLOWDOWN:g}" if best == MOST_SLOWDOWN else "less than 1"
        return assumed_slowdown(
            f"the measured steps would need a slowdown of {side}: something else takes time in them"
        )
    low, high = _root(lambda slowdown: missed(slowdown) + noise), _root(lambda slowdown: missed(slowdown) - noise)
    return Fit(slowdown=best, low=low, high=high, identified=True, reason="")


class Predictions(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Predicted steps of all settings under all variations of the assumptions. Row 0 is the nominal one."""

    settings: tuple[Settings, ...]
    steps_ns: Floats
    """Shape (variation, setting)."""
    variations: tuple[str, ...]
    """Name of the assumption that each row varies; two rows each, low and high. Row 0 is named ''."""
    exposed_ns: Floats
    """Exposed communication in row 0, by setting."""
    spent_ns: Floats
    """Time in row 0 on the rank that ends last, shape (setting, 3): compute and gaps alone, compute beside collectives,
    exposed communication."""
    fit: Fit
    noise: float
    replay_error: float | None
    """Relative error of the replay of the worst measured step; None without one."""

    def times(self, factor: float) -> Self:
        """Return the predictions with all times multiplied by `factor`."""
        return replace(
            self, steps_ns=self.steps_ns * factor, exposed_ns=self.exposed_ns * factor, spent_ns=self.spent_ns * factor
        )

    def half_width(self, values: Floats) -> Floats:
        """Return half of the 90 % interval of `values` about row 0; `values` has a row for each variation."""
        return half_width(values, self.variations)

    def depends_on(self, place: int) -> dict[str, tuple[float, float]]:
        """Return by assumption the shortest and the longest step in ns of the setting at `place` as it varies."""
        found = {}
        for name in dict.fromkeys(self.variations[1:]):
            rows = [number for number, each in enumerate(self.variations) if each == name]
            steps = self.steps_ns[rows, place]
            found[name] = (float(steps.min()), float(steps.max()))
        return found


def half_width(values: Floats, variations: Sequence[str]) -> Floats:
    """Return half of the 90 % interval of `values` about row 0; `values` has a row for each of `variations`.

    Independent assumptions add up as squares; of the two ends of one assumption the larger deviation counts.
    """
    total = np.zeros(values.shape[1:])
    for name in dict.fromkeys(variations[1:]):
        rows = [place for place, each in enumerate(variations) if each == name]
        total = total + np.abs(values[rows] - values[0]).max(axis=0) ** 2
    half: Floats = np.sqrt(total)
    return half


def predict_steps(
    build: Callable[[Values], Workload],
    assumptions: Sequence[Assumption],
    measured: Sequence[Measured],
    settings: Sequence[Settings],
    noise: float,
    measured_slowdown: Fit | None = None,
) -> Predictions:
    """Predict the steps of settings: for nominal assumptions, and with each assumption at both ends of its range.

    The slowdown is fitted again for each variation. With `measured_slowdown` nothing is fitted: it was measured in a
    recording, and `build` takes it as the value `SLOWDOWN`.
    """
    if measured_slowdown is not None:
        return _predict_with_slowdown(build, assumptions, measured, settings, noise, measured_slowdown)
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


def _predict_with_slowdown(
    build: Callable[[Values], Workload],
    assumptions: Sequence[Assumption],
    measured: Sequence[Measured],
    settings: Sequence[Settings],
    noise: float,
    slowdown: Fit,
) -> Predictions:
    nominal = {**{each.name: each.value for each in assumptions}, SLOWDOWN: slowdown.slowdown}
    base = build(nominal)
    results = [replay(step_job(base, each)) for each in settings]
    rows, names = [[each.step_ns for each in results]], [""]
    ranges = [*((each.name, each.low, each.high) for each in assumptions), (SLOWDOWN, slowdown.low, slowdown.high)]
    for name, *ends in ranges:
        for value in ends:
            workload = build({**nominal, name: value})
            rows.append([replay(step_job(workload, one)).step_ns for one in settings])
            names.append(name)
    misses = [replay(step_job(base, each.settings)).step_ns / each.step_ns - 1 for each in measured]
    return _predictions(settings, rows, names, results, slowdown, noise, misses)


def _predictions(
    settings: Sequence[Settings],
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    results: Sequence[Replay],
    used: Fit,
    noise: float,
    misses: Sequence[float],
) -> Predictions:
    """Combine the steps of all variations with the replays of row 0; `misses` are the errors of measured steps."""
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
    """Return the relative error of a step beside the varied assumptions: noise, and what the self-test allows."""
    return sqrt(predictions.noise**2 + SELF_TEST**2)


def _spent(result: Replay) -> tuple[float, float, float]:
    last = max(result.ended_ns, key=lambda rank: result.ended_ns[rank])
    hidden, exposed = result.hidden_comm_ns[last], result.exposed_comm_ns[last]
    return max(result.step_ns - hidden - exposed, 0.0), hidden, exposed


def _replayed(workload: Workload, job: Job, slowdown: float) -> Replay:
    both = Interference(compute=slowdown, comm=1 + workload.comm_share * (slowdown - 1))
    return replay(replace(job, interference=both))


def _missed(workload: Workload, measured: Sequence[Measured]) -> Callable[[float], float]:
    """Return a function of the slowdown: by what mean share the replays exceed the measured steps."""
    jobs = [step_job(workload, each.settings) for each in measured]

    def missed(slowdown: float) -> float:
        steps = [_replayed(workload, job, slowdown).step_ns for job in jobs]
        return sum(step / each.step_ns - 1 for step, each in zip(steps, measured, strict=True)) / len(steps)

    return missed


def _root(missed: Callable[[float], float]) -> float:
    """Return the slowdown at which `missed` is 0, or the nearer end of the range 1 to `MOST_SLOWDOWN`.

    False position, Illinois variant (Dowell and Jarratt 1971): the step is nearly linear in the slowdown.
    """
    low, high = 1.0, MOST_SLOWDOWN
    at_low, at_high = missed(low), missed(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    side, middle = 0, low
    for _ in range(30):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        here = missed(middle)
        if abs(here) < TOLERANCE or high - low < TOLERANCE:
            break
        if here < 0:
            low, at_low = middle, here
            at_high, side = (at_high / 2, -1) if side == -1 else (at_high, -1)
        else:
            high, at_high = middle, here
            at_low, side = (at_low / 2, 1) if side == 1 else (at_low, 1)
    return middle


def assumed_slowdown(reason: str) -> Fit:
    """Return the assumed slowdown, with the reason why it could not be measured."""
    return Fit(slowdown=SLOWDOWN_PRIOR[1], low=WIDE_PRIOR[0], high=WIDE_PRIOR[1], identified=False, reason=reason)


def step_job(workload: Workload, settings: Settings) -> Job:
    """Return the job of one optimizer step. Raises KeyError where the workload has no curve for what is needed."""
    if settings.sharding is not None:
        return sharded_job(workload, settings)
    return priority_job(workload, settings) if settings.priority else ddp_job(workload, settings)
