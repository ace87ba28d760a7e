"""Work that may take a while is done beside the request that asked for it, which is answered at once."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final, Generic, TypeVar

MAX_AT_ONCE: Final = 16
"""Pieces of work that are done at the same time; who asks for more is told to ask again."""
FORGOTTEN_S: Final = 15.0
"""After how long what nobody came back for is made anew."""
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _Piece(Generic[T]):
    """One piece of work, and when it was last asked for."""

    future: "Future[T]" = field(default_factory=Future)
    asked_s: float

    def is_forgotten(self, now_s: float) -> bool:
        return self.future.done() and now_s - self.asked_s > FORGOTTEN_S


class Work(Generic[T]):
    """Pieces of work by what they are for. Their threads are daemons: who ends the server does not wait for them."""

    def __init__(self) -> None:
        self._pieces: dict[Hashable, _Piece[T]] = {}
        self._lock = Lock()

    def fetch(self, key: Hashable, make: Callable[[], T], patience_s: float) -> T | None:
        """Give what `make` gives, or None where that takes longer than `patience_s`: then ask again.

        Raises what `make` raises. Who asks for the same while it is made gets the same.
        """
        future = self._begun(key, make)
        if future is None:
            return None
        try:
            return future.result(timeout=patience_s)
        except TimeoutError:
            if future.done():
                raise
            return None
        finally:
            if future.done():
                with self._lock:
                    self._pieces.pop(key, None)

    def _begun(self, key: Hashable, make: Callable[[], T]) -> "Future[T] | None":
        now = monotonic()
        with self._lock:
            self._pieces = {name: each for name, each in self._pieces.items() if not each.is_forgotten(now)}
            if key in self._pieces:
                self._pieces[key].asked_s = now
                return self._pieces[key].future
            if len(self._pieces) >= MAX_AT_ONCE:
                return None
            piece = self._pieces[key] = _Piece[T](asked_s=now)
        Thread(target=_make, args=(piece.future, make), daemon=True).start()
        return piece.future


def _make(future: "Future[Any]", make: Callable[[], Any]) -> None:
    try:
        future.set_result(make())
    except BaseException as error:  # whatever it is, it is raised where the result is fetched
        future.set_exception(error)
