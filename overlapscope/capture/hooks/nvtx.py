"""NVTX ranges for Nsight Systems: steps, phases, collectives and regions; only in a process that uses CUDA.

Names are `overlapscope.step#N` (the same as the step's mark in a trace), `overlapscope.forward`, `.backward`,
`.optimizer`, `overlapscope.all_reduce#K` for the K-th collective of its step (with DistributedDataParallel: its buckets
in the order in which they are sent) and `overlapscope.NAME` for a region. A collective's range surrounds its call on
the calling thread: Nsight Systems assigns the kernels to it.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from overlapscope.capture.lifecycle.guard import Guard

PREFIX: Final = "overlapscope."


class NvtxRanges:
    """Ranges of the process for steps, phases and regions, and of the calling thread for calls.

    A phase may begin inside a range of the user's own and end outside it: pushed and popped, each would end the other.
    Only a call surely ends inside what it began in. Whatever is raised, no range stays open after its step.
    """

    def __init__(self, nvtx: Any, guard: Guard) -> None:
        self._nvtx, self._guard = nvtx, guard
        self._open: list[tuple[str, int]] = []
        """(name, handle) of the open ranges, the latest last."""
        self._calls = count()

    def begin_step(self, number: int) -> None:
        """Begin a step, and count its collectives from 0."""
        self._calls = count()
        self.begin(f"step#{number}")

    def end_step(self, number: int) -> None:
        """End a step, and the ranges that it left open."""
        self.end(f"step#{number}")

    def begin(self, name: str) -> None:
        """Begin a range."""
        self._open.append((name, self._nvtx.range_start(PREFIX + name)))

    def end(self, name: str) -> None:
        """End a range and those begun after it, left open for example by an exception; nothing if it is not open."""
        if all(each != name for each, _ in self._open):
            return
        while self._open:
            ended, handle = self._open.pop()
            self._nvtx.range_end(handle)
            if ended == name:
                return

    def wrap(self, op: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operation wrapped so that each call is inside a range of its thread."""

        def ranged(*args: Any) -> Any:
            name = f"{PREFIX}{op}#{next(self._calls)}"
            pushed = self._guard("beginning an NVTX range", self._nvtx.range_push, name)
            try:
                return operation(*args)
            finally:
                if pushed is not None:
                    self._guard("ending an NVTX range", self._nvtx.range_pop)

        return ranged


def ranges(guard: Guard) -> NvtxRanges | None:
    """Return the ranges of this process; None without CUDA. Decided once per recording."""
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return NvtxRanges(torch.cuda.nvtx, guard)
