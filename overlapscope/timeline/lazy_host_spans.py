"""Host spans that are made, or read from a file, when they are first used: a large table that few questions need."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import FUNCTION, Flags, HostSpans, Ints, column_kinds, take
from overlapscope.timeline.rows import is_one_of

Times = Sequence[tuple[int, int]]


class HostSource(Protocol):
    """Where host spans come from; both methods may raise InputError."""

    def __call__(self) -> HostSpans:
        """Return all of them."""

    def select(self, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None) -> HostSpans:
        """Return those of some kinds, of the name codes that are flagged, around one of some times."""


class LazyHostSpans(HostSpans, frozen=True, kw_only=True, dict=True):
    """Host spans of which the columns are asked from a source when one is accessed; it may raise InputError.

    `error` is the last HostEventsError that it raised, None without one: what goes on without the table says so.

    `msgspec.structs.replace` needs a plain table: `at_hand()`.
    """

    __repr__ = object.__repr__  # shows no table

    @classmethod
    def of(cls, source: HostSource) -> "LazyHostSpans":
        """Return the table of a source, which is asked at each access."""
        columns: dict[str, Any] = dict.fromkeys(column_kinds(HostSpans))
        found = cls(**columns)
        for name in columns:
            getattr(cls, name).__delete__(found)  # unset, so that `__getattr__` is called
        vars(found).update(source=source, error=None)
        return found

    def __getattr__(self, name: str) -> Any:
        """Return a column."""
        if name not in column_kinds(HostSpans):
            raise AttributeError(name)
        return getattr(self.at_hand(), name)

    def __reduce__(self) -> Any:
        """Return how to copy it, in memory or to another process: as its source."""
        return LazyHostSpans.of, (self.source,)

    def at_hand(self) -> HostSpans:
        """Return the plain table."""
        source: HostSource = self.source
        return self._asked(source)

    def select(self, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None) -> HostSpans:
        """Return rows as `select_host_spans` does."""
        source: HostSource = self.source
        return self._asked(lambda: source.select(kinds, names, around))

    def fail(self, error: HostEventsError) -> None:
        """State that another process could not read them."""
        vars(self)["error"] = error

    def _asked(self, read: Callable[[], HostSpans]) -> HostSpans:
        try:
            return read()
        except HostEventsError as error:
            self.fail(error)
            raise


class MadeOnce:
    """Host spans that are made of another source when all of them are asked for; it is then let go."""

    __slots__ = ("_source",)

    def __init__(self, source: HostSpans | HostSource) -> None:
        self._source = source

    def __call__(self) -> HostSpans:
        """Return the table."""
        if not isinstance(self._source, HostSpans):
            self._source = self._source()
        return self._source

    def select(self, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None) -> HostSpans:
        """Return rows as `select_host_spans` does; the rest is not made for it."""
        source = self._source
        if isinstance(source, HostSpans):
            return select_host_spans(source, kinds, names, around)
        return source.select(kinds, names, around)


def select_host_spans(
    host: HostSpans, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None
) -> HostSpans:
    """Return the rows of some kinds, in order; with `names`, only those of the name codes that are flagged, and with
    `around` (begin and end of each) only those in which one of these times lies."""
    if isinstance(host, LazyHostSpans):
        return host.select(kinds, names, around)
    chosen = chosen_spans(host.kind, host.name, kinds, names)
    return take(host, chosen if around is None else chosen & lie_around(host.start_ns, host.end_ns, around))


def without_functions(host: HostSpans) -> HostSpans:
    """Return all host spans but functions of Python stacks: figures must not depend on whether these were read."""
    functions = host.kind == FUNCTION
    return take(host, ~functions) if functions.any() else host


def chosen_spans(kind: Any, name: Any, kinds: Sequence[int], names: Flags | None) -> Flags:
    """Return which spans are of some kinds, and of the name codes that are flagged; every span has a name."""
    chosen = is_one_of(kind, kinds)
    if names is not None and chosen.any():
        chosen &= names[name]
    return chosen


def lie_around(start_ns: Ints, end_ns: Ints, times: Times) -> Flags:
    """Return in which spans one of some times lies."""
    found = np.zeros(start_ns.size, np.bool_)
    for begin, end in times:
        found |= (start_ns <= begin) & (end_ns >= end)
    return found
