"""Compiled code: record replays of CUDA graphs, and keep torch's compiler out of our own functions.

What runs inside a replayed CUDA graph cannot be marked, so a step that replays one is recorded as cut.

If the compiler traced our functions, it would split the user's graphs and compile them anew. A hook inside a compiled
region is traced with it and has to check `torch.compiler.is_compiling()` first: the compiler knows the answer while it
traces, and nothing of the hook is left in the graph. All our other functions run between graphs, where the compiler
examines every frame unless `leave_untraced` excludes it.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import CodeType, FunctionType
from typing import Any

from overlapscope.capture.records import StepRecord

PACKAGE = "overlapscope.capture"


class GraphWatch:
    """While open, records each replay in the step record that `current()` returns, and marks that record as cut.

    A replayed graph's collectives do not pass the dispatcher: the step's communication would be missing.
    """

    def __init__(self, current: Callable[[], StepRecord | None]) -> None:
        self._current = current
        self._undo = ExitStack()

    def open(self) -> None:
        """Patch `torch.cuda.CUDAGraph.replay`, which torch and its compiler call to replay a graph."""
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
        self._undo.callback(setattr, graph, "replay", original)

    def close(self) -> None:
        """Remove the patch."""
        self._undo.close()


def leave_untraced() -> None:
    """Make torch's compiler, if it is loaded, skip the frames of this package; inlining is not affected."""
    if "torch._dynamo" not in sys.modules:
        return
    # All versions have it here, wherever they define it (torch._C in 2.4, torch._dynamo.eval_frame in 2.13).
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
