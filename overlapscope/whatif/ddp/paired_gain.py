"""Compute the gain of one setting over another and its interval, from two replays of one job.

A gain is the ratio of two replays, not a replay against a measured step: an error that makes both slower or faster by
the same share cancels. Two kinds of error do not cancel; they add up as squares.

Assumed values (cost of sizes that were not measured, latency, interference, cost of a bucket) are varied in both
replays at once; the interval covers how the *ratio* changes.

The error of the model itself is known only from the self-test: the replay of the present settings may be off by
`SELF_TEST` of the step, E. A step is spent in three states: compute alone, compute beside transfers, and exposed
communication. Let the pace of each state s be off by a share e_s of its own, independent, of one spread T. With p_s
the share of the present step spent in s, the present replay is off by sum(p_s e_s), so that E = T |p|. The candidate
takes r times as long and spends q_s of the *present* step in s; to first order the ratio r is off by
sum((q_s - r p_s) e_s), whose half-width is

    T |q - r p| = E |q - r p| / |p| .

A candidate that spends its time as the present settings do has none of the error E; one that is very different, such
as one that overlaps all of its communication, has all of E and more. A measured step has no error of this kind.

Measurement noise is not part of a ratio of replays; it is used where both steps were measured: their relative
difference.
"""

import numpy as np

from overlapscope.timeline.columns import Flags, Floats
from overlapscope.whatif.ddp.calibrate import SELF_TEST, Predictions


def gains(predictions: Predictions, measured_ns: Floats) -> tuple[Floats, Floats]:
    """Return the gain of each setting over the first, and half of its 90 % interval, as shares of the first's step.

    `measured_ns` is the measured step of each setting, NaN without one.
    """
    ratios = predictions.steps_ns / predictions.steps_ns[:, :1]
    gained = 1 - ratios[0]
    half = np.sqrt(predictions.half_width(ratios) ** 2 + ratio_error(predictions.spent_ns, SELF_TEST) ** 2)
    known: Flags = ~np.isnan(measured_ns)
    present_ns = measured_ns[0] if known[0] else predictions.steps_ns[0, 0]
    gained[known] = 1 - measured_ns[known] / present_ns
    if known[0]:
        half[known] = predictions.noise
    half[0] = 0.0
    return gained, half


def ratio_error(spent_ns: Floats, error: float) -> Floats:
    """Return the error of the ratio of each step to the first, where the first may be off by `error`.

    `spent_ns` has a row for each setting and a column for each state; the module docstring has the formula.
    """
    steps = spent_ns.sum(axis=1)
    shares = spent_ns / steps[0]
    ratio = steps / steps[0]
    apart = np.linalg.norm(shares - ratio[:, None] * shares[0], axis=1)
    off: Floats = error * apart / np.linalg.norm(shares[0])
    return off
