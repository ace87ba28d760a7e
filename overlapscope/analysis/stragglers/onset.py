"""Find since when a device computes longer than its peers: from which step on, or whether in one step alone.

What the kernels of a rank take in a step is held against what those of their names usually take, and that against the
same of its peers in that step. Where a rank became slower in the middle of a recording, the sum over steps of what they
take longer, less its mean, is least there: the usual estimate of one change of a mean (Page 1954, "Continuous
inspection schemes"; the least squares of one change point). Single kernels are not asked: one name may stand for short
and long calls, whose order within a step would look like a change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Floats, Ints
from overlapscope.timeline.run import RankTimeline, Run

ALIKE: Final = 0.02
"""Before, it took no more than this share longer, or shorter, than its peers: equal devices differ by as much ..."""
AS_LITTLE: Final = 0.1
"""... or than this share of what it takes longer after: a clock may fall over a few steps. A choice."""
LONGER: Final = 1.05
"""After, it took so many times as long in each piece of the rest: one long pause is no change."""
PIECES: Final = 4
FEWEST: Final = 2
"""Steps in which it takes longer, for it to do so since the first of them: one is an event, after which it may be as
fast as before."""
FEWEST_OTHERS: Final = 2
"""Steps besides one alone in which it takes longer: of two, either may be the odd one."""
LEAST: Final = 0.1
"""Both sides hold at least this share of what its kernels usually take. A choice."""
MOST_PEERS: Final = 8
"""Limit on the peers whose kernels are read."""
ONLY_STEP: Final = "only_step"
"""The evidence of the one step in which it takes longer, ..."""
ENDS_THERE: Final = "only_step_is_last"
"""... and whether that is the last one that was recorded: then it is not known how long that goes on."""


class _Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernels of a rank took, by step, and what those of their names usually take: of those that its peers
    run, too."""

    step: Ints
    taken_ns: Floats
    usual_ns: Floats

    def of(self, steps: Ints) -> Floats:
        """Return how many times as long as usual they took in each of these steps, all of which it has."""
        at = np.searchsorted(self.step, steps)
        return self.taken_ns[at] / self.usual_ns[at]


class _Compared(msgspec.Struct, frozen=True, kw_only=True):
    """By step: what a rank's kernels usually take, and how many times as long as its peers' they take."""

    step: Ints
    usual_ns: Floats
    times: Floats

    def mean(self, rows: slice | Ints) -> float:
        """Return how many times as long they take in these steps together."""
        return float(np.average(self.times[rows], weights=self.usual_ns[rows]))

    def was_alike(self, rows: slice | Ints, after: float) -> bool:
        """Return whether it was as fast as its peers in these steps, where it takes `after` times as long else."""
        return abs(self.mean(rows) - 1) <= max(ALIKE, AS_LITTLE * (after - 1))


def onset(rank: int, others: Sequence[int], run: Run) -> dict[str, Any]:
    """Return as evidence since which step a device takes longer than its peers, or in which one alone, and how many
    times as long then; empty where it always does, or that is not known."""
    others = [each for each in others if each in run.ranks][:MOST_PEERS]
    if not others or not all(run.ranks[each].has_device for each in (rank, *others)):
        return {}
    usual = _usual([run.ranks[each] for each in others])
    own, *theirs = (_steps(run.ranks[each], usual) for each in (rank, *others))
    steps = own.step
    for each in theirs:
        steps = np.intersect1d(steps, each.step)
    if steps.size < FEWEST:
        return {}
    times = own.of(steps) / np.median([each.of(steps) for each in theirs], axis=0)
    found = _Compared(step=steps, usual_ns=own.usual_ns[np.searchsorted(own.step, steps)], times=times)
    return _since(found) or _alone(found)


def _since(found: _Compared) -> dict[str, Any]:
    """Return since which step a device takes longer, for FEWEST steps or more; empty where it does not."""
    longer = np.cumsum(found.usual_ns * (found.times - found.mean(slice(None))))
    first = int(longer.argmin()) + 1
    change = float(found.usual_ns[:first].sum() / found.usual_ns.sum())
    left = found.step.size - first
    if left < FEWEST or not LEAST <= change <= 1 - LEAST:
        return {}
    after = found.mean(slice(first, None))
    pieces = np.array_split(np.arange(first, found.step.size), min(PIECES, left))
    if not found.was_alike(slice(0, first), after) or not all(found.mean(each) >= LONGER for each in pieces):
        return {}
    return {"since_step": int(found.step[first]), "times_since": after}


def _alone(found: _Compared) -> dict[str, Any]:
    """Return in which one step alone a device takes longer, and whether that is the last one; empty where it takes
    longer in none, or in several."""
    most = int(found.times.argmax())
    rest = np.delete(np.arange(found.step.size), most)
    times = float(found.times[most])
    if rest.size < FEWEST_OTHERS or times < LONGER or found.times[rest].max() >= LONGER:
        return {}
    if not found.was_alike(rest, times):
        return {}
    is_last = most == found.step.size - 1
    return {ONLY_STEP: int(found.step[most]), ENDS_THERE: is_last, "times_in_only_step": times}


def _usual(timelines: Sequence[RankTimeline]) -> dict[str, float]:
    """Return what a kernel of each name usually takes, in ns: the median of the means of ranks."""
    found: dict[str, list[float]] = {}
    for each in timelines:
        spans = each.spans
        rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
        codes, place, counts = np.unique(spans.name[rows], return_inverse=True, return_counts=True)
        mean = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], codes.size) / counts
        for code, ns in zip(codes.tolist(), mean.tolist(), strict=True):
            found.setdefault(each.names[code], []).append(ns)
    return {name: float(np.median(means)) for name, means in found.items()}


def _steps(timeline: RankTimeline, usual: Mapping[str, float]) -> _Steps:
    """Return what a rank's kernels took in each step; without those of no step, and of names without a usual time."""
    spans = timeline.spans
    of_name = np.array([*(usual.get(name, 0.0) for name in timeline.names), 0.0])  # index -1: without a name
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.step != NONE))
    rows = rows[of_name[spans.name[rows]] > 0]
    step, place = np.unique(spans.step[rows], return_inverse=True)
    taken_ns = (spans.end_ns - spans.start_ns)[rows].astype(np.float64)
    return _Steps(
        step=step,
        taken_ns=np.bincount(place, taken_ns, step.size).astype(np.float64),
        usual_ns=np.bincount(place, of_name[spans.name[rows]], step.size).astype(np.float64),
    )
