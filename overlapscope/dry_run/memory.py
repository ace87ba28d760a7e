"""Account for the memory of a step: every storage from when it is first seen until nothing holds it any more."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

PARAMETER, GRADIENT, OPTIMIZER_STATE, ACTIVATION, GATHERED, OTHER = (
    "parameters", "gradients", "optimizer_state", "activations", "gathered_parameters", "other"
)  # fmt: skip
KINDS: Final = (PARAMETER, GRADIENT, OPTIMIZER_STATE, ACTIVATION, GATHERED, OTHER)
HOST: Final = "host"
"""What loaders make, and copies for the host: no memory of the device."""


class _Held(msgspec.Struct):
    """One storage that is alive."""

    number: int
    size_bytes: int
    kind: str
    reference: Any


class Memory:
    """Bytes in use, by kind, and their peak. A storage counts as what it was first used for; one of the host counts
    once the device uses it.

    Sizes are those of storages, without an allocator's rounding and fragments.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak: dict[str, int] = {}
        self.peak_order = -1
        self.by_kind: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.made = 0
        self._held: dict[int, _Held] = {}

    def number(self, tensor: Any, kind: str = OTHER) -> int:
        """Return the number of a tensor's storage, which counts as `kind` if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self._held.get(key)
        if held is None:
            self.made += 1
            reference = weakref.ref(storage, partial(self._freed, key))
            held = self._held[key] = _Held(self.made, 0, kind, reference)
            self._resize(held, int(storage.nbytes()))
        elif held.kind == HOST:
            self._move(held, kind)
        return held.number

    def is_host(self, tensor: Any) -> bool:
        """Return whether a tensor is one of the host."""
        held = self._held.get(tensor.untyped_storage()._cdata)
        return held is not None and held.kind == HOST

    def classify(self, tensor: Any, kind: str) -> None:
        """Let a tensor's storage count as `kind` from now on."""
        self.number(tensor, kind)
        self._move(self._held[tensor.untyped_storage()._cdata], kind)

    def resized(self, storage: Any) -> None:
        """Note that a storage has another size: so FSDP2 frees and allocates what it gathers."""
        held = self._held.get(storage._cdata)
        if held is not None:
            self._resize(held, int(storage.nbytes()))
            self._move(held, GATHERED)

    def note_peak(self, order: int) -> None:
        """Keep what is in use if it is more than ever before."""
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak, self.peak_order = self.live_bytes, dict(self.by_kind), order

    def restart_peak(self) -> None:
        """Forget the peak so far."""
        self.peak_bytes, self.peak, self.peak_order = self.live_bytes, dict(self.by_kind), -1

    def numbers(self) -> frozenset[int]:
        """Return the numbers of the storages that are alive."""
        return frozenset(held.number for held in self._held.values())

    def _move(self, held: _Held, kind: str) -> None:
        self._count(held.kind, -held.size_bytes)
        self._count(kind, held.size_bytes)
        held.kind = kind

    def _resize(self, held: _Held, size_bytes: int) -> None:
        self._count(held.kind, size_bytes - held.size_bytes)
        held.size_bytes = size_bytes

    def _count(self, kind: str, size_bytes: int) -> None:
        if kind != HOST:
            self.live_bytes += size_bytes
            self.by_kind[kind] += size_bytes

    def _freed(self, key: int, reference: Any) -> None:
        held = self._held.get(key)
        if held is not None and held.reference is reference:
            self._resize(held, 0)
            del self._held[key]


def following_resizes(memory: Memory) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what stands around `UntypedStorage.resize_`, so that the memory follows."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def resize(storage: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(storage, *args, **kwargs)
            memory.resized(storage)
            return result

        return resize

    return around
