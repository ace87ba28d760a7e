"""What streams of a device are for: the one that computes most, and those that only prepare calls."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints, Small
from overlapscope.timeline.rows import sort_order, sum_by

NEARLY_ALL: Final = 0.9
"""Least share of a stream's compute that a call directly follows, where it only prepares calls. A choice."""
LITTLE: Final = 0.1
"""Most time that such a stream computes, as a share of the one that computes most: copies are short. A choice."""


def compute_lane(lane: Ints, kind: Small, lasted_ns: Ints) -> int:
    """Return the stream with the most compute, of spans; NONE without compute."""
    computes = kind == COMPUTE
    if not computes.any():
        return NONE
    # One more for each span: where all compute takes no time, a stream without any is not chosen.
    return int(sum_by(lane[computes], lasted_ns[computes] + 1, int(lane.max()) + 1).argmax())


def prepares_calls(lane: Ints, kind: Small, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return which spans are compute that only prepares a call, as FSDP's copies of gradients into the buffer that its
    reductions send: nearly all compute of its stream is directly followed there by communication, and it is little.

    Never on the stream with the most compute. Such compute waits for the call before it on its stream, but needs
    nothing of that call.
    """
    order = sort_order(lane, start_ns)
    by_lane, computes = lane[order], kind[order] == COMPUTE
    followed = np.zeros(order.size, np.bool_)
    followed[:-1] = (kind[order][1:] == COMM) & (by_lane[1:] == by_lane[:-1])
    lanes = int(lane.max(initial=-1)) + 1
    all_of, such = (np.bincount(by_lane[chosen], minlength=lanes) for chosen in (computes, computes & followed))
    only_prepares = (such > 0) & (such >= NEARLY_ALL * all_of)
    computed_ns = sum_by(lane[kind == COMPUTE], (end_ns - start_ns)[kind == COMPUTE], lanes)
    only_prepares &= computed_ns <= LITTLE * computed_ns.max(initial=0)
    return np.asarray(only_prepares[lane] & (kind == COMPUTE), np.bool_)
