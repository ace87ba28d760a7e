"""What no data sheet says: how much of its peak a device reaches, and other assumptions, each with a range.

A price is made with the usual values; its interval is the spread of prices under values drawn from the ranges. What a
measured step fixes (`calibration.py`) is fitted again for each draw.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

MEMORY_SHARES: Final = (0.5, 0.8, 1.0)
"""Share of the memory bandwidth that one streaming kernel reaches: low, usual, all."""
SLOWDOWN_PRIOR: Final = (1.2, 1.3, 1.4)
"""Slowdown of compute where it could not be measured: low, middle, high. Echo (arXiv 2412.12487) measured 1.27 for
matrix products and 1.38 over all kernels."""
COMM_SHARE: Final = (0.0, 1.0, 1.0)
"""How much of compute's slowdown a collective suffers too: both compete for the same units and memory."""
FORMULA_ERROR: Final = 0.3
"""Relative error of a formula: the cost model of NCCL itself is off by 25 % at best."""


class Prior(msgspec.Struct, frozen=True):
    """A range of one constant, and where it is from."""

    low: float
    usual: float
    high: float
    source: str


PRIORS: Final[Mapping[str, Prior]] = {
    "matmul": Prior(0.6, 0.7, 0.8, "share of the peak; large products alone reach 0.76 to 0.81 on an H100 SXM"),
    "float8": Prior(0.45, 0.6, 0.7, "share of the float8 peak of a product, without its casts; assumed"),
    "attention": Prior(0.8, 1.0, 1.25, "times the share that the device's table states"),
    "memory": Prior(0.7, 0.8, 0.92, "share of the memory bandwidth over a step's kernels; assumed"),
    "pace": Prior(0.95, 1.2, 1.45, "how much longer products take in a job than alone: power, clocks, shapes; assumed"),
    # A cast moves 5 bytes an element: 2 to find the largest value, 2 to read, 1 to write. Of the 42 inputs that the 21
    # products of a transformer block read, 15 are cast: the others were before, or are weights, gathered in 8 bits.
    "tensorwise_bytes": Prior(0.6, 1.8, 3.6, "bytes moved for each element that a float8 product reads; derived"),
    "rowwise_bytes": Prior(3.0, 7.0, 14.0, "the same with a scale a row, whose kernels vary; assumed"),
    "hidden": Prior(0.25, 0.4, 0.75, "share of a tensor-parallel collective that async TP overlaps; assumed"),
    "inside": Prior(0.87, 1.0, 1.15, "times the measured time of a collective inside a node"),
    "between": Prior(0.8, 1.0, 1.3, "times the formula's time of a collective across nodes"),
    "slowdown": Prior(*SLOWDOWN_PRIOR, "compute beside a collective; assumed, Echo (arXiv 2412.12487) measured 1.27"),
    "slowed_comm": Prior(*COMM_SHARE, "share of that slowdown that the collective suffers too; assumed"),
    "another_device": Prior(0.7, 1.0, 1.4, "pace over that of the measured device; power limits of one part differ so"),
    "noise": Prior(0.985, 1.0, 1.015, "a step over another of the same job; published repetitions differ by 1 %"),
    "stragglers": Prior(1.0, 1.0, 1.06, "step over several nodes, because of ranks that are late; assumed"),
}

Constants = Mapping[str, float]


def usual() -> dict[str, float]:
    """Return the usual value of each constant."""
    return {name: each.usual for name, each in PRIORS.items()}


def draws(number: int, seed: int = 0) -> list[dict[str, float]]:
    """Return `number` draws of all constants: half are below the usual value; even in the logarithm on each side."""
    random = np.random.default_rng(seed)
    return [{name: _value(each, random.uniform(-1, 1)) for name, each in PRIORS.items()} for _ in range(number)]


def _value(prior: Prior, at: float) -> float:
    end = prior.low if at < 0 else prior.high
    if end == prior.usual:
        return prior.usual
    if prior.low <= 0:  # no logarithm
        return prior.usual + abs(at) * (end - prior.usual)
    return float(prior.usual * (end / prior.usual) ** abs(at))
