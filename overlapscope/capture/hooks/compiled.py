"""Compiled code: record replays of CUDA graphs, and keep torch's compiler out of our own functions.

What runs inside a replayed CUDA graph cannot be marked, so a step that replays one with collectives is recorded as cut.

If the compiler traced our functions, it would split the user's graphs and compile them anew. A hook inside a compiled
region is traced with it and has to check `torch.compiler.is_compiling()` first: the compiler knows the answer while it
traces, and nothing of the hook is left in the graph. All our other functions run between graphs, where the compiler
examines every frame unless `leave_untraced` excludes it.
"""

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import CodeType, FunctionType
from typing import Any

from overlapscope.capture.records import StepRecord

PACKAGE = "overlapscope.capture"


class GraphWatch:
    """While open, records each replay in the step record that `current()` returns, and which captures communicate.

    A replayed graph's collectives do not pass the dispatcher: the communication of a step that replays one would be
    missing, so the step is cut. A graph without collectives, as torch.compile and Megatron make them of layers, is
    computation like any other. Of one that was captured while `listening()` was false nothing is known.

    Captures on any thread are counted in the device's clock, which asks nothing meanwhile.
    """

    def __init__(
        self, current: Callable[[], StepRecord | None], clock: Any, listening: Callable[[], bool] = lambda: True
    ) -> None:
        self._current, self._clock, self._listening = current, clock, listening
        self._undo = ExitStack()
        self._capturing: dict[int, Any] = {}
        self._silent: weakref.WeakSet[Any] = weakref.WeakSet()
        """Graphs that communicate nothing."""
        self._communicating: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self) -> None:
        """Patch `torch.cuda.CUDAGraph`, with which torch and its compiler capture and replay."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        graph = torch.cuda.CUDAGraph
        self._patch(graph, "replay", self._replaying)
        self._patch(graph, "capture_begin", self._beginning)
        self._patch(graph, "capture_end", self._ending)

    def close(self) -> None:
        """Remove the patches."""
        self._undo.close()
        self._clock.captures = 0

    def communicates(self) -> None:
        """Note a collective: the graphs that are captured now hold it."""
        for graph in self._capturing.values():
            self._communicating.add(graph)

    def _replaying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            record = self._current()
            if record is not None:
                record.readings.append(("graph_replays", time.monotonic_ns(), 1.0))
                if graph in self._communicating:
                    record.cut = record.cut or "it replayed a CUDA graph with collectives"
                elif graph not in self._silent:
                    record.cut = record.cut or "it replayed a CUDA graph that was captured unseen"
            return original(graph, *args, **kwargs)

        return replay

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._capturing[id(graph)] = graph
            self._clock.captures = len(self._capturing)
            self._communicating.discard(graph)
            if self._listening():
                self._silent.add(graph)
            else:
                self._silent.discard(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._ended(graph)
                raise

        return capture_begin

    def _ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._ended(graph)

        return capture_end

    def _ended(self, graph: Any) -> None:
        self._capturing.pop(id(graph), None)
        self._clock.captures = len(self._capturing)

    def _patch(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, around(original))
        self._undo.callback(setattr, owner, name, original)


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
