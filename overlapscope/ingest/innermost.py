"""Which host range was innermost at a given moment on a given thread."""

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.order import unique

NOWHERE = -1


def innermost(
    lanes: Ints, starts: Ints, ends: Ints, at_lanes: Ints, at: Ints, chosen: npt.NDArray[np.bool_] | None = None
) -> Ints:
    """Give, for each moment `at` on lane `at_lanes`, the row of the innermost range [start, end) around it.

    Innermost is the one that started last; of those that started together, the shortest. Ranges need not be
    properly nested. `chosen` limits the ranges looked at. NOWHERE where there is none.
    """
    found = np.full(at.size, NOWHERE, np.int64)
    rows = np.arange(starts.size) if chosen is None else np.flatnonzero(chosen)
    if rows.size == 0 or at.size == 0:
        return found
    order = rows[np.lexsort((-ends[rows], starts[rows], lanes[rows]))]
    sorted_lanes = lanes[order]
    for lane in unique(at_lanes):
        first, last = np.searchsorted(sorted_lanes, [lane, lane + 1])
        if first == last:
            continue
        on_lane = order[first:last]
        asked = np.flatnonzero(at_lanes == lane)
        begun = np.searchsorted(starts[on_lane], at[asked], side="right") - 1
        position = _last_reaching(ends[on_lane], begun, at[asked])
        hit = position >= 0
        found[asked[hit]] = on_lane[position[hit]]
    return found


def _last_reaching(ends: Ints, upto: Ints, beyond: Ints) -> Ints:
    """Give the last position <= upto whose end lies past `beyond`; negative where there is none.

    A few steps back find most; the rest climb and descend a tree of block maxima.
    """
    position = upto.copy()
    for _ in range(4):
        missed = (position >= 0) & (ends[np.maximum(position, 0)] <= beyond)
        if not missed.any():
            return position
        position[missed] -= 1
    rest = np.flatnonzero((position >= 0) & (ends[np.maximum(position, 0)] <= beyond))
    if rest.size:
        position[rest] = _search_tree(ends, position[rest], beyond[rest])
    return position


def _search_tree(ends: Ints, upto: Ints, beyond: Ints) -> Ints:
    """Do the search of `_last_reaching` in O(log n) vector steps."""
    lowest = np.iinfo(np.int64).min
    levels = [ends]
    while levels[-1].size > 1:
        below = levels[-1]
        if below.size % 2:
            below = np.append(below, lowest)
        levels.append(np.maximum(below[0::2], below[1::2]))
    # Climb: blocks up to and with `node` are still to be searched. An odd one completes its parent, so its parent
    # stands for both; an even one is looked into, and if it fails, the parents before it remain.
    node = upto.copy()
    found_at = np.full(upto.size, -1, np.int64)
    for depth, maxima in enumerate(levels):
        searching = (found_at < 0) & (node >= 0)
        even = searching & (node % 2 == 0)
        hit = even.copy()
        hit[even] = maxima[node[even]] > beyond[even]
        found_at[hit] = depth
        node = np.where(hit | ~searching, node, np.where(even, node // 2 - 1, node // 2))
    node[found_at < 0] = NOWHERE
    # Descend to the rightmost reaching leaf of the found block.
    for depth in range(len(levels) - 1, 0, -1):
        down = found_at == depth
        if not down.any():
            continue
        children = levels[depth - 1]
        right = np.minimum(node[down] * 2 + 1, children.size - 1)
        takes_right = (node[down] * 2 + 1 < children.size) & (children[right] > beyond[down])
        node[down] = np.where(takes_right, node[down] * 2 + 1, node[down] * 2)
        found_at[down] = depth - 1
    return node
