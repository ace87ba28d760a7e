"""Estimate the cost of capture from steps with and without it, interleaved in the same process."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
AT_ONCE = 200_000
"""Values that are drawn at a time: a job may be running."""
MIN_STEPS = 4
"""Fewest steps of each kind for an estimate."""
NEIGHBOURHOOD_STEPS = 12
"""An uncaptured step farther than this from every captured one is not compared: a machine's speed changes."""
Times = npt.NDArray[np.float64]


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """The median and the mean difference per step, each with the 95 % interval of a seeded bootstrap over steps.

    What capture does in few steps only is in the mean alone.
    """

    median_ns: float
    low_ns: float
    high_ns: float
    mean_ns: float
    mean_low_ns: float
    mean_high_ns: float
    step_ns: float
    """Median step without capture."""
    steps_with: int
    steps_without: int

    def as_json(self) -> dict[str, float | int]:
        """Return the fields as plain values."""
        return msgspec.structs.asdict(self)


def differences(lasted_ns: Sequence[int], captured: Sequence[bool]) -> Times:
    """Return, for each step between two of the other kind, captured minus uncaptured time, in nanoseconds.

    Of the two neighbours it is the mean: a machine's speed changes over seconds, so neighbouring steps share it. No
    uncaptured step is used twice.
    """
    times, with_us = np.asarray(lasted_ns, np.float64), np.asarray(captured, np.bool_)
    if times.size < 3:
        return np.zeros(0)
    before, middle, after = with_us[:-2], with_us[1:-1], with_us[2:]
    uncaptured = before & ~middle & after
    beside = np.r_[False, uncaptured[:-1]] | np.r_[uncaptured[1:], False]
    chosen = uncaptured | (~before & middle & ~after & ~beside)
    found: Times = (np.where(middle, -1, 1) * ((times[:-2] + times[2:]) / 2 - times[1:-1]))[chosen]
    return found


def overhead(lasted_ns: Sequence[int], captured: Sequence[bool]) -> Overhead | None:
    """Return the cost of capture over consecutive steps, some of them uncaptured; None with too few of either kind.

    `lasted_ns` is the time of each step, `captured` whether it was captured. A step between two of the other kind is
    compared with its neighbours. Where steps are captured in one block, as by a profiler, the medians of both kinds
    are compared, using only uncaptured steps near captured ones.
    """
    times, with_us = np.asarray(lasted_ns, np.float64), np.asarray(captured, np.bool_)
    near = (
        np.convolve(with_us, np.ones(2 * NEIGHBOURHOOD_STEPS + 1), "same") > 0.5
        if times.size > 2 * NEIGHBOURHOOD_STEPS
        else True
    )
    a, b = times[with_us], times[~with_us & near]
    if min(a.size, b.size) < MIN_STEPS:
        return None
    rng = np.random.default_rng(0)
    paired = differences(lasted_ns, captured)
    found = {}
    for name, of in (("median", np.median), ("mean", np.mean)):
        if paired.size >= MIN_STEPS:
            middle, picks = float(of(paired)), _resampled(paired, of, rng)
        else:
            middle, picks = float(of(a) - of(b)), _resampled(a, of, rng) - _resampled(b, of, rng)
        found[name] = (middle, *np.quantile(picks, [0.025, 0.975]).tolist())
    median, mean = found["median"], found["mean"]
    return Overhead(
        median_ns=median[0],
        low_ns=median[1],
        high_ns=median[2],
        mean_ns=mean[0],
        mean_low_ns=mean[1],
        mean_high_ns=mean[2],
        step_ns=float(np.median(b)),
        steps_with=a.size,
        steps_without=b.size,
    )


def _resampled(values: Times, of: Callable[..., Any], rng: np.random.Generator) -> Times:
    at_once = max(1, AT_ONCE // values.size)
    sizes = [min(at_once, RESAMPLES - done) for done in range(0, RESAMPLES, at_once)]
    return np.concatenate([of(values[rng.integers(0, values.size, (size, values.size))], axis=1) for size in sizes])
