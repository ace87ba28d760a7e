"""Tell more work from a slower core, by the phases of the steps of CPU runs.

A slower core (its clock is lowered, or another machine runs on its other half) takes longer for everything. What a rank
has more of lies in some phase: a larger batch makes forward and backward longer, but not the optimizer, whose work is
as large as the model.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.timeline.columns import COMPUTE, NONE, Floats
from overlapscope.timeline.dimensions import BACKWARD, FORWARD, OPTIMIZER
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline, Run

FEWEST_STEPS: Final = 3
WEIGHS: Final = 0.1
"""A phase is compared if it holds at least this share of what the peers compute."""
UNEVEN: Final = 0.2
"""One phase is longer and another one is not, if the excess of that one, as a share of its peers' time, is less than
this share of the largest: phases of one length differ by some percent in any two ranks."""
EVEN: Final = 0.5
"""All is longer if the optimizer's excess is at least this share of that of the whole step ..."""
OFTEN: Final = 0.75
"""... in this share of the steps: an optimizer of half a millisecond varies by a fifth."""
REST: Final = "rest"


def cause_by_phase(cause: str, rank: int, peers: Sequence[int], run: Run) -> tuple[str, dict[str, Any]]:
    """Return why a rank of a CPU run computed longer than the ranks that it delayed, and `phases_longer`: by how much
    the median of each phase over its steps is longer than its peers', as a factor.

    `cause` is `more_work`, known from the time that its thread ran, or `longer_compute`. The first one stays where one
    phase is longer and another one is not, or where there is only one to compare: there its operations have been. It is
    `slower_compute` where the optimizer is longer, too, and no rank has a stage of a model for itself; else
    `longer_compute`: it is not known.
    """
    timelines = [run.ranks[each] for each in (rank, *peers)]
    steps = _common_steps(timelines)
    if len(steps) < FEWEST_STEPS:
        return cause, {}
    by_rank = [_phases(each, steps) for each in timelines]
    own, usual = by_rank[0], _median_of(by_rank[1:])
    known = [phase for phase in own if own[phase].any() and phase in usual and usual[phase].any()]
    took, peers_took = ({phase: float(np.median(of[phase])) for phase in known} for of in (own, usual))
    longer = {phase: took[phase] / peers_took[phase] for phase in known if peers_took[phase] > 0}
    if not longer:
        return cause, {}
    evidence = {"phases_longer": longer}
    whole = sum(took.values()) / sum(peers_took.values()) - 1
    compared = [longer[each] - 1 for each in longer if each != OPTIMIZER
                and peers_took[each] >= WEIGHS * sum(peers_took.values())]  # fmt: skip
    if len(compared) > 1 and min(compared) < UNEVEN * max(compared):
        return cause, evidence
    if cause == "more_work" and len(compared) < 2:
        return cause, evidence
    if OPTIMIZER not in longer or whole <= 0:
        return "longer_compute", evidence
    often = np.mean(own[OPTIMIZER] >= (1 + EVEN * whole) * usual[OPTIMIZER])
    slower = longer[OPTIMIZER] - 1 >= EVEN * whole and often >= OFTEN and not any(map(_has_a_stage, timelines))
    return ("slower_compute" if slower else "longer_compute"), evidence


def _common_steps(timelines: Sequence[RankTimeline]) -> list[int]:
    """Return the numbers of the steps that all ranks recorded whole."""
    whole = [set(each.steps.step[~each.steps.cut].tolist()) for each in timelines]
    return sorted(set.intersection(*whole) - {NONE})


def _phases(timeline: RankTimeline, steps: Sequence[int]) -> dict[str, Floats]:
    """Return for each phase how long a rank computed in it in each step; without phases, in the rest of the step."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & np.isin(spans.step, steps))
    place = np.searchsorted(steps, spans.step[rows])
    took = (spans.end_ns - spans.start_ns)[rows].astype(np.float64)
    optimizes = in_optimizer(timeline, rows)
    code = {name: timeline.names.index(name) for name in (FORWARD, BACKWARD) if name in timeline.names}
    among = {OPTIMIZER: optimizes} | {name: ~optimizes & (spans.name[rows] == at) for name, at in code.items()}
    among[REST] = ~np.logical_or.reduce(list(among.values()))
    return {name: np.bincount(place[own], took[own], len(steps)).astype(np.float64) for name, own in among.items()}


def _median_of(ranks: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    common = set.intersection(*(set(each) for each in ranks))
    return {name: np.median([each[name] for each in ranks], axis=0) for name in common}


def _has_a_stage(timeline: RankTimeline) -> bool:
    """Return whether a rank sends or receives: it may hold a part of the model that is larger than another one's."""
    used = {timeline.names[code] for code in set(timeline.collectives.op.tolist()) if code != NONE}
    return not used.isdisjoint(POINT_TO_POINT)
