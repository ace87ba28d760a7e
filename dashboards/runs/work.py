"""Work that may take a while is done beside the request that asked for it, which is answered at once."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from threading import Condition, Thread
from time import monotonic
from typing import Final, Generic, TypeVar

import msgspec

MAX_AT_ONCE: Final = 64
"""Pieces of work that are done at the same time ..."""
MAX_OF_ONE: Final = 4
"""... and how many of them for one page, however many addresses it has. Who asks for more waits for a place."""
MAX_KEPT: Final = 32
"""Pieces that are done, and that nobody has come back for."""
FORGOTTEN_S: Final = 15.0
"""After how long what nobody came back for is made anew."""
T = TypeVar("T")


class _Piece(msgspec.Struct, Generic[T], kw_only=True, eq=False):
    """One piece of work, what it is for, and when it was last asked for."""

    of: Hashable
    asked_s: float
    future: "Future[T]" = msgspec.field(default_factory=Future)


class Work(Generic[T]):
    """Pieces of work by what they are for. Their threads are daemons: who ends the server does not wait for them."""

    def __init__(self) -> None:
        self._pieces: dict[Hashable, _Piece[T]] = {}
        self._free = Condition()

    def fetch(self, key: Hashable, make: Callable[[], T], patience_s: float, *, of: Hashable = None) -> T | None:
        """Return what `make` gives, or None where that takes longer than `patience_s`: then ask again.

        Raises what `make` raises. Who asks for the same while it is made gets the same. `of` is the page it is for: one
        whose run takes long to read leaves places for the others.
        """
        until = monotonic() + patience_s
        piece = self._begun(key, make, of, until)
        if piece is None or not wait([piece.future], max(until - monotonic(), 0)).done:
            return None
        with self._free:
            if self._pieces.get(key) is piece:  # else it was taken, and may be under way anew for somebody else
                del self._pieces[key]
        return piece.future.result()

    def _begun(self, key: Hashable, make: Callable[[], T], of: Hashable, until: float) -> _Piece[T] | None:
        with self._free:
            self._forget()
            while key not in self._pieces and not self._has_place(of):
                if not self._free.wait(max(until - monotonic(), 0)):
                    return None
            if key in self._pieces:
                self._pieces[key].asked_s = monotonic()
                return self._pieces[key]
            piece = _Piece[T](of=of, asked_s=monotonic())
            Thread(target=self._make, args=(piece, make), daemon=True).start()
            self._pieces[key] = piece
            return piece

    def _has_place(self, of: Hashable) -> bool:
        under_way = [each.of for each in self._pieces.values() if not each.future.done()]
        return len(under_way) < MAX_AT_ONCE and under_way.count(of) < MAX_OF_ONE

    def _forget(self) -> None:
        done = {key: each for key, each in self._pieces.items() if each.future.done()}
        oldest_first = sorted(done, key=lambda key: done[key].asked_s)
        for key in oldest_first:
            if len(done) > MAX_KEPT or monotonic() - done[key].asked_s > FORGOTTEN_S:
                del done[key], self._pieces[key]

    def _make(self, piece: _Piece[T], make: Callable[[], T]) -> None:
        try:
            piece.future.set_result(make())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where the result is fetched
            piece.future.set_exception(error)
        with self._free:
            self._free.notify_all()
