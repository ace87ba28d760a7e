"""How sure the gain of one setting over another is: two replays of one job are wrong alike where they do alike.

What a gain rests on is the ratio of two replays, not a replay against a measured step: whatever makes both too slow or
too fast by one share cancels. Three things do not, and add up as squares.

What is assumed (cost of sizes that were not seen, latency, interference, cost of a bucket) is varied in both replays
at once; the interval holds what the *ratio* does then.

What the model itself misses is known only from the self-test: the replay of the present settings may be off by
`SELF_TEST` of the step, E. A step is spent in three states: compute alone, compute beside transfers, and exposed
communication. Let the pace of each state s be off by a share e_s of its own, independent, of one spread T. With p_s
the share of the present step spent in s, the present replay is off by sum(p_s e_s), so that E = T |p|. The candidate
takes r times as long and spends q_s of the *present* step in s; to first order the ratio r is off by
sum((q_s - r p_s) e_s), whose half-width is

    T |q - r p| = E |q - r p| / |p| .

A candidate that spends its time as the present settings do inherits none of E; one that does something else
altogether, such as hiding all of its communication, all of it and more. A measured step misses nothing of this kind.

Noise of measurement is no part of a ratio of replays. The noise is that of two measured steps, by which they differ.
"""

import numpy as np

from overlapscope.timeline.columns import Flags, Floats
from overlapscope.whatif.calibrate import SELF_TEST, Predictions


def gains(predictions: Predictions, measured_ns: Floats) -> tuple[Floats, Floats]:
    """Return the share that each setting saves of the step of the first, and half its 90 % interval.

    `measured_ns` is the measured step of each setting, NaN without one.
    """
    ratios = predictions.steps_ns / predictions.steps_ns[:, :1]
    gained = 1 - ratios[0]
    half = np.sqrt(predictions.half_width(ratios) ** 2 + unlike(predictions.spent_ns, SELF_TEST) ** 2)
    known: Flags = ~np.isnan(measured_ns)
    present_ns = measured_ns[0] if known[0] else predictions.steps_ns[0, 0]
    gained[known] = 1 - measured_ns[known] / present_ns
    if known[0]:
        half[known] = predictions.noise
    half[0] = 0.0
    return gained, half


def unlike(spent_ns: Floats, error: float) -> Floats:
    """Return by how much the ratio of each step to the first may be off, where the first may be off by `error`.

    `spent_ns` has a row for each setting, a column for each state; see the module.
    """
    steps = spent_ns.sum(axis=1)
    shares = spent_ns / steps[0]
    ratio = steps / steps[0]
    apart = np.linalg.norm(shares - ratio[:, None] * shares[0], axis=1)
    off: Floats = error * apart / np.linalg.norm(shares[0])
    return off
