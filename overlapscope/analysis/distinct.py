"""Rows of several columns, numbered by what they hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints


def distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Ints]:
    """Number the distinct rows in the order of their first; give the numbers, and the first row of each.

    Column by column: to sort whole rows at once takes ten times as long.
    """
    code = np.zeros(columns[0].size, np.int64)
    for column in columns:
        values, at = np.unique(column, return_inverse=True)
        _, code = np.unique(code * values.size + at, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank[code], first[order]
