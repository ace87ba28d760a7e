"""Result types of matching: blocks of calls, each the same call on all ranks that made it, kind by kind."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints


class MatchedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls of one kind: row i of each array is `ranks[i]`, column k the k-th call."""

    group: str | None
    op: str
    dtype: str | None
    bytes: int | None
    ranks: tuple[int, ...]
    rows: npt.NDArray[np.int64]
    """Row of each call in the rank's `Collectives`."""
    start_ns: npt.NDArray[np.int64]
    """On the rank's own clock, as `end_ns`."""
    end_ns: npt.NDArray[np.int64]
    by_order: bool
    """Whether calls were paired by their order within their kind, since there are no sequence numbers."""
    whole: bool
    """Whether every member of the group was recorded."""
    even: bool = True
    """Whether all ranks move the same amount of data. Uneven calls cannot be split into wait and transfer, and do not
    end together; their `bytes` is None."""

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.rows.shape[1])


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """The paired calls; `unmatched` counts the recorded calls that could not be paired, on each rank."""

    blocks: tuple[MatchedCalls, ...] = ()
    uneven: tuple[MatchedCalls, ...] = ()
    """Matched calls of uneven all-to-all, whose transfer time is not known."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()


def positions_by_ranks(blocks: Sequence[MatchedCalls]) -> dict[tuple[int, ...], list[int]]:
    """Return the positions of the blocks of each set of ranks, in the order of their first block.

    Blocks of the same ranks are processed together: one numpy call for a set of ranks, not one for each block.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for at, block in enumerate(blocks):
        found.setdefault(block.ranks, []).append(at)
    return found


def join_columns(tables: Sequence[Ints]) -> Ints:
    """Concatenate the columns of tables with the same rows."""
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def block_bounds(blocks: Sequence[MatchedCalls]) -> npt.NDArray[np.int64]:
    """Return the first column of each block in their concatenation, and the end of the last one."""
    return np.concatenate([[0], np.cumsum([block.calls for block in blocks])])
