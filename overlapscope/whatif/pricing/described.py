"""The same prices for a described workload: forward and backward from operations and tokens, collectives from links."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.whatif.cost.curves import Curve, curve
from overlapscope.whatif.pricing.constants import PRIORS
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.workload.model import Piece

ATTENTION: Final = ".attention"
"""End of the name of a piece that is attention."""
BACKWARD_OF_ATTENTION: Final = 2.5
"""Operations of attention's backward over those of its forward (Dao et al., arXiv 2205.14135)."""
_SIZES: Final = np.geomspace(1 << 10, 1 << 34, 97)


def phase_times(pieces: Sequence[Piece], tokens: int, device: Device, dtype: str) -> tuple[float, float]:
    """Return forward and backward in ns of `tokens` tokens on one rank, from the pieces' operations.

    Memory-bound operations are not described, and not in it. Raises UsageError without a rate for `dtype`.
    """
    rate = device.peak_flops_per_ns(dtype) / PRIORS["pace"].usual
    forward = backward = 0.0
    for each in pieces:
        attends = each.name.endswith(ATTENTION)
        shares = device.attention if attends else (PRIORS["matmul"].usual, PRIORS["matmul"].usual)
        operations = each.operations * tokens
        forward += operations / (BACKWARD_OF_ATTENTION if attends else 2.0) / (rate * shares[0])
        backward += operations / (rate * shares[1])
    return forward, backward


def compute_range() -> tuple[float, float, float]:
    """Return by how much `phase_times` may be too long or too short: low, usual, high."""
    pace, share = PRIORS["pace"], PRIORS["matmul"]
    return pace.low * share.usual / (pace.usual * share.high), 1.0, pace.high * share.usual / (pace.usual * share.low)


def link_curve(links: Links, op: str, ranks: int) -> Curve:
    """Return the times of an operation over `ranks` ranks, which fill nodes in order."""
    measured = next((each for each in links.curves if each.op == op and each.ranks == ranks), None)
    if measured is not None:
        return measured
    times = [links.time_ns(op, range(ranks), round(size)) for size in _SIZES.tolist()]
    name = f"bandwidth and latency of {links.name}"
    return curve(op, _SIZES, np.maximum(times, 1.0), ranks=ranks, measured=False, source=name)
