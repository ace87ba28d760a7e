"""NVTX ranges for Nsight Systems: steps, phases, collectives and regions; only in a process that uses CUDA.

Names are `overlapscope.step#N` (the same as the step's mark in a trace), `overlapscope.forward`, `.backward`,
`.optimizer`, `overlapscope.all_reduce#K` for the K-th collective of its step (with DistributedDataParallel: its buckets
in the order in which they are sent) and `overlapscope.NAME` for a region. A collective's range surrounds its call on
the calling thread: Nsight Systems assigns the kernels to it.
"""

import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from overlapscope.capture.lifecycle.guard import Guard

PREFIX: Final = "overlapscope."


class NvtxRanges:
    """Pushes and pops ranges on the calling thread; each thread's ranges stay balanced when an exception is raised."""

    def __init__(self, nvtx: Any, guard: Guard) -> None:
        self._push, self._pop, self._guard = nvtx.range_push, nvtx.range_pop, guard
        self._threads = threading.local()
        self._calls = count()

    def begin_step(self, number: int) -> None:
        """Begin a step, and count its collectives from 0."""
        self._calls = count()
        self.begin(f"step#{number}")

    def end_step(self, number: int) -> None:
        """End a step, and the ranges that it left open."""
        self.end(f"step#{number}")

    def begin(self, name: str) -> None:
        """Begin a range inside the open ranges of this thread."""
        self._push(PREFIX + name)
        self._open().append(name)

    def end(self, name: str) -> None:
        """End a range and those left open inside it, for example by an exception; do nothing if it is not open."""
        open_ranges = self._open()
        if name not in open_ranges:
            return
        while open_ranges:
            self._pop()
            if open_ranges.pop() == name:
                return

    def wrap(self, op: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operation wrapped so that each call is inside a range."""

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


def ranges(guard: Guard) -> NvtxRanges | None:
    """Return the ranges of this process; None without CUDA. Decided once per recording."""
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return NvtxRanges(torch.cuda.nvtx, guard)
