"""What capture itself costs: steps with and without it, interleaved in the same process."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
FEWEST = 4
"""Steps of each kind below which nothing is said."""
NEAR = 12
"""Steps without capture farther than this from every captured one are not compared: machines change their speed."""
Times = npt.NDArray[np.float64]


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """The median difference a step, with the 95 % interval of a seeded bootstrap over steps."""

    median_ns: float
    low_ns: float
    high_ns: float
    step_ns: float
    """Median step without capture."""
    steps_with: int
    steps_without: int

    def as_json(self) -> dict[str, float | int]:
        """Return the fields as plain values."""
        return {
            "median_ns": self.median_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "step_ns": self.step_ns,
            "steps_with": self.steps_with,
            "steps_without": self.steps_without,
        }


def differences(lasted_ns: Sequence[int], captured: Sequence[bool]) -> Times:
    """Compare each step without capture to the mean of its two neighbours with it; others have no difference.

    A machine's speed changes over seconds, and its neighbours share it.
    """
    times, with_us = np.asarray(lasted_ns, np.float64), np.asarray(captured, np.bool_)
    if times.size < 3:
        return np.zeros(0)
    inner = with_us[:-2] & ~with_us[1:-1] & with_us[2:]
    found: Times = ((times[:-2] + times[2:]) / 2 - times[1:-1])[inner]
    return found


def overhead(lasted_ns: Sequence[int], captured: Sequence[bool]) -> Overhead | None:
    """Return the cost of consecutive steps, of which some were left alone; None with too few of either kind.

    Steps left alone between captured ones are compared to their neighbours. Where steps are captured in a block, as by
    a profiler, the medians of both kinds are compared, as far as they stand near each other.
    """
    times, with_us = np.asarray(lasted_ns, np.float64), np.asarray(captured, np.bool_)
    near = np.convolve(with_us, np.ones(2 * NEAR + 1), "same") > 0.5 if times.size > 2 * NEAR else True
    a, b = times[with_us], times[~with_us & near]
    if min(a.size, b.size) < FEWEST:
        return None
    rng = np.random.default_rng(0)
    paired = differences(lasted_ns, captured)
    if paired.size >= FEWEST:
        middle, picks = float(np.median(paired)), _medians(paired, rng)
    else:
        middle, picks = float(np.median(a) - np.median(b)), _medians(a, rng) - _medians(b, rng)
    low, high = np.quantile(picks, [0.025, 0.975])
    return Overhead(
        median_ns=middle,
        low_ns=float(low),
        high_ns=float(high),
        step_ns=float(np.median(b)),
        steps_with=a.size,
        steps_without=b.size,
    )


def _medians(values: Times, rng: np.random.Generator) -> Times:
    resampled: Times = np.median(values[rng.integers(0, values.size, (RESAMPLES, values.size))], axis=1)
    return resampled
