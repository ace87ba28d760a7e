"""Find the steps in which a device ran the same kernels slower, all by about one factor: its clock was lowered, perhaps
for a while, or something else ran on it then.

A step is held against what the device's peers ran in the same step, and against its own other steps: kernel by kernel,
the n-th of each name with the n-th. In sums over a recording few such steps are some percent, and one long kernel of a
name looks like all of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.following_compute import in_optimizer
from overlapscope.analysis.stragglers.onset import MOST_PEERS
from overlapscope.analysis.stragglers.step_kernels import ALL_KINDS, SLOWER_TOO
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Floats
from overlapscope.timeline.rows import split_by
from overlapscope.timeline.run import RankTimeline, Run

SLOW_STEPS: Final = "slow_steps"
"""The evidence of such steps: their numbers, ..."""
AS_USUAL_STEPS: Final = "as_usual_steps"
"""... and those of the others, in which it is as fast as its peers; none where it is slower in all that can be
compared."""
TIMES_IN_SLOW_STEPS: Final = "times_in_slow_steps"
"""The evidence of how many times as long as its peers' its kernels take in these, in sum."""
LONGER: Final = 1.1
"""A device is slower in a step from this factor on. A choice: single steps of equal devices differ by some percent."""
AS_USUAL: Final = 1.05
"""It is as fast as its peers in its other steps up to this factor, in the median: that from which a rank is said to
compute longer in a whole recording."""
FEWEST: Final = 2
"""Slow steps: a single one is an event, which is named as an odd step."""
FEWEST_KERNELS: Final = 3
"""In a step: of one or two a common factor says nothing."""
_Work = tuple[tuple[str, int], ...]
"""Name and blocks of each kernel of a step, by name, then by start."""


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a step, in the order of `work`."""

    work: _Work
    taken_ns: Floats
    optimizes: Flags


def slow_in_steps(rank: int, peers: Sequence[int], run: Run, late_ns: Mapping[int, int]) -> dict[str, Any]:
    """Return as evidence in which steps a device did the same work as its peers slower than they, and than in its other
    steps, if there are any, where most of what it was late by (`late_ns`, by step) is in these; empty where that is not
    so or not known.

    The work is the same where a step has the same kernels, by name and grid, on all of these ranks, and in most of the
    rank's steps.
    """
    ranks = [rank, *(each for each in peers if each in run.ranks)][: MOST_PEERS + 1]
    if len(ranks) < 2 or not all(run.ranks[each].has_device for each in ranks):
        return {}
    own, *theirs = (_steps(run.ranks[each]) for each in ranks)
    work, alike = max(Counter(each.work for each in own.values()).items(), key=itemgetter(1), default=((), 0))
    compared = [step for step in own if all(step in each and each[step].work == work for each in (own, *theirs))]
    if 2 * alike < len(own) or len(work) < FEWEST_KERNELS:
        return {}
    usual = {step: np.median([each[step].taken_ns for each in theirs], axis=0) for step in compared}
    times = {step: _times(own[step], usual[step]) for step in compared}
    slow = [step for step in compared if times[step] >= LONGER and _is_even(own[step], usual[step])]
    others = [step for step in compared if step not in slow]
    if others:
        if np.median([times[step] for step in others]) > AS_USUAL:
            return {}
        own_usual = np.median([own[step].taken_ns for step in others], axis=0)
        slow = [step for step in slow if _times(own[step], own_usual) >= LONGER and _is_even(own[step], own_usual)]
    if len(slow) < FEWEST or 2 * sum(late_ns.get(step, 0) for step in slow) <= sum(late_ns.values()):
        return {}
    took_ns = sum(float(own[step].taken_ns.sum()) for step in slow)
    usual_ns = sum(float(usual[step].sum()) for step in slow)
    return {SLOW_STEPS: slow, TIMES_IN_SLOW_STEPS: took_ns / usual_ns, AS_USUAL_STEPS: others}


def is_interrupted(evidence: Mapping[str, Any]) -> bool:
    """Return whether a device was as fast as its peers in some step after one in which it was slower."""
    return any(step > min(evidence[SLOW_STEPS]) for step in evidence.get(AS_USUAL_STEPS, ()))


def _times(step: _Step, usual: Floats) -> float:
    """Return how many times as long as usual all kernels took."""
    return float(step.taken_ns.sum() / max(usual.sum(), 1))


def _is_even(step: _Step, usual: Floats) -> bool:
    """Return whether nearly all kernels take longer by about one factor, those of the optimizer, whose work no batch
    changes, among them."""
    slower = step.taken_ns >= (1 + SLOWER_TOO * (_times(step, usual) - 1)) * usual
    parts = [np.ones(usual.size, np.bool_), step.optimizes]
    return all(float(usual[part & slower].sum()) >= ALL_KINDS * float(usual[part].sum()) for part in parts)


def _steps(timeline: RankTimeline) -> dict[int, _Step]:
    """Return the kernels of each step that was recorded whole, by number; without steps whose number several recordings
    use, or of which a grid is not known."""
    steps, spans = timeline.steps, timeline.spans
    numbers, counts = np.unique(steps.step, return_counts=True)
    whole = np.setdiff1d(numbers[counts == 1], steps.step[steps.cut])
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0) & np.isin(spans.step, whole))
    codes, name = np.unique(spans.name[rows], return_inverse=True)
    names = [timeline.names[code] for code in codes.tolist()]
    by_name = np.argsort(np.argsort(names)) if names else codes
    rows = rows[np.lexsort((spans.start_ns[rows], by_name[name], spans.step[rows]))]
    optimizes, taken_ns = in_optimizer(timeline, rows), (spans.end_ns - spans.start_ns)[rows].astype(np.float64)
    named = np.searchsorted(codes, spans.name[rows])
    found = {}
    for at in split_by(spans.step[rows]):
        blocks = spans.blocks[rows[at]]
        if (blocks != NONE).all():
            work = tuple(zip((names[each] for each in named[at].tolist()), blocks.tolist(), strict=True))
            step = int(spans.step[rows[at[0]]])
            found[step] = _Step(work=work, taken_ns=taken_ns[at], optimizes=optimizes[at])
    return found
