"""Find ranks that work like the last stage of a pipeline whose other stages are not known, and what they wait for.

Where a pipeline has a group for each pair of stages, or for each direction between them, neither how many stages it
has nor its schedule follows from what its last stage recorded. But that one receives, computes, and sends back, once
for each micro-batch. Neighbours in a ring, or at the border of a grid, send and receive at the same time instead.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.checks.pipelines.bubbles import MIN_NS, MIN_SHARE
from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline, Run

FEWEST_BATCHES: Final = 3
"""Messages each way in a step. A choice: fewer may be anything else."""
MOSTLY: Final = 0.5
"""Least share of a step's compute that lies between messages and their answers. A choice: the optimizer, and gradients
that are reduced, follow them."""


class _Waits(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is like a last stage; times in ns, medians over its complete steps."""

    rank: int
    messages: int
    """It receives so many in each step, and sends as many."""
    step_ns: float
    first_ns: float
    """Without compute in the first receive of a step, beyond what the shortest receive takes, ..."""
    later_ns: float
    """... and likewise in all later ones."""


def last_stage_waits(
    run: Run, coverage: Mapping[int, Coverage], windows: Mapping[int, Sequence[StepWindow]]
) -> list[Finding]:
    """Return at most one finding: the ranks that work like a last stage, and for how long the one that waits most waits
    for the stages before, where that is much of a step."""
    every = [_waits(own, BusyTime(coverage[rank].compute), windows[rank]) for rank, own in run.ranks.items()]
    found = [
        each
        for each in every
        if each is not None and each.first_ns + each.later_ns >= max(MIN_NS, MIN_SHARE * each.step_ns)
    ]
    if not found:
        return []
    most = max(found, key=lambda each: (each.first_ns + each.later_ns) / each.step_ns)
    ranks = [each.rank for each in found]
    work = "works" if len(found) == 1 else "work"
    on = "" if len(found) == 1 else f" on rank {most.rank},"
    return [
        Finding(
            id="last_stage_waits",
            severity="warning",
            title=f"{rank_list(ranks)} {work} like the last stage of a pipeline: {most.messages} times a step it "
            f"receives, computes and sends back. Of a {format_ms(most.step_ns)} step{on} it waits without computing "
            f"for {format_ms(most.first_ns)} in the first receive, as the pipeline fills, and for "
            f"{format_ms(most.later_ns)} in the later ones, beyond the shortest: for the stages before, or for their "
            "links",
            evidence={
                "ranks": ranks,
                "messages": most.messages,
                "step_ns": most.step_ns,
                "first_ns": {str(each.rank): each.first_ns for each in found},
                "later_ns": {str(each.rank): each.later_ns for each in found},
            },
            known_from="trace",
        )
    ]


def _waits(timeline: RankTimeline, compute: BusyTime, windows: Sequence[StepWindow]) -> _Waits | None:
    """Return what a rank waits for like a last stage; None where it does not work like one in each complete step."""
    calls, names = timeline.collectives, timeline.names
    rows = np.flatnonzero(rows_named(calls.op, names, POINT_TO_POINT.__contains__))
    chosen = [each for each in windows if each.complete and each.window is not None and each.step != NONE]
    alone = np.unique(calls.peer[rows]).size == 1 and not (calls.peer[rows] == NONE).any()
    timed = (calls.start_ns[rows] != NONE).all() and (calls.end_ns[rows] != NONE).all()
    if not (timeline.has_device and chosen and alone and timed) or (calls.dimension[rows] >= 0).any():
        return None
    receives = rows_named(calls.op, names, "recv".__eq__)
    waits = []
    for each in chosen:
        own = rows[(calls.step[rows] == each.step) & (calls.recording[rows] == each.recording)]
        own = own[np.argsort(calls.start_ns[own], kind="stable")]
        received, sent = own[receives[own]], own[rows_named(calls.op[own], names, "send".__eq__)]
        if received.size + sent.size != own.size or not _answers(timeline, received, sent, compute, each):
            return None
        start, end = calls.start_ns[received], calls.end_ns[received]
        waits.append(end - start - compute.within(start, end))
    if len({each.size for each in waits}) > 1:
        return None
    lasts = (calls.end_ns - calls.start_ns)[rows[receives[rows]]]
    beyond = np.maximum(np.array(waits) - lasts.min(), 0)
    lengths = [end - start for start, end in (each.window for each in chosen if each.window)]
    return _Waits(
        rank=timeline.rank,
        messages=int(beyond.shape[1]),
        step_ns=float(np.median(lengths)),
        first_ns=float(np.median(beyond[:, 0])),
        later_ns=float(np.median(beyond[:, 1:].sum(axis=1))),
    )


def _answers(timeline: RankTimeline, received: Ints, sent: Ints, compute: BusyTime, step: StepWindow) -> bool:
    """Return whether each message that a rank received in a step, in order of time, is as large as the one that it sent
    back, which begins after compute, and before the next has come; most compute of the step is between them."""
    calls = timeline.collectives
    if received.size != sent.size or received.size < FEWEST_BATCHES or step.window is None:
        return False
    come, answer = calls.end_ns[received], calls.start_ns[sent]
    alike = np.unique(calls.bytes[np.append(received, sent)]).size == 1
    in_turn = bool((answer >= come).all() and (answer[:-1] <= come[1:]).all())
    between = compute.within(come, answer)
    most = between.sum() >= MOSTLY * compute.within(*step.window)
    return bool(alike and in_turn and (between > 0).all() and most)
