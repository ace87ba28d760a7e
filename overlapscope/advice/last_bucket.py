"""Whether the last bucket of gradients is mostly one of them, which no cap of DistributedDataParallel makes smaller."""

from typing import Final

import numpy as np

from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import unique, values_in
from overlapscope.timeline.run import RankTimeline

OF_BUCKET: Final = 0.5
"""Least share of the last bucket that the gradient has: with less, another cap changes the last bucket."""
MOST_STEPS: Final = 32
FEWEST: Final = 4
"""Buckets of a step without sizes of gradients: the first has a cap of its own, the last may be a rest, and of those
between two show their cap."""


def last_is_one_gradient(given: RuleInput) -> bool:
    """Return whether the last bucket of most steps is known to be mostly one gradient: by the sizes of gradients, else
    by those of buckets."""
    known = [each for timeline, _ in given.some_ranks() for each in _of_steps(timeline)]
    return 2 * sum(known) > len(known)


def _of_steps(timeline: RankTimeline) -> list[bool]:
    """Return of each step whether its last bucket is mostly one gradient, as far as that is known."""
    calls, table, names = timeline.collectives, timeline.gradients, timeline.names
    rows = np.flatnonzero(rows_named(calls.op, names, "all_reduce".__eq__) & (calls.start_ns != NONE))
    backward = rows_named(calls.phase[rows], names, BACKWARD.__eq__)
    rows = rows[backward] if backward.any() else rows
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    found = []
    for step in values_in(calls.step[rows][calls.step[rows] != NONE])[-MOST_STEPS:].tolist():
        own, ready = rows[calls.step[rows] == step], np.flatnonzero(table.step == step)
        gradients = table.elements[ready[np.argsort(table.order[ready], kind="stable")]]
        last = last_bucket(calls.elements[own], gradients)
        if last is not None:
            found.append(bool(gradients[-1] > OF_BUCKET * calls.elements[own[last]]))
        elif not gradients.size and unique(calls.dtype[own]).size == 1:
            found.append(_exceeds_caps(calls.bytes[own]))
    return found


def _exceeds_caps(sizes_bytes: Ints) -> bool:
    """Return whether the last of a step's buckets, in their order, is at least twice each of those between it and the
    first.

    A bucket is closed by the gradient that makes it reach its cap, so that these are as large as the cap, or larger:
    what closes one of twice that size is larger than all the rest of it.
    """
    buckets = sizes_bytes[sizes_bytes >= LARGE_BYTES]
    return bool(buckets.size >= FEWEST and OF_BUCKET * buckets[-1] >= buckets[1:-1].max())


def last_bucket(sent: Ints, gradients: Ints) -> int | None:
    """Return the index of the last all-reduce that carries exactly the last gradients; None where none does."""
    if not gradients.size or (gradients < 0).any():
        return None
    sums = np.cumsum(gradients[::-1])
    matching = np.flatnonzero(sums[np.minimum(np.searchsorted(sums, sent), sums.size - 1)] == sent)
    return int(matching[-1]) if matching.size else None
