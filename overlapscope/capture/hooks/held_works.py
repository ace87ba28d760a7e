"""Keep the `Work` of transfers on a device's own streams until the backend says how long they took.

The end of an NCCL collective lies on a stream that only the backend sees. A callback on its future would take a stream
of torch's pool, make it wait for the collective, and keep the outputs' memory from being used again (`addCallback` in
ATen/core/ivalue_inl.h). So nothing waits: once `is_completed()` says so, `_get_duration()` returns the time between the
backend's own two events.

A Work keeps its outputs alive. DDP's buckets live anyway; of others at most HELD_BYTES are kept, and the oldest are
given up.
"""

from itertools import islice
from typing import Any, Final

import msgspec

from overlapscope.capture.records import Transfer

HELD_BYTES: Final = 256 << 20
"""Most bytes of outputs that are kept from being freed, but for buffers that the job keeps itself."""
MAX_WORKS: Final = 1000
ASKED: Final = 4
"""How many of the oldest are asked at once: transfers of several groups end in any order."""


class _Held(msgspec.Struct):
    work: Any
    transfer: Transfer
    size_bytes: int


class HeldWorks:
    """Works under way, by the `id()` of their Python object, which is unique as long as the object is kept."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._bytes = 0

    def hold(self, work: Any, transfer: Transfer, size_bytes: int) -> None:
        """Keep a work; `size_bytes` is what of its outputs the job itself may free earlier."""
        self._held[id(work)] = _Held(work, transfer, size_bytes)
        self._bytes += size_bytes
        while self._bytes > HELD_BYTES or len(self._held) > MAX_WORKS:
            self.drop(next(iter(self._held)))

    def drop(self, key: int) -> None:
        """Remove a work, if it is held."""
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= held.size_bytes

    def transfer(self, key: int) -> Transfer | None:
        """Return the transfer of a work by its `id()`."""
        held = self._held.get(key)
        return held.transfer if held is not None else None

    def holds(self, transfer: Transfer) -> bool:
        """Return whether a transfer is under way on a device's own stream."""
        return any(each.transfer is transfer for each in self._held.values())

    def clear(self) -> None:
        """Remove all works."""
        self._held.clear()
        self._bytes = 0

    def forget_host(self) -> None:
        """Remove transfers on the host that the job never waited for."""
        for key in [key for key, held in self._held.items() if held.transfer.on_host]:
            self.drop(key)

    def read(self) -> bool:
        """Read the durations of those that are done; return whether none is left.

        Asks events: call it on the training thread, and not while a CUDA graph is captured.
        """
        for key, held in list(islice(self._held.items(), ASKED)):
            if held.transfer.on_host or not held.work.is_completed():
                continue
            self.drop(key)
            try:
                held.transfer.duration_ns = round(held.work._get_duration() * 1e6)
            except RuntimeError:
                held.transfer.duration_ns = None  # this backend measures nothing
        return all(held.transfer.on_host for held in self._held.values())
