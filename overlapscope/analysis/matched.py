"""What matching finds: the same call on all ranks that made it together, kind by kind."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.aside import Aside, Put
from overlapscope.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
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
        """Give the rows of the calls of one of the ranks, by its place among them."""
        found: npt.NDArray[np.int64] = self.rows[place]
        return found

    def put_aside(self, aside: Aside) -> "Matched":
        """Give the same calls, their arrays put aside: each is read when it is asked for."""
        return _PutMatched.of(self, aside)


_ARRAYS: Final = ("rows", "start_ns", "end_ns")


class _PutMatched(Matched):
    """Matched calls whose arrays were put aside. A copy, also one with other values, holds its own."""

    __slots__ = ("_put",)

    def __new__(cls, **values: Any) -> Any:
        """Give what copies are."""
        return Matched(**values)

    @classmethod
    def of(cls, plain: Matched, aside: Aside) -> "_PutMatched":
        """Put the arrays aside."""
        found = object.__new__(cls)
        for name in Matched.__dataclass_fields__:
            if name not in _ARRAYS:
                object.__setattr__(found, name, getattr(plain, name))
        object.__setattr__(found, "_put", {name: aside.put(getattr(plain, name)) for name in _ARRAYS})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """What could be paired; `unmatched` counts the recorded calls that were not, one for each rank."""

    blocks: tuple[Matched, ...] = ()
    uneven: tuple[Matched, ...] = ()
    """Matched calls of uneven all-to-all, which tell no transfer."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()

    def put_aside(self, aside: Aside) -> "Matching":
        """Give the same calls, put aside; those that were put aside already stay where they are."""
        blocks, uneven = (
            tuple(each if isinstance(each, _PutMatched) else each.put_aside(aside) for each in kind)
            for kind in (self.blocks, self.uneven)
        )
        return replace(self, blocks=blocks, uneven=uneven)
