"""Host spans that are made, or read from a file, when they are first used: a large table that few questions need."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from overlapscope.timeline.columns import Flags, HostSpans, column_kinds, take


class HostSource(Protocol):
    """Where host spans come from; both methods may raise InputError."""

    def __call__(self) -> HostSpans:
        """Return all of them."""

    def select(self, kinds: Sequence[int], names: Flags | None = None) -> HostSpans:
        """Return those of some kinds, and of the name codes that are flagged."""


class LazyHostSpans(HostSpans, frozen=True, kw_only=True, dict=True):
    """Host spans of which the columns are asked from a source when one is accessed; it may raise InputError.

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
        vars(found)["source"] = source
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
        return source()


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

    def select(self, kinds: Sequence[int], names: Flags | None = None) -> HostSpans:
        """Return rows as `select_host_spans` does; the rest is not made for it."""
        source = self._source
        return select_host_spans(source, kinds, names) if isinstance(source, HostSpans) else source.select(kinds, names)


def select_host_spans(host: HostSpans, kinds: Sequence[int], names: Flags | None = None) -> HostSpans:
    """Return the rows of some kinds, in order; with `names`, only those of the name codes that are flagged."""
    if isinstance(host, LazyHostSpans):
        source: HostSource = host.source
        return source.select(kinds, names)
    return take(host, chosen_spans(host.kind, host.name, kinds, names))


def chosen_spans(kind: Any, name: Any, kinds: Sequence[int], names: Flags | None) -> Flags:
    """Return which spans are of some kinds, and of the name codes that are flagged; every span has a name."""
    chosen: Flags = np.isin(kind, kinds)
    if names is not None and chosen.any():
        chosen &= names[name]
    return chosen
