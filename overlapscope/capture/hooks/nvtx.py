"""NVTX ranges for Nsight Systems: steps, phases, collectives and regions, where there is CUDA; else nothing at all.

Names are `overlapscope.step#N` (as the step's mark in a trace), `overlapscope.forward`, `.backward`, `.optimizer`,
`overlapscope.all_reduce#K` for the K-th collective of its step (with DistributedDataParallel: its buckets in the order
they are sent) and `overlapscope.NAME` for a region. A collective's range is around its call, on the thread that calls:
Nsight Systems finds its kernels by it.
"""

import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from overlapscope.capture.lifecycle.guard import Guard

PREFIX: Final = "overlapscope."


class Ranges:
    """Pushes and pops ranges on the calling thread, each thread's own balanced whatever is raised between."""

    def __init__(self, nvtx: Any, guard: Guard) -> None:
        self._push, self._pop, self._guard = nvtx.range_push, nvtx.range_pop, guard
        self._threads = threading.local()
        self._calls = count()

    def begin_step(self, number: int) -> None:
        """Begin a step, and count its collectives from 0."""
        self._calls = count()
        self.begin(f"step#{number}")

    def end_step(self, number: int) -> None:
        """End a step, with what it left open."""
        self.end(f"step#{number}")

    def begin(self, name: str) -> None:
        """Begin a range inside those that are open on this thread."""
        self._push(PREFIX + name)
        self._open().append(name)

    def end(self, name: str) -> None:
        """End the range and those left open inside it, as by an exception; does nothing where it is not open."""
        open_ranges = self._open()
        if name not in open_ranges:
            return
        while open_ranges:
            self._pop()
            if open_ranges.pop() == name:
                return

    def around(self, op: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operation with a range around each call."""

        def ranged(*args: Any) -> Any:
            name = f"{op}#{next(self._calls)}"
            self._guard("beginning an NVTX range", self.begin, name)
            try:
                return operation(*args)
            finally:
                self._guard("ending an NVTX range", self.end, name)

        return ranged

    def _open(self) -> list[str]:
        open_ranges: list[str] | None = getattr(self._threads, "open", None)
        if open_ranges is None:
            open_ranges = self._threads.open = []
        return open_ranges


def ranges(guard: Guard) -> Ranges | None:
    """Return the ranges of this process; None without CUDA, decided once for a recording."""
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return Ranges(torch.cuda.nvtx, guard)
