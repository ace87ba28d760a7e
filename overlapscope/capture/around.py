"""The DistributedDataParallel around a model, where the recording was given the model inside it.

Trainers hand their callbacks the bare model; its buckets are known only to the wrapper, which torch names while the
model inside it runs.
"""

from typing import Any


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
