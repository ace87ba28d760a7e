"""Blocks of calls that the same ranks made, put together: numpy is asked once a set of ranks, not once a block."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.matched import Matched
from overlapscope.timeline.columns import Ints


def by_ranks(blocks: Sequence[Matched]) -> dict[tuple[int, ...], list[int]]:
    """Give the places of the blocks of each set of ranks, in the order of the first."""
    found: dict[tuple[int, ...], list[int]] = {}
    for at, block in enumerate(blocks):
        found.setdefault(block.ranks, []).append(at)
    return found


def side_by_side(tables: Sequence[Ints]) -> Ints:
    """Put tables of the same rows beside each other."""
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def bounds(blocks: Sequence[Matched]) -> npt.NDArray[np.int64]:
    """Give where each block begins when they stand beside each other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([block.calls for block in blocks])])
