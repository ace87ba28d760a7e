"""The heat map: ranks by time, each cell computed from exact times.

A row is one rank, or several neighbouring ranks where there are more ranks than rows; then their times are summed.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.per_rank.occupancy import (
    COMPUTE_ONLY,
    COPY_ONLY,
    EXPOSED,
    IDLE,
    OVERLAPPED,
    STATES,
    UNRECORDED,
    Occupancy,
)
from overlapscope.timeline.columns import Ints

DOMINATING: Final = "dominating"
MODES: Final = (DOMINATING, "exposed", "hidden", "compute", "copy", "idle")
"""The meaning of a cell's colour: the state with the most time, or the share of one state."""
FULL: Final = 201
"""Cell value for a share of 100 %; 1 is 0 %, 0 is not recorded."""
MAP_PIXELS: Final = 384
"""Height of the heat map of many ranks; more ranks than pixels share rows."""
ROW_PIXELS: Final = 28
"""Height of a row of the heat map of few ranks."""
_TIES: Final = (EXPOSED, OVERLAPPED, COMPUTE_ONLY, COPY_ONLY, IDLE, UNRECORDED)
"""Tie rule: of states with equal time, the first of these is shown."""
_EXACT: Final = 1 << 53
"""Below this, sums of whole numbers in float64 are exact."""
Cells = npt.NDArray[np.uint8]


def share_rows(ranks: int, most: int) -> list[range]:
    """Return ranges of rank positions for at most `most` rows, equal in size except the last."""
    each = max(-(-ranks // max(most, 1)), 1)
    return [range(first, min(first + each, ranks)) for first in range(0, ranks, each)]


def map_rows(ranks: int) -> list[range]:
    """Return the rows of the heat map."""
    return share_rows(ranks, MAP_PIXELS)


def map_row_pixels(rows: int) -> int:
    """Return the height in pixels of one of `rows` rows."""
    return max(min(ROW_PIXELS, MAP_PIXELS // max(rows, 1)), 1)


def time_by_row(occupancy: Sequence[Occupancy], rows: Sequence[range], edges_ns: Ints) -> Ints:
    """Return nanoseconds by row (summed over its ranks), state and bin: shape (rows, len(STATES), bins).

    The bins have equal width: `edges_ns` is the result of `window.edges`, on the clock of the states.
    """
    bins = max(edges_ns.size - 1, 0)
    spent = np.zeros((len(rows), len(STATES), bins), np.int64)
    for own, row in zip(spent, rows, strict=True) if bins else ():
        for place in row:
            _add(own, occupancy[place], int(edges_ns[0]), int(edges_ns[1] - edges_ns[0]))
    return spent


def map_cells(spent: Ints, mode: str) -> Cells:
    """Return cells of shape (rows, bins): the state (`STATES`) with the most time, or the share of one, 1 to FULL.

    A share is relative to the recorded time, and rounded up so that a small one is never shown as 0 %. `spent` is the
    result of `time_by_row`.
    """
    cells = np.empty((spent.shape[0], spent.shape[2]), np.uint8)
    for row, own in zip(cells, spent, strict=True):
        row[:] = _dominating(own) if mode == DOMINATING else _share(own, STATES.index(mode))
    return cells


def _add(spent: Ints, rank: Occupancy, first_ns: int, width_ns: int) -> None:
    """Add a rank's time in each state to bins of equal width, in place.

    A bin first counts fully for the state that it begins with; then each change moves the rest of the bin from the old
    state to the new one. So the cost depends only on the number of changes and bins.
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
