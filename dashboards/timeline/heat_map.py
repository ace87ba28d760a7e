"""The heat map: ranks by time, each cell a sum of exact times.

A row is one rank, or several neighbours where there are more ranks than rows; their times are added, none is left out.
"""

from collections.abc import Sequence
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
MAP_PIXELS: Final = 384
"""Height of the heat map of many ranks; more ranks than pixels share rows."""
ROW_PIXELS: Final = 28
"""Height of a row of the heat map of few ranks."""
_TIES: Final = (EXPOSED, HIDDEN, COMPUTE_ONLY, COPY_ONLY, IDLE, UNRECORDED)
"""Of states that took equally long, the first of these is shown."""
_EXACT: Final = 1 << 53
"""Up to here sums of floats are sums of whole numbers."""
Cells = npt.NDArray[np.uint8]


def rows_of(ranks: int, most: int) -> list[range]:
    """Share so many ranks out over at most `most` rows, equally many to each but the last; by position, not number."""
    each = max(-(-ranks // max(most, 1)), 1)
    return [range(first, min(first + each, ranks)) for first in range(0, ranks, each)]


def map_rows(ranks: int) -> list[range]:
    """Return the rows of the heat map."""
    return rows_of(ranks, MAP_PIXELS)


def map_row_pixels(rows: int) -> int:
    """Return the height of each of so many."""
    return max(min(ROW_PIXELS, MAP_PIXELS // max(rows, 1)), 1)


def spent_by_row(occupancy: Sequence[Occupancy], rows: Sequence[range], edges_ns: Ints) -> Ints:
    """Return the nanoseconds that each row's ranks together spend in each state and bin: rows by `STATES` by bins.

    The bins are all of one width: `edges_ns` are what `window.edges` gives, on the clock of the states.
    """
    bins = max(edges_ns.size - 1, 0)
    spent = np.zeros((len(rows), len(STATES), bins), np.int64)
    for own, row in zip(spent, rows, strict=True) if bins else ():
        for place in row:
            _add(own, occupancy[place], int(edges_ns[0]), int(edges_ns[1] - edges_ns[0]))
    return spent


def heat(spent: Ints, mode: str) -> Cells:
    """Return the cells, one row a line: the state (`STATES`) of most time, or the share of one from 1 to FULL.

    A share is one of the time that was recorded; where there is any it is never shown as none. `spent` is what
    `spent_by_row` gives.
    """
    cells = np.empty((spent.shape[0], spent.shape[2]), np.uint8)
    for row, own in zip(cells, spent, strict=True):
        row[:] = _dominating(own) if mode == DOMINATING else _share(own, STATES.index(mode))
    return cells


def _add(spent: Ints, rank: Occupancy, first_ns: int, width_ns: int) -> None:
    """Add a rank's time in each state to bins of one width.

    A bin is all of the state that it begins with; then each change moves what is left of the bin from one state to the
    other. So what lies between changes is never looked at.
    """
    bins = spent.shape[1]
    begin, end = rank.at_ns.searchsorted((first_ns, first_ns + width_ns * bins)).tolist()
    since = rank.at_ns[begin:end] - first_ns
    place = since // width_ns
    left = (place + 1) * width_ns - since
    state = np.empty(since.size + 1, np.int64)
    state[0] = rank.before(begin)
    state[1:] = rank.state[begin:end]
    changes = np.bincount(place, minlength=bins)
    flat = spent.reshape(-1)
    flat[state.take(np.cumsum(changes) - changes) * bins + np.arange(bins)] += width_ns
    new, old = state[1:] * bins + place, state[:-1] * bins + place
    if width_ns * max(since.size, 1) < _EXACT:
        moved = np.bincount(new, left, flat.size) - np.bincount(old, left, flat.size)
        flat += moved.astype(np.int64)
    else:
        np.add.at(flat, new, left)
        np.subtract.at(flat, old, left)


def _dominating(spent: Ints) -> Cells:
    order = np.array(_TIES, np.uint8)
    longest: Cells = order[spent[order].argmax(axis=0)]
    return longest


def _share(spent: Ints, state: int) -> Cells:
    recorded = spent[IDLE:].sum(axis=0)
    share = np.ceil(spent[state] * (FULL - 1.0) / np.maximum(recorded, 1))
    return np.where(recorded > 0, 1 + share, 0).astype(np.uint8)
