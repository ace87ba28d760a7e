"""Replace a function of torch, for a while and again and again, without harm to what other tools replace."""

from collections.abc import Callable
from typing import Any


class Patch:
    """While open, `around(original)` stands in the place of a function.

    Where another tool has replaced it since, ours stays below that one after closing, and counts as open again the next
    time: it must do nothing but call the original while nothing is recorded.
    """

    def __init__(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name, self._around = owner, name, around
        self._original: Any = None
        self._ours: Any = None

    def open(self) -> None:
        """Put ours in place, unless it is still there."""
        if self._ours is None:
            self._original = getattr(self._owner, self._name)
            self._ours = self._around(self._original)
            setattr(self._owner, self._name, self._ours)

    def close(self) -> None:
        """Put the original back, unless something else stands there by now."""
        if self._ours is not None and getattr(self._owner, self._name) is self._ours:
            setattr(self._owner, self._name, self._original)
            self._ours = None
