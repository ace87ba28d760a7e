"""Compare how long the stages of a pipeline compute, with and without what held their ranks."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.kernels import RankCompute

MORE: Final = 1.08
"""A stage has more work than the others from this factor of their median."""


class More(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long one stage computes as the median of the others, and how long these do."""

    times: float
    others_ns: float

    @property
    def ns(self) -> float:
        """How much longer it computes."""
        return (self.times - 1) * self.others_ns

    def weighs(self, least_ns: float) -> bool:
        """Return whether this is clearly more: by a factor, and by a time."""
        return self.times >= MORE and self.ns >= least_ns


def medians(by_stage: Mapping[int, Sequence[int]], values: Mapping[int, float]) -> dict[int, float]:
    """Return the median of a stage's ranks."""
    return {stage: float(np.median([values[rank] for rank in ranks])) for stage, ranks in by_stage.items()}


def more_than_others(of_stage: Mapping[int, float], stage: int) -> More:
    """Return how much more a stage has than the median of the others: 0 times where they have nothing, with which it
    cannot be compared."""
    others = float(np.median([each for at, each in of_stage.items() if at != stage]))
    return More(times=of_stage[stage] / others if others > 0 else 0.0, others_ns=others)


def without_pauses(
    stage: int, by_stage: Mapping[int, Sequence[int]], work: Mapping[int, RankCompute],
    held_ns: Mapping[int, int], still_ns: Mapping[int, int], usual_ns: Mapping[int, float],
) -> More:  # fmt: skip
    """Return how much longer a stage computes than the others at most, without the pauses of its ranks.

    Who computes more stands still more: a stage is as much longer as it is without that, and as in its usual steps.
    """

    def left(*paused_ns: Mapping[int, int]) -> More:
        ran = {rank: own.usual_ns - sum(of.get(rank, 0) for of in paused_ns) for rank, own in work.items()}
        return more_than_others(medians(by_stage, ran), stage)

    own = left(held_ns)
    known = still_ns.keys() >= {rank for ranks in by_stage.values() for rank in ranks}
    ran = left(held_ns, still_ns) if known else own
    times = min(own.times, ran.times, _usually(stage, by_stage, usual_ns))
    return More(times=times, others_ns=own.others_ns)


def _usually(stage: int, by_stage: Mapping[int, Sequence[int]], usual_ns: Mapping[int, float]) -> float:
    """Return how many times as long as the others a stage usually computes in a step, without pauses; infinite where
    that is not known of all."""
    if not all(usual_ns.get(rank) for ranks in by_stage.values() for rank in ranks):
        return np.inf
    return more_than_others(medians(by_stage, usual_ns), stage).times


def share_of_steps(
    stage: int, by_stage: Mapping[int, Sequence[int]], step_ns: Mapping[int, Mapping[int, int]]
) -> float:
    """Return the share of the steps in which a stage computed longer than the others; 1 where no step is known."""
    ranks_of = {at: [step_ns[rank] for rank in ranks if rank in step_ns] for at, ranks in by_stage.items()}
    longer = []
    for step in set().union(*(own for ranks in ranks_of.values() for own in ranks)):
        known = {at: [own[step] for own in ranks if step in own] for at, ranks in ranks_of.items()}
        if all(known.values()):  # of a rank not all steps may be recorded
            took = {at: float(np.median(each)) for at, each in known.items()}
            longer.append(more_than_others(took, stage).times >= MORE)
    return float(np.mean(longer)) if longer else 1.0
