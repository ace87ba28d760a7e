"""Test whether a difference is more than chance: exactly over runs, or for few runs over steps and a noise floor.

All tests are one-sided, in the requested direction, and deterministic: random draws use a fixed seed.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np

from overlapscope.timeline.columns import Floats

EXACT_RUNS: Final = 100
"""With more runs than this on both sides together the normal approximation is as good and is used."""
DRAWS: Final = 1_999
"""Bootstrap samples: the smallest probability is 1 in 2,000."""
MOST_STEPS: Final = 2_048
"""Of longer runs only every n-th step is resampled, which makes the interval wider, never narrower."""
ROUNDING: Final = 1e-9
"""Probabilities that differ by less count as equal: 1 of 20 is 5 %."""
LEAST_STEPS: Final = 4
"""Least number of steps to measure how much steps vary."""
_MEDIAN_OF: Final = {1: 1.0, 2: math.sqrt(0.5), 3: 0.6698}
"""Standard deviation of the median of n normal draws, as a share of that of one draw."""


def permutation_test(base: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    """Return the probabilities that by chance the candidate's runs rank so high, and so low, with unchanged code.

    Uses the exact permutation distribution of the rank sum, ties at their middle rank (Wilcoxon 1945; Mann and Whitney
    1947): the share of all choices of the candidate's runs out of all runs whose rank sum is at least, or at most, the
    observed one.
    """
    ranks = _doubled_ranks([*base, *candidate])
    size, total = len(candidate), int(sum(ranks))
    observed = sum(ranks[len(base) :])
    if len(ranks) > EXACT_RUNS:
        mean, deviation = _moments(ranks, size)
        # Half a step of the doubled ranks, which move by 2 where there are no ties.
        high, low = ((observed - 1 - mean), (mean - observed - 1))
        chance = NormalDist(0, deviation)
        return (1 - chance.cdf(high), 1 - chance.cdf(low)) if deviation else (1.0, 1.0)
    ways = np.zeros((size + 1, total + 1), np.float64)
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    shares = ways[size] / math.comb(len(ranks), size)
    return min(1.0, float(shares[observed:].sum())), min(1.0, float(shares[: observed + 1].sum()))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 2 up; equal values get their middle rank, so all are integers."""
    _, at, counts = np.unique(np.array(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: list[int] = (2 * last - counts + 1)[at].tolist()
    return found


def _moments(ranks: Sequence[int], size: int) -> tuple[float, float]:
    """Return mean and standard deviation of the sum of `size` ranks drawn without replacement."""
    values = np.array(ranks, np.float64)
    share = size * (len(ranks) - size) / (len(ranks) - 1)
    return size * float(values.mean()), math.sqrt(share * float(values.var()))


def shift_interval(base: Sequence[float], candidate: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the interval of shifts that the rank sum test does not reject (Hodges and Lehmann 1963).

    Its ends are differences of a candidate run and a base run; None where there are too few runs.
    """
    pairs = np.sort(np.subtract.outer(np.array(candidate, np.float64), np.array(base, np.float64)).ravel())
    n, m = len(base), len(candidate)
    if n + m > EXACT_RUNS:
        _, deviation = _moments(range(2, 2 * (n + m) + 1, 2), m)
        cut = math.floor(n * m / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * deviation / 2)
    else:
        chances = _chances_of_pairs(n, m)
        cut = int((chances <= (1 - confidence) / 2 + ROUNDING).sum())
    return (float(pairs[cut - 1]), float(pairs[-cut])) if cut > 0 else None


def _chances_of_pairs(n: int, m: int) -> Floats:
    """Return for k = 0, 1, ... the probability that at most k of all pairs have the candidate above the base."""
    most = n * m // 2
    ways = np.zeros((m + 1, most + 1), np.float64)
    ways[0, 0] = 1.0
    for below in range(n + m):
        # The candidate's k-th run with `below` others under it is above below - (k - 1) runs of the base.
        for k in range(min(m, below + 1), 0, -1):
            step = below - (k - 1)
            if step <= most:
                ways[k, step:] += ways[k - 1, : most + 1 - step]
    chances: Floats = np.cumsum(ways[m]) / math.comb(n + m, m)
    return chances


def bootstrap(base: Sequence[Floats], candidate: Sequence[Floats], seed: int) -> Floats | None:
    """Return the differences of the two sides in resampled steps, sorted; None where a run has too few steps.

    Each run's steps are drawn in blocks of consecutive steps, because steps resemble their neighbours (Künsch 1989;
    circular blocks: Politis and Romano 1992), of length ceil(cube root of the steps). A run's value is the median of
    its steps, a side's the median of its runs. The difference between runs is not included: the noise floor covers it.
    """
    if min(run.size for run in (*base, *candidate)) < LEAST_STEPS:
        return None
    generator = np.random.default_rng(seed)
    sides = [
        np.median(np.stack([_resampled_medians(run, generator) for run in side]), axis=0) for side in (base, candidate)
    ]
    return np.sort(sides[1] - sides[0])


def _resampled_medians(series: Floats, generator: np.random.Generator) -> Floats:
    steps = series[:: -(-series.size // MOST_STEPS)]
    length = math.ceil(round(steps.size ** (1 / 3), 9))
    blocks = -(-steps.size // length)
    starts = generator.integers(0, steps.size, (DRAWS, blocks))
    places = (starts[:, :, None] + np.arange(length)).reshape(DRAWS, -1)[:, : steps.size] % steps.size
    medians: Floats = np.median(steps[places], axis=1)
    return medians


def tail_probabilities(draws: Floats) -> tuple[float, float]:
    """Return the shares of drawn differences not above 0 and not below 0: probabilities of increase and decrease."""
    return (1 + int((draws <= 0).sum())) / (1 + draws.size), (1 + int((draws >= 0).sum())) / (1 + draws.size)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Adjust the probabilities of several tests to keep the chance of any false alarm (Holm 1979)."""
    adjusted = [1.0] * len(probabilities)
    least = 0.0
    order = sorted(range(len(probabilities)), key=lambda at: (probabilities[at], at))
    for place, at in enumerate(order):
        least = max(least, min(1.0, probabilities[at] * (len(order) - place)))
        adjusted[at] = least
    return adjusted


def noise_factor(base_runs: int, candidate_runs: int) -> float:
    """Return the standard deviation of the difference of two sides' medians, as a multiple of that of one run.

    Exact for normal runs up to three a side; above, the limit for many runs, which is slightly larger.
    """
    shares = (_MEDIAN_OF.get(runs, math.sqrt(math.pi / (2 * runs))) for runs in (base_runs, candidate_runs))
    return math.hypot(*shares)


def student_quantile(share: float, freedom: int | None) -> float:
    """Return a quantile of Student's t distribution (probability 0.5 or more); None is the normal distribution.

    With t = sqrt(f) tan(a), the density in a is proportional to cos(a)^(f-1), which is smooth on a bounded range.
    """
    if freedom is None:
        return NormalDist().inv_cdf(share)
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    areas = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp(2 * share - 1, areas / areas[-1], angles)
    return math.sqrt(freedom) * math.tan(float(angle))
