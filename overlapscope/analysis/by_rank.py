"""Values of ranks that are made when they are asked for: those of all ranks of a large run are more than fit."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

V = TypeVar("V")


class EachRank(Mapping[int, V]):
    """A value for each of `ranks`, made anew each time it is asked for."""

    def __init__(self, ranks: Collection[int], make: Callable[[int], V]) -> None:
        self._ranks, self._make = ranks, make

    def __getitem__(self, rank: int) -> V:
        """Make the value of a rank."""
        if rank not in self._ranks:
            raise KeyError(rank)
        return self._make(rank)

    def __iter__(self) -> Iterator[int]:
        """Return the ranks."""
        return iter(self._ranks)

    def __len__(self) -> int:
        """Return how many ranks there are."""
        return len(self._ranks)
