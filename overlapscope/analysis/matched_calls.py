"""What matching finds: the same call on all ranks that made it together, kind by kind."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.files.spill import Aside, Put, without_fields
from overlapscope.timeline.columns import Ints

_ARRAYS: Final = ("rows", "start_ns", "end_ns")


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls of one kind: row i of each array is `ranks[i]`, column k the k-th call."""

    group: str | None
    op: str
    dtype: str | None
    bytes: int | None
    ranks: tuple[int, ...]
    rows: npt.NDArray[np.int64]
    """Row of the call in the rank's `Collectives`."""
    start_ns: npt.NDArray[np.int64]
    """On the rank's own clock, as the ends."""
    end_ns: npt.NDArray[np.int64]
    by_order: bool
    """Paired by order within its kind, for want of sequence numbers."""
    whole: bool
    """Every member of the group was recorded."""
    even: bool = True
    """All ranks move as much. Of uneven ones waiting cannot be split off, nor do they end together; `bytes` is None."""

    @property
    def calls(self) -> int:
        """How many calls."""
        return int(self.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks and calls."""
        return self.rows.shape

    def rows_of(self, place: int) -> npt.NDArray[np.int64]:
        """Return the rows of the calls of one of the ranks, by its place among them."""
        found: npt.NDArray[np.int64] = self.rows[place]
        return found

    def put_aside(self, aside: Aside) -> "Matched":
        """Return the same calls, their arrays put aside: each is read when it is asked for."""
        return _PutMatched.of(self, aside)

    def with_values(self, **changed: Any) -> "Matched":
        """Return a copy with other values, which holds its arrays itself."""
        kept = {name: getattr(self, name) for name in self.__struct_fields__ if name not in changed}
        return Matched(**kept, **changed)


class _PutMatched(Matched, frozen=True, kw_only=True, dict=True):
    """Matched calls whose arrays were put aside."""

    __repr__ = object.__repr__  # shows no array

    @classmethod
    def of(cls, plain: Matched, aside: Aside) -> "_PutMatched":
        """Put the arrays aside."""
        values = {name: getattr(plain, name) for name in plain.__struct_fields__ if name not in _ARRAYS}
        found = without_fields(cls, _ARRAYS, **values)
        vars(found)["_put"] = {name: aside.put(getattr(plain, name)) for name in _ARRAYS}
        return found

    def __getattr__(self, name: str) -> Any:
        """Read an array."""
        if name not in _ARRAYS:
            raise AttributeError(name)
        put: Mapping[str, Put] = self._put
        return put[name].values()

    def rows_of(self, place: int) -> npt.NDArray[np.int64]:
        """Read the rows of one of the ranks alone."""
        put: Mapping[str, Put] = self._put
        return put["rows"].row(place)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks and calls, without reading them."""
        put: Mapping[str, Put] = self._put
        return put["rows"].shape


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """What could be paired; `unmatched` counts the recorded calls that were not, one for each rank."""

    blocks: tuple[Matched, ...] = ()
    uneven: tuple[Matched, ...] = ()
    """Matched calls of uneven all-to-all, which tell no transfer."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()

    def put_aside(self, aside: Aside) -> "Matching":
        """Return the same calls, put aside; those that were put aside already stay where they are."""
        blocks, uneven = (
            tuple(each if isinstance(each, _PutMatched) else each.put_aside(aside) for each in kind)
            for kind in (self.blocks, self.uneven)
        )
        return replace(self, blocks=blocks, uneven=uneven)


def by_ranks(blocks: Sequence[Matched]) -> dict[tuple[int, ...], list[int]]:
    """Return the places of the blocks of each set of ranks, in the order of the first."""
    found: dict[tuple[int, ...], list[int]] = {}
    for at, block in enumerate(blocks):
        found.setdefault(block.ranks, []).append(at)
    return found


def side_by_side(tables: Sequence[Ints]) -> Ints:
    """Put tables of the same rows beside each other."""
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def bounds(blocks: Sequence[Matched]) -> npt.NDArray[np.int64]:
    """Return where each block begins when they stand beside each other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([block.calls for block in blocks])])
