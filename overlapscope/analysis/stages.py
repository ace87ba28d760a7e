"""Pipeline stages that have more work than the others: every stage waits for the slowest.

Work is compared at the usual speed of each kernel, so that a slow device in a stage does not pass for work.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.findings import Finding
from overlapscope.analysis.kernels import Work
from overlapscope.timeline.dimensions import PIPELINE, dimension_of
from overlapscope.timeline.listed import listed
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.order import unique
from overlapscope.timeline.run import Group, Run

MORE: Final = 1.08
"""A stage has more work than the others from this factor of their median ..."""
LARGER: Final = 0.25
"""Layers make more kernels, not larger ones; from this share of its time in larger ones, its work differs otherwise."""
WEIGHS: Final = 0.05
"""... if that comes to this share of the recording."""


def uneven_stages(run: Run, work: Mapping[int, Work], window_ns: Mapping[int, int | None]) -> list[Finding]:
    """Give at most one finding: the stage with most work, where it has clearly more than the others."""
    stages = _stages(run)
    by_stage: dict[int, list[int]] = {}
    for rank in work:
        if rank in stages:
            by_stage.setdefault(stages[rank], []).append(rank)
    if len(by_stage) < 2:
        return []
    usual = {stage: float(np.median([work[rank].usual_ns for rank in ranks])) for stage, ranks in by_stage.items()}
    heaviest = max(usual, key=usual.__getitem__)
    others = float(np.median([each for stage, each in usual.items() if stage != heaviest]))
    more = usual[heaviest] - others
    windows = [window for rank in by_stage[heaviest] if (window := window_ns.get(rank))]
    larger = {stage: float(np.median([work[rank].larger for rank in ranks])) for stage, ranks in by_stage.items()}
    if larger[heaviest] - min(larger.values()) > LARGER:
        return []  # it rather has a larger batch
    if others <= 0 or usual[heaviest] < MORE * others or not windows or more < WEIGHS * float(np.median(windows)):
        return []
    ranks = sorted(by_stage[heaviest])
    shown = listed(ranks)
    return [
        Finding(
            id=f"uneven_stages:stage{heaviest}",
            severity="warning",
            title=f"pipeline stage {heaviest} (rank {shown}) has {usual[heaviest] / others:.2f} times the work of the "
            f"other stages, {more / 1e6:.3f} ms more in all: the others wait for it; move layers to the others",
            evidence={
                "stage": heaviest,
                "ranks": ranks,
                "work_ns": {str(stage): round(usual[stage]) for stage in sorted(usual)},
                "more_ns": round(more),
            },
            known_from="trace",
        )
    ]


def _stages(run: Run) -> dict[int, int]:
    """Give the stage of every rank of a pipeline group: its place in the group."""
    found: dict[int, int] = {}
    for group in run.groups:
        if group.ranks is not None and _is_pipeline(group, run):
            found |= {rank: stage for stage, rank in enumerate(group.ranks)}
    return found


def _is_pipeline(group: Group, run: Run) -> bool:
    """Whether the group is described as a pipeline's, or its members do nothing but send and receive in it."""
    told = dimension_of(group.description)
    if told is not None:
        return told == PIPELINE
    ops: set[str] = set()
    for rank in group.ranks or ():
        timeline = run.ranks.get(rank)
        if timeline is not None and group.name in timeline.names:
            rows = timeline.collectives.group == timeline.names.index(group.name)
            ops |= {timeline.names[code] for code in unique(timeline.collectives.op[rows]).tolist() if code >= 0}
    return bool(ops) and ops <= POINT_TO_POINT
