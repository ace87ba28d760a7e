"""When each parameter's gradient was accumulated: the order and the times by which DDP fills its buckets."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.records import StepRecord
from overlapscope.capture.timestamps import Points
from overlapscope.timeline.columns import Gradients, make
from overlapscope.timeline.names import NameTable


class GradientWatch:
    """While open, notes each gradient into the record that `current()` gives, and with it the thread's times."""

    def __init__(self, current: Callable[[], StepRecord | None], model: Any, times: ThreadTimes | None = None) -> None:
        self._current, self._model, self._times = current, model, times
        self._undo: list[Callable[[], None]] = []
        self.parameters: list[tuple[str, int, str]] = []
        """(name, elements, dtype) of the model's parameters."""

    def open(self) -> None:
        """Listen to every parameter that takes a gradient."""
        for at, (name, parameter) in enumerate(self._model.named_parameters() if self._model is not None else ()):
            self.parameters.append((name, parameter.numel(), str(parameter.dtype).removeprefix("torch.")))
            if parameter.requires_grad:
                self._undo.append(parameter.register_post_accumulate_grad_hook(self._noting(at)).remove)

    def close(self) -> None:
        """Stop listening."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _noting(self, parameter: int) -> Callable[[Any], None]:
        current, times = self._current, self._times

        def ready(_: Any) -> None:
            record = current()
            if record is not None:
                record.gradients.append((parameter, time.monotonic_ns()))
                if times is not None:
                    times.note_at_times(record)

        return ready

    def table(self, records: Sequence[StepRecord], points: Points, names: NameTable) -> Gradients:
        """Return the gradients of the recorded steps in the order in which they were ready."""
        rows = [
            (record.number, order, parameter, points.epoch_ns(ready))
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


class AroundModel:
    """While open, looks at the model's first call for the wrapper it was called through."""

    def __init__(self, model: Any) -> None:
        self.found: Any = model
        """The wrapper, once it was seen; until then, and without one, the model itself."""
        self._hook: Any = None

    def open(self) -> None:
        """Listen to the model's first call, unless the wrapper stands inside what was given."""
        from torch.compiler import is_compiling  # noqa: PLC0415 - capture is the one room that uses torch
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        model = self.found
        if model is None or any(isinstance(each, DistributedDataParallel) for each in model.modules()):
            return

        # What torch's compiler asks for the same; since torch 1.13.
        active = getattr(DistributedDataParallel, "_get_active_ddp_module", lambda: None)

        def called(*_: Any) -> None:
            if not is_compiling():
                self.close()
                self.found = active() or model

        self._hook = model.register_forward_pre_hook(called)

    def close(self) -> None:
        """Stop listening."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
