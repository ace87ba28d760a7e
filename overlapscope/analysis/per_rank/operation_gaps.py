"""Find the time of a CPU run's training thread between its operations in which it does nothing, by their names."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.host_operations import OperationPieces
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import take
from overlapscope.timeline.intervals import BusyTime, Intervals
from overlapscope.timeline.rows import sum_by

LEAST_NS: Final = 1_000_000
"""A shorter time between two operations is no pause."""
FEWEST_STEPS: Final = 3
IN_STEPS: Final = 0.9
"""Share of the steps that have a pause which recurs: a lost core comes now here, now there."""

Between = tuple[str, str]
"""Names of the operations before and after a gap."""


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses of a rank between two operations that come in each step."""

    ns: float
    """In the median step."""
    number: float
    """Of them, in the median step."""
    steps: int


class OperationGaps(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a rank between its operations in which it does nothing."""

    pauses: Mapping[Between, Pauses]
    """That come in each step."""
    mean_ns: Mapping[Between, float]
    """In the mean step, in gaps of any length and in any number of steps."""


def operation_gaps(
    pieces: OperationPieces, names: Sequence[str], windows: Sequence[StepWindow], comm: Intervals
) -> OperationGaps | None:
    """Return the gaps between operations of the training thread in complete steps, without its communication.

    `names` are those of the rank's codes. None where it has too few complete steps.
    """
    steps = sorted(each.window for each in windows if each.complete and each.window)
    if len(steps) < FEWEST_STEPS or not pieces.lane.size:
        return None
    own = _of_training_thread(pieces)
    start, end = own.end_ns[:-1], own.start_ns[1:]
    begin, until = np.array(steps, np.int64).T
    step = np.searchsorted(begin, start, side="right") - 1
    paused = end - start - BusyTime(comm).within(start, end)
    rows = np.flatnonzero((step >= 0) & (end <= until[np.maximum(step, 0)]) & (paused > 0))
    step, paused = step[rows], paused[rows]
    codes, at = np.unique(own.name[rows].astype(np.int64) * len(names) + own.name[rows + 1], return_inverse=True)
    between = [(names[code // len(names)], names[code % len(names)]) for code in codes.tolist()]
    mean_ns = sum_by(at, paused, len(between)) / begin.size
    long = paused >= LEAST_NS
    pauses = {}
    for pair in np.unique(at[long]).tolist():
        its = long & (at == pair)
        number = np.bincount(step[its], minlength=begin.size)
        if np.count_nonzero(number) >= IN_STEPS * begin.size:
            pauses[between[pair]] = Pauses(
                ns=float(np.median(sum_by(step[its], paused[its], begin.size))),
                number=float(np.median(number)),
                steps=begin.size,
            )
    return OperationGaps(pauses=pauses, mean_ns=dict(zip(between, mean_ns.tolist(), strict=True)))


def _of_training_thread(pieces: OperationPieces) -> OperationPieces:
    """Return the pieces of the thread that computes longest, by start."""
    lanes, at = np.unique(pieces.lane, return_inverse=True)
    busy = sum_by(at.ravel(), pieces.end_ns - pieces.start_ns, lanes.size)
    own = take(pieces, pieces.lane == lanes[busy.argmax()])
    return take(own, np.argsort(own.start_ns, kind="stable"))
