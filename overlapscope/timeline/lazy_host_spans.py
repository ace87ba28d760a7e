"""Host spans that are made, or read from a file, when they are first used: a large table that few questions need."""

from collections.abc import Callable
from typing import Any

from overlapscope.timeline.columns import HostSpans, column_kinds


class LazyHostSpans(HostSpans, frozen=True, kw_only=True, dict=True):
    """Host spans of which the columns are asked from a function when one is accessed; it may raise InputError.

    `msgspec.structs.replace` needs a plain table: `at_hand()`.
    """

    __repr__ = object.__repr__  # shows no table

    @classmethod
    def of(cls, load: Callable[[], HostSpans]) -> "LazyHostSpans":
        """Return the table that `load` returns; it is called at each access."""
        columns: dict[str, Any] = dict.fromkeys(column_kinds(HostSpans))
        found = cls(**columns)
        for name in columns:
            getattr(cls, name).__delete__(found)  # unset, so that `__getattr__` is called
        vars(found)["_load"] = load
        return found

    def __getattr__(self, name: str) -> Any:
        """Return a column."""
        if name not in column_kinds(HostSpans):
            raise AttributeError(name)
        return getattr(self.at_hand(), name)

    def __reduce__(self) -> Any:
        """Return how to copy it, in memory or to another process: as its function."""
        return LazyHostSpans.of, (self._load,)

    def at_hand(self) -> HostSpans:
        """Return the plain table."""
        load: Callable[[], HostSpans] = self._load
        return load()


class MadeOnce:
    """Returns what a function returns at the first call; the function, with what it needs, is then let go."""

    __slots__ = ("_given",)

    def __init__(self, given: HostSpans | Callable[[], HostSpans]) -> None:
        self._given = given

    def __call__(self) -> HostSpans:
        """Return the table."""
        given = self._given
        if not isinstance(given, HostSpans):
            given = self._given = given()
        return given
