"""Find the one step that has most of what a rank was late, and leave it out."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.timeline.columns import NONE, Flags

DOMINATES: Final = 0.75
"""With this share of a whole, one has three times as much as all others together. A choice."""


def one_event(theirs: Sequence[LateArrivals]) -> tuple[int, int]:
    """Return the step that has the share DOMINATES of all delays of a rank, and how late it was there in ns;
    (NONE, 0) where none has, or some delays are of no step.

    Such a step is an event of its own, which is named as an odd step: it says nothing of the rank in other steps.
    """
    step, own = (np.concatenate([getattr(of, name) for of in each]) for name, each in (
        ("step", [each.met for each in theirs]), ("own_ns", theirs),
    ))  # fmt: skip
    steps, place = np.unique(step, return_inverse=True)
    delays = np.bincount(place, weights=own)
    worst = int(delays.argmax())
    if NONE in steps or not 0 < delays[worst] >= DOMINATES * delays.sum():
        return NONE, 0
    return int(steps[worst]), round(delays[worst])


def without_step(late: Mapping[int, Sequence[LateArrivals]], step: int) -> dict[int, list[LateArrivals]]:
    """Return the late arrivals of other steps, of those who have some."""
    found = {rank: [_of_steps(each, each.met.step != step) for each in theirs] for rank, theirs in late.items()}
    kept = {rank: [each for each in theirs if each.lead_ns.size] for rank, theirs in found.items()}
    return {rank: theirs for rank, theirs in kept.items() if theirs}


def _of_steps(late: LateArrivals, rows: Flags) -> LateArrivals:
    met = replace(
        late.met, begin_ns=late.met.begin_ns[:, rows], end_ns=late.met.end_ns[:, rows], step=late.met.step[rows]
    )
    return replace(
        late, met=met, lead_ns=late.lead_ns[rows], own_ns=late.own_ns[rows], launched_ns=late.launched_ns[rows],
        passed_ns={rank: passed[rows] for rank, passed in late.passed_ns.items()},
    )  # fmt: skip
