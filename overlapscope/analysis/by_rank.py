"""A mapping from rank to a value that is computed at each access.

The values of all ranks of a large run do not fit into memory at once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

V = TypeVar("V")


class LazyByRank(Mapping[int, V]):
    """A value for each of `ranks`, computed anew at each access."""

    def __init__(self, ranks: Collection[int], make: Callable[[int], V]) -> None:
        self._ranks, self._make = ranks, make

    def __getitem__(self, rank: int) -> V:
        """Compute the value of a rank. Raises KeyError for a rank that is not among `ranks`."""
        if rank not in self._ranks:
            raise KeyError(rank)
        return self._make(rank)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ranks."""
        return iter(self._ranks)

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._ranks)
