"""Replayed CUDA graphs: what runs in them cannot be marked, so the step that replays one is not whole."""

import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from overlapscope.capture.records import StepRecord

PACKAGE = "overlapscope.capture"


class GraphWatch:
    """While open, notes each replay in the record that `current()` gives, and marks that record as cut.

    A graph's collectives pass no dispatcher when it is replayed: the step's communication would be missing.
    """

    def __init__(self, current: Callable[[], StepRecord | None]) -> None:
        self._current = current
        self._undo: Callable[[], None] | None = None

    def open(self) -> None:
        """Stand before `torch.cuda.CUDAGraph.replay`, through which torch and its compiler replay."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        graph = torch.cuda.CUDAGraph
        original, current = graph.replay, self._current

        def replay(*args: Any, **kwargs: Any) -> Any:
            record = current()
            if record is not None:
                record.cut = True
                record.readings.append(("graph_replays", time.monotonic_ns(), 1.0))
            return original(*args, **kwargs)

        graph.replay = replay
        self._undo = lambda: setattr(graph, "replay", original)

    def close(self) -> None:
        """Step aside."""
        if self._undo is not None:
            self._undo()
            self._undo = None


def leave_untraced() -> None:
    """Make the compiler skip the frames of this package, where it has been loaded; inlining is not affected."""
    if "torch._dynamo" not in sys.modules:
        return
    # Where all versions have it, wherever they define it (torch._C in 2.4, torch._dynamo.eval_frame in 2.13).
    from torch._dynamo.convert_frame import skip_code  # noqa: PLC0415 - capture is the one room that uses torch

    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            for code in _codes(vars(module), name):
                skip_code(code)


def _codes(members: dict[str, Any], module: str) -> Iterator[CodeType]:
    """Yield the code of the functions that a module or class defines, and of those inside them."""
    for value in list(members.values()):
        inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "__wrapped__", value)))
        if isinstance(inner, FunctionType) and inner.__module__ == module:
            yield from _nested(inner.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(dict(vars(value)), module)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
