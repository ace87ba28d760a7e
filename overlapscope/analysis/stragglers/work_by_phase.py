"""Find whether a rank of a CPU run had more work or a slower core, by the phases of its steps.

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
EXPLAINS: Final = 0.5
"""What it took longer in the steps that all ranks recorded explains at least this share of its blame."""
WEIGHS: Final = 0.1
"""A phase is compared if it holds at least this share of what the rank, or its peers, compute."""
UNEVEN: Final = 0.2
"""One phase is longer and another one is not, if the excess of that one, as a share of its peers' time, is less than
this share of the largest: phases of one length differ by some percent in any two ranks."""
EVEN: Final = 0.5
"""All is longer if the optimizer's excess is at least this share of that of the whole step ..."""
OFTEN: Final = 0.75
"""... in this share of the steps that have one: an optimizer of half a millisecond varies by a fifth."""
REST: Final = "rest"
OF_UNEQUAL_PARTS: Final = POINT_TO_POINT | {"all_to_all"}
"""Ranks that make such calls may hold parts of the model of unequal size, such as stages and experts."""


def cause_by_phase(
    cause: str, rank: int, peers: Sequence[int], run: Run, blame_ns: float
) -> tuple[str, dict[str, Any]]:
    """Return why a rank of a CPU run computed longer than the ranks that it delayed, and `phases_longer`: by which
    factor each phase took longer than the median of its peers', over the steps that all recorded.

    `cause` is `more_work`, known from the time that its thread ran, or `longer_compute`. The first one stays where one
    phase is longer and another one is not, or where no phases are known: there its operations have been compared. It
    is `slower_compute` where the optimizer is longer, too, and the ranks hold equal parts of the model; else
    `longer_compute`: it is not known.
    """
    timelines = [run.ranks[each] for each in (rank, *peers)]
    steps = _common_steps(timelines)
    if len(steps) < FEWEST_STEPS:
        return cause, {}
    by_rank = [_phases(each, steps) for each in timelines]
    own, usual = by_rank[0], {name: np.median([each[name] for each in by_rank[1:]], axis=0) for name in by_rank[0]}
    took, peers_took = ({name: float(each.sum()) for name, each in of.items()} for of in (own, usual))
    whole_ns = sum(took.values()) - sum(peers_took.values())
    if whole_ns < EXPLAINS * blame_ns or not any(peers_took.values()):
        return cause, {}
    evidence = {"phases_longer": {name: took[name] / known for name, known in peers_took.items() if known > 0}}
    weighs = {name: max(each[name] / sum(each.values()) for each in (took, peers_took)) for name in took}
    compared = {
        name: (took[name] - peers_took[name]) / max(peers_took[name], 1.0)
        for name in took
        if name != OPTIMIZER and weighs[name] >= WEIGHS
    }
    if cause == "more_work" and compared.keys() <= {REST}:
        return cause, evidence
    if len(compared) > 1 and min(compared.values()) < UNEVEN * max(compared.values()):
        return cause, evidence
    even = EVEN * whole_ns / sum(peers_took.values())
    has = (own[OPTIMIZER] > 0) & (usual[OPTIMIZER] > 0)
    often = np.mean((own[OPTIMIZER] >= (1 + even) * usual[OPTIMIZER])[has]) if has.sum() >= FEWEST_STEPS else 0.0
    slower = (
        often >= OFTEN and took[OPTIMIZER] >= (1 + even) * peers_took[OPTIMIZER]
        and not any(map(holds_another_part, timelines))
    )  # fmt: skip
    return ("slower_compute" if slower else "longer_compute"), evidence


def _common_steps(timelines: Sequence[RankTimeline]) -> list[int]:
    """Return the numbers of the steps that all ranks recorded whole."""
    whole = [set(each.steps.step[~each.steps.cut].tolist()) for each in timelines]
    return sorted(set.intersection(*whole) - {NONE})


def _phases(timeline: RankTimeline, steps: Sequence[int]) -> dict[str, Floats]:
    """Return for each phase how long a rank computed in it in each step; what is in none is the rest of the step."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & np.isin(spans.step, steps))
    place = np.searchsorted(steps, spans.step[rows])
    took = (spans.end_ns - spans.start_ns)[rows].astype(np.float64)
    among = {OPTIMIZER: in_optimizer(timeline, rows)}
    for name in (FORWARD, BACKWARD):
        code = timeline.names.index(name) if name in timeline.names else None
        among[name] = ~among[OPTIMIZER] & (spans.name[rows] == code if code is not None else False)
    among[REST] = ~np.logical_or.reduce(list(among.values()))
    return {name: np.bincount(place[own], took[own], len(steps)).astype(np.float64) for name, own in among.items()}


def holds_another_part(timeline: RankTimeline) -> bool:
    """Return whether a rank may hold a part of the model that is larger than another one's."""
    used = {timeline.names[code] for code in set(timeline.collectives.op.tolist()) if code != NONE}
    return not used.isdisjoint(OF_UNEQUAL_PARTS)
