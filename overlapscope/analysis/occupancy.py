"""Every moment of a rank in exactly one state, ready to be summed over any windows: what a timeline shows at any zoom.

The states are the parts of `Breakdown`: over a window their times are its figures, to the nanosecond. What lies outside
of the recordings is a state of its own, as nothing is known of it.
"""

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.breakdown import Coverage
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, union

UNRECORDED, IDLE, COMPUTE_ONLY, HIDDEN, EXPOSED, COPY_ONLY = range(6)
STATES: Final = ("unrecorded", "idle", "compute", "hidden", "exposed", "copy")
_COMM, _COMPUTE, _COPY, _RECORDED = 1, 2, 4, 8
_STATE_OF: Final = np.array(
    [
        UNRECORDED if not bits else
        HIDDEN if bits & _COMM and bits & _COMPUTE else
        EXPOSED if bits & _COMM else
        COMPUTE_ONLY if bits & _COMPUTE else
        COPY_ONLY if bits & _COPY else
        IDLE
        for bits in range(16)
    ],
    np.uint8,
)  # fmt: skip
"""State by what is going on, as a sum of the bits above."""
_EVER: Final = -(1 << 62)
"""Before all times."""
States = npt.NDArray[np.uint8]


class Occupancy:
    """From `at_ns[i]` on, up to the next, the rank is in `state[i]`; before the first it is unrecorded."""

    __slots__ = ("_begun", "_spent", "_states")

    def __init__(self, at_ns: Ints, state: States) -> None:
        self._begun = np.concatenate((np.array([_EVER]), at_ns))
        self._states = np.concatenate((np.array([UNRECORDED], np.uint8), state))
        spent = np.zeros((self._begun.size, len(STATES)), np.int64)
        rows = np.arange(1, self._begun.size)
        spent.ravel()[rows * len(STATES) + self._states[:-1]] = np.diff(self._begun)
        self._spent = np.cumsum(spent, axis=0, out=spent)

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[Intervals, int]]) -> Self:
        """Build from disjoint sets of time, each with its state; all other time is unrecorded."""
        at = np.concatenate([each for part, _ in parts for each in part])
        change = np.concatenate([_changes(part, state) for part, state in parts])
        return cls(*_merged(at, change, np.arange(len(STATES), dtype=np.uint8)))

    @property
    def at_ns(self) -> Ints:
        """When each state begins, ascending."""
        return self._begun[1:]

    @property
    def state(self) -> States:
        """The state that begins then."""
        return self._states[1:]

    @classmethod
    def of(cls, coverage: Coverage, recorded: Sequence[tuple[int, int]]) -> Self:
        """Build from what covers a rank's time and from when it was recorded, `whole_windows`."""
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

    @property
    def extent(self) -> tuple[int, int] | None:
        """When recording began and ended; None where nothing was recorded."""
        return (int(self.at_ns[0]), int(self.at_ns[-1])) if self.at_ns.size else None

    def spent(self, edges_ns: Ints) -> Ints:
        """Give, for each window between two neighbours of `edges_ns` (ascending), the nanoseconds in each state.

        One row a window, one column a state in the order of `STATES`; a row's sum is the window's length.
        """
        place = np.searchsorted(self._begun, edges_ns, side="right") - 1
        before = self._spent.take(place, axis=0)  # several times as fast as indexing
        before.ravel()[np.arange(place.size) * len(STATES) + self._states.take(place)] += edges_ns - self._begun.take(
            place
        )
        spent: Ints = before[1:] - before[:-1]
        return spent


def _merged(at: Ints, change: npt.NDArray[np.int8], state_of: States) -> tuple[Ints, States]:
    """Give when the state changes, and to which, from what is added and taken away at each moment."""
    order = np.argsort(at, kind="stable")
    at, sums = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], np.ones(min(at.size, 1), np.bool_))
    at, state = at[last], state_of[sums[last]]
    new = np.append(np.ones(min(at.size, 1), np.bool_), state[1:] != state[:-1])
    return at[new], state[new]


def _changes(part: Intervals, bit: int) -> npt.NDArray[np.int8]:
    return np.repeat(np.array([bit, -bit], np.int8), part.starts.size)
