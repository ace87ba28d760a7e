"""DistributedDataParallel: when each gradient was accumulated (so DDP fills its buckets), and the wrapper of the model.

Trainers pass the bare model to their callbacks. Its buckets are known only to the DDP wrapper around it, which torch
names while the model inside it runs: `DDPWrapperFinder` asks then.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.records import StepRecord
from overlapscope.capture.timestamps import Clock
from overlapscope.timeline.columns import Gradients, make
from overlapscope.timeline.names import NameTable


class GradientWatch:
    """While open, records each gradient in the step record that `current()` returns, with the thread's CPU times."""

    def __init__(self, current: Callable[[], StepRecord | None], model: Any, times: ThreadTimes | None = None) -> None:
        self._current, self._model, self._times = current, model, times
        self._undo = ExitStack()
        self.parameters: list[tuple[str, int, str]] = []
        """(name, elements, dtype) of the model's parameters."""

    def open(self) -> None:
        """Hook every parameter that takes a gradient."""
        self.parameters.clear()
        for at, (name, parameter) in enumerate(self._model.named_parameters() if self._model is not None else ()):
            self.parameters.append((name, parameter.numel(), str(parameter.dtype).removeprefix("torch.")))
            if parameter.requires_grad:
                self._undo.callback(parameter.register_post_accumulate_grad_hook(self._noting(at)).remove)

    def close(self) -> None:
        """Remove the hooks."""
        self._undo.close()

    def _noting(self, parameter: int) -> Callable[[Any], None]:
        current, times = self._current, self._times

        def ready(_: Any) -> None:
            record = current()
            if record is not None:
                record.gradients.append((parameter, time.monotonic_ns()))
                if times is not None:
                    times.note_at_times(record)

        return ready

    def table(self, records: Sequence[StepRecord], clock: Clock, names: NameTable) -> Gradients:
        """Return the gradients of the recorded steps in the order in which they were ready."""
        rows = [
            (record.number, order, parameter, clock.epoch_ns(ready))
            for record in records
            for order, (parameter, ready) in enumerate(record.gradients)
        ]
        known = self.parameters
        return make(
            Gradients,
            len(rows),
            step=[row[0] for row in rows],
            order=[row[1] for row in rows],
            name=[names.code(known[row[2]][0]) for row in rows],
            elements=[known[row[2]][1] for row in rows],
            dtype=[names.code(known[row[2]][2]) for row in rows],
            ready_ns=[row[3] for row in rows],
        )


class DDPWrapperFinder:
    """While open, finds the DDP wrapper through which the model is called for the first time."""

    def __init__(self, model: Any) -> None:
        self.found: Any = model
        """The wrapper once it was seen; before that, or without a wrapper, the model itself."""
        self._hook: Any = None
        self._asked: Any = None
        self._bucket_group: str | None = None

    def bucket_group(self) -> str | None:
        """Return the name of the group over which the wrapper reduces its buckets; None without a wrapper."""
        if self._asked is not self.found:
            from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - as below

            self._asked = self.found
            wrappers = (each for each in self.found.modules() if isinstance(each, DistributedDataParallel))
            wrapper = next(wrappers, None)
            self._bucket_group = wrapper.process_group.group_name if wrapper is not None else None
        return self._bucket_group

    def open(self) -> None:
        """Hook the model's first call, unless the given model contains the wrapper already."""
        from torch.compiler import is_compiling  # noqa: PLC0415 - capture is the one room that uses torch
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        model = self.found
        if model is None or any(isinstance(each, DistributedDataParallel) for each in model.modules()):
            return

        # torch's compiler uses the same function; since torch 1.13.
        active = getattr(DistributedDataParallel, "_get_active_ddp_module", lambda: None)

        def called(*_: Any) -> None:
            if not is_compiling():
                self.close()
                self.found = active() or model

        self._hook = model.register_forward_pre_hook(called)

    def close(self) -> None:
        """Remove the hooks."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
