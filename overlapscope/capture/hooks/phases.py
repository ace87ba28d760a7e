"""Record when a step's forward, backward and optimizer begin and end, without changing the model's computation."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from overlapscope.capture.hooks.nvtx import NvtxRanges
from overlapscope.capture.hooks.patch import Patch
from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import MarkedRange, StepRecord
from overlapscope.capture.timestamps import Clock

MARKS_READ: Final = 4
"""Marks of the device's clock that are read at each border of a phase."""


class PhaseWatch:
    """While open, records phases in the step record that `current()` returns.

    Forward runs from the model's call to the beginning of backward, so it includes the loss. Without a model, or where
    only parts of the model are called, it starts at the begin of the step or at the end of the last backward. Backward
    is `torch.autograd.backward`, which `Tensor.backward` calls. The optimizer is every `Optimizer.step`, without the
    forward and backward of a closure that it is given.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        current: Callable[[], StepRecord | None],
        model: Any,
        ranges: NvtxRanges | None = None,
        times: ThreadTimes | None = None,
    ) -> None:
        self._clock, self._guard, self._current, self._model = clock, guard, current, model
        self._ranges, self._times = ranges, times
        self._undo = ExitStack()
        self._backward: Patch | None = None
        self._called = False
        """Whether the model was called in this step."""
        self._since: tuple[Any, int] | None = None
        """Mark and host time at which forward starts if the model itself is never called."""
        self._suspended = False
        """Whether the optimizer is in its closure's forward or backward."""
        self._resumed = False
        """Whether the optimizer has come back from its closure."""

    def open(self) -> None:
        """Hook the model's call, backward and every optimizer."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch
        from torch.compiler import is_compiling  # noqa: PLC0415
        from torch.optim import optimizer  # noqa: PLC0415

        # While the compiler traces, a hook must do nothing: then nothing of it is left in the graph (compiled.py).
        def called(*_: Any) -> None:
            if not is_compiling():
                self._forward_begins()

        def steps(*_: Any) -> None:
            if not is_compiling():
                self._begin("optimizer")

        def stepped(*_: Any) -> None:
            if not is_compiling():
                self._suspended = self._resumed = False
                self._end("optimizer")

        if self._model is not None:
            self._undo.callback(self._model.register_forward_pre_hook(called).remove)
        self._undo.callback(optimizer.register_optimizer_step_pre_hook(steps).remove)
        self._undo.callback(optimizer.register_optimizer_step_post_hook(stepped).remove)
        if self._backward is None:
            self._backward = Patch(torch.autograd, "backward", partial(self._around_backward, is_compiling))
        self._backward.open()
        self._undo.callback(self._backward.close)

    def close(self) -> None:
        """Remove all hooks."""
        self._undo.close()

    def _around_backward(self, is_compiling: Callable[[], bool], original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            # A backward inside a backward is that of an activation checkpoint, and belongs to the outer one.
            if is_compiling() or self._current() is None or self._is_open("backward"):
                return original(*args, **kwargs)
            self._guard("noting a phase", self._note_uncalled)
            self._end("forward")
            self._guard("noting a phase", self._suspend_optimizer)
            self._begin("backward")
            try:
                return original(*args, **kwargs)
            finally:
                self._end("backward")
                self._guard("noting a phase", self._note_since)
                if self._suspended:
                    self._suspended, self._resumed = False, True
                    self._begin("optimizer")

        return backward

    def step_begins(self) -> None:
        """Start a step; without a model, forward starts with it."""
        self._called = self._suspended = self._resumed = False
        if self._model is None:
            self._begin("forward")
        self._guard("noting a phase", self._note_since)

    def step_ends(self) -> None:
        """End a forward that is still open, as in evaluation."""
        self._end("forward")

    def _forward_begins(self) -> None:
        self._called = True
        # Inside a backward, an activation checkpoint calls the model again.
        if not self._is_open("forward") and not self._is_open("backward"):
            self._guard("noting a phase", self._clock.computes_here)
            self._guard("noting a phase", self._suspend_optimizer)
            self._begin("forward")

    def _is_open(self, name: str) -> bool:
        record = self._current()
        return record is not None and any(each.name == name and each.end is None for each in record.phases)

    def _note_since(self) -> None:
        if not self._called:
            self._since = (self._clock.mark(), time.monotonic_ns())

    def _note_uncalled(self) -> None:
        """Record the forward before this backward where the model itself was not called."""
        record, since = self._current(), self._since
        if record is None or since is None or self._called:
            return
        if self._is_open("forward"):
            return
        self._resumed = False
        self._suspend_optimizer()
        record.phases.append(MarkedRange("forward", *since))

    def _suspend_optimizer(self) -> None:
        """Leave the optimizer for its closure, which it calls before all else; it may compute between two calls."""
        record = self._current()
        if record is None or not self._is_open("optimizer"):
            return
        self._note_end("optimizer")
        self._suspended = True
        if not self._resumed:
            del record.phases[-1]

    def _begin(self, name: str) -> None:
        self._guard("noting a phase", self._note_begin, name)

    def _note_begin(self, name: str) -> None:
        record = self._current()
        if record is not None:
            if self._ranges is not None:
                self._ranges.begin(name)
            if self._times is not None:
                self._times.note(record)
            self._clock.read(MARKS_READ)
            record.phases.append(MarkedRange(name, self._clock.mark(), time.monotonic_ns()))

    def _end(self, name: str) -> None:
        self._guard("noting a phase", self._note_end, name)

    def _note_end(self, name: str) -> None:
        record = self._current()
        if record is None:
            return
        for stretch in reversed(record.phases):
            if stretch.name == name and stretch.end is None:
                stretch.end = self._clock.mark()
                self._clock.read(MARKS_READ)
                if self._times is not None:
                    self._times.note(record)
                if self._ranges is not None:
                    self._ranges.end(name)
                return
