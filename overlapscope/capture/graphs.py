"""Replayed CUDA graphs: what runs in them cannot be marked, so the step that replays one is not whole."""

import time
from collections.abc import Callable
from typing import Any

from overlapscope.capture.records import StepRecord


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
