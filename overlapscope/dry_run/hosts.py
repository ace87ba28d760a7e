"""Let Accelerate, and with it the Trainer of transformers, take the CPU of a dry run for a device."""

import sys
from collections.abc import Callable
from typing import Any

from overlapscope.errors import InputError


class AccelerateHost:
    """Accelerate keeps its state in the process, and on a CPU takes DDP in the place of FSDP and says nothing."""

    def __init__(self, replace: Callable[[Any, str, Any], None]) -> None:
        self._prepared = "accelerate.state" in sys.modules
        if not self._prepared:
            return
        module = sys.modules["accelerate.state"]
        module.AcceleratorState._reset_state(reset_partial_state=True)
        original, types = module.AcceleratorState.__init__, module.DistributedType

        def init(state: Any, *args: Any, **kwargs: Any) -> None:
            original(state, *args, **kwargs)
            plugin = kwargs.get("fsdp_plugin")
            if plugin is not None and state.distributed_type == types.MULTI_CPU:
                if state._mixed_precision != "no":
                    plugin.set_mixed_precision(state._mixed_precision)
                state.distributed_type, state.fsdp_plugin = types.FSDP, plugin
                module.PartialState._shared_state["distributed_type"] = types.FSDP

        replace(module.AcceleratorState, "__init__", init)

    def check(self) -> None:
        """Raise InputError where Accelerate was imported too late to be prepared."""
        if not self._prepared and "accelerate.state" in sys.modules:
            raise InputError(
                "accelerate was imported inside build, too late for a dry run: import it where the module begins"
            )

    def forget(self) -> None:
        """Let go of the rank that this pass ran as."""
        module = sys.modules.get("accelerate.state")
        if module is not None:
            module.AcceleratorState._reset_state(reset_partial_state=True)
