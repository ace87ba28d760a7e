"""Find steps that do other work than the others: longer on each rank, as they compute longer, in more kernels."""

import statistics
from collections.abc import Mapping

import msgspec
import numpy as np

from overlapscope.analysis.checks.steps.outlier_steps import (
    FEWEST,
    LONGEST,
    MOSTLY,
    ODD_AT_LEAST_NS,
    OutlierStep,
    Steps,
    kind_of_step,
    kinds_of_steps,
)
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import RankTimeline, Run

MORE_KERNELS, ALIKE = 1.25, 0.05
"""A step does other work than the others where it runs this many times as many kernels as any of them on each rank,
while they differ by at most this share of their number. Choices: an evaluation that a step holds, or the
optimizer, where each micro-batch is a step."""


class MoreWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does more in a step than in the others."""

    odd: "OutlierStep"
    computes_ns: float
    """For how much longer than usual it computes."""
    kernels: int
    usual_kernels: int
    """The most in another step."""


def more_work(ranks: Mapping[int, Steps], run: Run) -> dict[tuple[int, int], MoreWork]:
    """Return the steps that take longer on each rank, by about what they compute longer, for more kernels, by (rank,
    step), sorted; none of a run without devices, whose compute is no kernels."""
    longer = {rank: own for rank, steps in ranks.items() if (own := _compute_longer(rank, steps)) is not None}
    everywhere = set[int]().union(*longer.values()).intersection(*longer.values())
    found = {}
    for rank, own in longer.items():
        if not everywhere or not run.ranks[rank].has_device:
            return {}
        counts = _kernels(run.ranks[rank])
        for step in sorted(everywhere):
            others = [counts.get(each[0], 0) for each in kind_of_step(step, ranks[rank]) if each[0] != step]
            alike = max(others) - min(others) <= ALIKE * min(others)
            if not alike or counts.get(step, 0) < MORE_KERNELS * max(others):
                everywhere = everywhere - {step}
                continue
            odd, computes_ns = own[step]
            found[rank, step] = MoreWork(
                odd=odd, computes_ns=computes_ns, kernels=counts[step], usual_kernels=max(others)
            )
    return {key: each for key, each in found.items() if key[1] in everywhere}


def _compute_longer(rank: int, steps: Steps) -> dict[int, tuple[OutlierStep, float]] | None:
    """Return the steps that take longer than all others of their kind, by about what they compute longer, with that;
    None for a rank with too few steps to say."""
    kinds = [(others, own) for others, own in kinds_of_steps(steps) if len(own) >= FEWEST]
    found = {}
    for others, own in kinds:
        known = [(step, window_ns, compute_ns) for step, window_ns, _, compute_ns, _ in own
                 if window_ns is not None and compute_ns is not None]  # fmt: skip
        if len({step for step, _, _ in known}) < len(own):  # not known, or several recordings use its number
            continue
        step, window_ns, compute_ns = max(known, key=lambda each: each[1])
        rest = [each for each in known if each[0] != step]
        usual_ns = statistics.median(each[1] for each in rest)
        more_ns, computes_ns = window_ns - usual_ns, compute_ns - statistics.median(each[2] for each in rest)
        longest = window_ns >= LONGEST * max(each[1] for each in rest) and more_ns >= ODD_AT_LEAST_NS
        if longest and min(more_ns, computes_ns) >= MOSTLY * max(more_ns, computes_ns):
            odd = OutlierStep(rank=rank, step=step, value_ns=window_ns, usual_ns=usual_ns, others=others)
            found[step] = odd, computes_ns
    return found if kinds else None


def _kernels(timeline: RankTimeline) -> dict[int, int]:
    """Return how many kernels that compute each step launched."""
    steps, counts = np.unique(timeline.spans.step[timeline.spans.kind == COMPUTE], return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))
