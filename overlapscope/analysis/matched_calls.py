"""Result types of matching: blocks of calls, each the same call on all ranks that made it, kind by kind."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.files.spill import SpilledArray, SpillStore, make_without_fields
from overlapscope.timeline.columns import Ints

_ARRAYS: Final = ("rows", "start_ns", "end_ns")


class MatchedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls of one kind: row i of each array is `ranks[i]`, column k the k-th call."""

    group: str | None
    op: str
    dtype: str | None
    bytes: int | None
    ranks: tuple[int, ...]
    rows: Ints
    """Row of each call in the rank's `Collectives`."""
    start_ns: Ints
    """On the rank's own clock, as `end_ns`."""
    end_ns: Ints
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
        return int(self.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks and of calls."""
        return self.rows.shape

    def rows_of(self, place: int) -> Ints:
        """Return the rows of the calls of one rank, by its position in `ranks`."""
        found: Ints = self.rows[place]
        return found

    def put_aside(self, aside: SpillStore) -> "MatchedCalls":
        """Return the same calls with their arrays written to `aside`; each is read at every access."""
        return _PutMatched.of(self, aside)

    def with_values(self, **changed: Any) -> "MatchedCalls":
        """Return a copy with changed values and its arrays in memory."""
        kept = {name: getattr(self, name) for name in self.__struct_fields__ if name not in changed}
        return MatchedCalls(**kept, **changed)


class _PutMatched(MatchedCalls, frozen=True, kw_only=True, dict=True):
    """Matched calls whose arrays are on disk."""

    __repr__ = object.__repr__  # shows no array

    @classmethod
    def of(cls, plain: MatchedCalls, aside: SpillStore) -> "_PutMatched":
        """Write the arrays to `aside`."""
        values = {name: getattr(plain, name) for name in plain.__struct_fields__ if name not in _ARRAYS}
        found = make_without_fields(cls, _ARRAYS, **values)
        vars(found)["_put"] = {name: aside.put(getattr(plain, name)) for name in _ARRAYS}
        return found

    def __getattr__(self, name: str) -> Any:
        """Read an array."""
        if name not in _ARRAYS:
            raise AttributeError(name)
        put: Mapping[str, SpilledArray] = self._put
        return put[name].values()

    def rows_of(self, place: int) -> Ints:
        """Read only the rows of one rank."""
        put: Mapping[str, SpilledArray] = self._put
        return put["rows"].row(place)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks and of calls, without reading the arrays."""
        put: Mapping[str, SpilledArray] = self._put
        return put["rows"].shape


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """The paired calls; `unmatched` counts the recorded calls that could not be paired, on each rank."""

    blocks: tuple[MatchedCalls, ...] = ()
    uneven: tuple[MatchedCalls, ...] = ()
    """Matched calls of uneven all-to-all, whose transfer time is not known."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()

    def put_aside(self, aside: SpillStore) -> "Matching":
        """Return the same calls with their arrays on disk; blocks that are there already are kept."""
        blocks, uneven = (
            tuple(each if isinstance(each, _PutMatched) else each.put_aside(aside) for each in kind)
            for kind in (self.blocks, self.uneven)
        )
        return replace(self, blocks=blocks, uneven=uneven)


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


def block_bounds(blocks: Sequence[MatchedCalls]) -> Ints:
    """Return the first column of each block in their concatenation, and the end of the last one."""
    return np.concatenate([[0], np.cumsum([block.calls for block in blocks])])
