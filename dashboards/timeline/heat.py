"""The heat map: ranks by time, each cell a sum of exact times.

A row is one rank, or several neighbours where there are more ranks than rows; their times are added, none is left out.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.occupancy import (
    COMPUTE_ONLY,
    COPY_ONLY,
    EXPOSED,
    HIDDEN,
    IDLE,
    STATES,
    UNRECORDED,
    Occupancy,
)
from overlapscope.timeline.columns import Ints

DOMINATING: Final = "dominating"
MODES: Final = (DOMINATING, "exposed", "hidden", "compute", "copy", "idle")
"""What a cell's colour says: the state it was in longest, or the share of one state."""
FULL: Final = 201
"""The value of a cell that was in the state throughout; 1 is never, 0 is not recorded."""
_TIES: Final = (EXPOSED, HIDDEN, COMPUTE_ONLY, COPY_ONLY, IDLE, UNRECORDED)
"""Of states that took equally long, the first of these is shown."""
Cells = npt.NDArray[np.uint8]


def rows_of(ranks: int, most: int) -> list[range]:
    """Share so many ranks out over at most `most` rows, equally many to each but the last; by position, not number."""
    each = max(-(-ranks // max(most, 1)), 1)
    return [range(first, min(first + each, ranks)) for first in range(0, ranks, each)]


def spent_by_row(occupancy: Sequence[Occupancy], rows: Sequence[range], edges_ns: Ints) -> Iterator[Ints]:
    """Give, row after row, the nanoseconds that its ranks together spent in each state: one line a bin."""
    for row in rows:
        spent = occupancy[row[0]].spent(edges_ns)
        for place in row[1:]:
            spent += occupancy[place].spent(edges_ns)
        yield spent


def heat(occupancy: Sequence[Occupancy], rows: Sequence[range], edges_ns: Ints, mode: str) -> Cells:
    """Give the cells, one row a line: the state (`STATES`) of most time, or the share of one from 1 to FULL.

    A share is one of the time that was recorded; where there is any it is never shown as none.
    """
    cells = np.empty((len(rows), max(edges_ns.size - 1, 0)), np.uint8)
    for at, spent in enumerate(spent_by_row(occupancy, rows, edges_ns)):
        cells[at] = _dominating(spent) if mode == DOMINATING else _share(spent, STATES.index(mode))
    return cells


def _dominating(spent: Ints) -> Cells:
    order = np.array(_TIES)
    longest: Cells = order[spent[:, order].argmax(axis=1)].astype(np.uint8)
    return longest


def _share(spent: Ints, state: int) -> Cells:
    recorded = spent[:, IDLE:].sum(axis=1)
    share = np.ceil(spent[:, state] * (FULL - 1.0) / np.maximum(recorded, 1))
    return np.where(recorded > 0, 1 + share, 0).astype(np.uint8)
