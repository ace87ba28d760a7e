"""A small thread-safe cache of the most recently used values."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentCache(Generic[T]):
    """At most `most` values by key; the least recently used one is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key; None without one."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, key: Hashable, make: Callable[[], T], keeps: Callable[[T], bool] = lambda made: True) -> T:
        """Return the value of a key, computed by `make` if missing; two concurrent callers may both compute it.

        What `keeps` refuses is not kept.
        """
        kept = self.find(key)
        if kept is not None:
            return kept
        made = make()
        if not keeps(made):
            return made
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made
