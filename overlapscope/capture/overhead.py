"""What capture itself costs: steps with and without it, interleaved in the same process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
FEWEST = 4
"""Steps of each kind below which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The median difference a step, with the 95 % interval of a seeded bootstrap over steps."""

    median_ns: float
    low_ns: float
    high_ns: float
    step_ns: float
    """Median step without capture."""
    steps_with: int
    steps_without: int

    def as_json(self) -> dict[str, float | int]:
        """Give the fields as plain values."""
        return {
            "median_ns": self.median_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "step_ns": self.step_ns,
            "steps_with": self.steps_with,
            "steps_without": self.steps_without,
        }


def overhead(with_ns: Sequence[int], without_ns: Sequence[int]) -> Overhead | None:
    """Give the difference of the medians and its interval; None with too few steps."""
    if min(len(with_ns), len(without_ns)) < FEWEST:
        return None
    rng = np.random.default_rng(0)
    a, b = np.asarray(with_ns, np.float64), np.asarray(without_ns, np.float64)
    picks_a = np.median(a[rng.integers(0, a.size, (RESAMPLES, a.size))], axis=1)
    picks_b = np.median(b[rng.integers(0, b.size, (RESAMPLES, b.size))], axis=1)
    low, high = np.quantile(picks_a - picks_b, [0.025, 0.975])
    return Overhead(
        median_ns=float(np.median(a) - np.median(b)),
        low_ns=float(low),
        high_ns=float(high),
        step_ns=float(np.median(b)),
        steps_with=a.size,
        steps_without=b.size,
    )
