"""The state of a rank at every moment, ready to be summed over any windows; a timeline shows it at any zoom.

The states are the parts of `Breakdown`: summed over a window they equal its figures to the nanosecond. Time outside of
the recordings is a state of its own (unrecorded), since nothing is known about it.
"""

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, union

UNRECORDED, IDLE, COMPUTE_ONLY, OVERLAPPED, EXPOSED, COPY_ONLY = range(6)
STATES: Final = ("unrecorded", "idle", "compute", "hidden", "exposed", "copy")
_COMM, _COMPUTE, _COPY, _RECORDED = 1, 2, 4, 8
_STATE_OF: Final = np.array(
    [
        UNRECORDED if not bits else
        OVERLAPPED if bits & _COMM and bits & _COMPUTE else
        EXPOSED if bits & _COMM else
        COMPUTE_ONLY if bits & _COMPUTE else
        COPY_ONLY if bits & _COPY else
        IDLE
        for bits in range(16)
    ],
    np.uint8,
)  # fmt: skip
"""State by the sum of the active bits above."""
States = npt.NDArray[np.uint8]


class Occupancy:
    """From `at_ns[i]` to the next, the rank is in `state[i]`; before the first it is unrecorded.

    Sums are not precomputed: a thousand ranks have twenty million states, mostly mapped from a file.
    """

    __slots__ = ("at_ns", "state")

    def __init__(self, at_ns: Ints, state: States) -> None:
        self.at_ns, self.state = at_ns, state
        """Begin of each state (ascending), and the state that begins there."""

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[Intervals, int]]) -> Self:
        """Build from disjoint sets of intervals, each with its state; all other time is unrecorded."""
        at = np.concatenate([each for part, _ in parts for each in part])
        change = np.concatenate([_changes(part, state) for part, state in parts])
        return cls(*_merged(at, change, np.arange(len(STATES), dtype=np.uint8)))

    @classmethod
    def of(cls, coverage: Coverage, recorded: Sequence[tuple[int, int]]) -> Self:
        """Build from a rank's coverage and its recorded windows (see `whole_windows`)."""
        windows = np.array(recorded, np.int64).reshape(-1, 2)
        parts = (
            (coverage.comm, _COMM),
            (coverage.compute, _COMPUTE),
            (coverage.copy, _COPY),
            (union((windows[:, 0], windows[:, 1])), _RECORDED),
        )
        at = np.concatenate([each for part, _ in parts for each in part])
        change = np.concatenate([_changes(part, bit) for part, bit in parts])
        return cls(*_merged(at, change, _STATE_OF))

    def spent(self, edges_ns: Ints) -> Ints:
        """Return the nanoseconds in each state for each window between two neighbours of `edges_ns` (ascending).

        One row for each window, one column for each of `STATES`; the sum of a row is the window's length.
        """
        if not edges_ns.size:
            return np.empty((0, len(STATES)), np.int64)
        first, last = self.at_ns.searchsorted(edges_ns[[0, -1]], side="right").tolist()
        begun = np.concatenate((edges_ns[:1], self.at_ns[first:last]))
        states = np.append(self.before(first), self.state[first:last])
        passed = np.zeros((begun.size, len(STATES)), np.int64)
        passed.ravel()[np.arange(1, begun.size) * len(STATES) + states[:-1]] = np.diff(begun)
        np.cumsum(passed, axis=0, out=passed)
        place = begun.searchsorted(edges_ns, side="right") - 1
        until = passed.take(place, axis=0)  # several times faster than indexing
        until.ravel()[np.arange(place.size) * len(STATES) + states.take(place)] += edges_ns - begun.take(place)
        spent: Ints = until[1:] - until[:-1]
        return spent

    def before(self, place: int) -> int:
        """Return the state just before the state at a position begins."""
        return int(self.state[place - 1]) if place else UNRECORDED


def spent_together(ranks: Sequence[Occupancy], start_ns: int, end_ns: int) -> Ints:
    """Return the nanoseconds that the ranks spend in each state in one window, summed, in the order of `STATES`.

    Each change in the window moves the rest of the window from one state to another.
    """
    total = np.zeros(len(STATES), np.int64)
    changes: list[tuple[Ints, States, States]] = []
    for each in ranks:
        first, last = each.at_ns.searchsorted((start_ns, end_ns)).tolist()
        before = each.before(first)
        total[before] += end_ns - start_ns
        if last > first:
            old = each.state[first - 1 : last - 1] if first else np.append(np.uint8(before), each.state[: last - 1])
            changes.append((each.at_ns[first:last], each.state[first:last], old))
    if changes:
        left = end_ns - np.concatenate([at for at, _, _ in changes])
        np.add.at(total, np.concatenate([new for _, new, _ in changes]), left)
        np.subtract.at(total, np.concatenate([old for _, _, old in changes]), left)
    return total


def _merged(at: Ints, change: npt.NDArray[np.int8], state_of: States) -> tuple[Ints, States]:
    """Return (times, states) of all state changes, from the bits that are added and removed at each moment."""
    order = np.argsort(at, kind="stable")
    at, sums = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], np.ones(min(at.size, 1), np.bool_))
    at, state = at[last], state_of[sums[last]]
    new = np.append(np.ones(min(at.size, 1), np.bool_), state[1:] != state[:-1])
    return at[new], state[new]


def _changes(part: Intervals, bit: int) -> npt.NDArray[np.int8]:
    return np.repeat(np.array([bit, -bit], np.int8), part.starts.size)
