"""Follow which module and which phase of a step runs, and what an operation of backward is the gradient of."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from overlapscope.capture.hooks.collectives import module_of
from overlapscope.capture.hooks.patch import Patch
from overlapscope.timeline.dimensions import BACKWARD, FORWARD, OPTIMIZER

OTHER: Final = "other"
_WRAPPERS: Final = frozenset({"module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
"""Names that wrappers put into a module's path: DDP's, FSDP's, the checkpoint's and the compiler's."""
_WRAPPER_TYPES: Final = frozenset({"DistributedDataParallel", "OptimizedModule", "CheckpointWrapper",
                                   "FullyShardedDataParallel", "DataParallel"})  # fmt: skip


class Place(NamedTuple):
    """Where an operation belongs."""

    module: str | None
    source: str | None


class Places:
    """While open, follows modules and phases.

    Forward runs from a model's call to backward, backward is `torch.autograd.backward`, the optimizer every
    `Optimizer.step`: as `overlapscope.profile` defines them. `on_phase_end(phase)` is called where one ends.
    """

    def __init__(self, on_phase_end: Callable[[str], None]) -> None:
        self._on_phase_end = on_phase_end
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []
        """Modules that were called from outside of any: kept, so that none takes the place of another in `_names`."""
        self._stack: list[Any] = []
        self._forward = False
        self._backward = 0
        self._optimizer = 0
        self.range: str | None = None
        """Module that the FSDP range around the current operation names."""
        self.optimizer_steps: list[Any] = []
        """Optimizers that stepped since `restart`, once for each time."""
        self._made_by: dict[int, Place] = {}
        """By autograd's sequence number of a forward operation: where it belongs."""
        self._undo = ExitStack()
        self.parameters: dict[int, Any] = {}
        self.wrapped_at: dict[int, str | None] = {}
        """By id of a module that was wrapped for communication: the line of the user's code that did it."""

    def open(self) -> None:
        """Hook modules, backward, optimizers and FSDP's ranges."""
        import torch  # noqa: PLC0415 - loaded only where a step runs
        from torch.optim import optimizer  # noqa: PLC0415

        self._undo.callback(optimizer.register_optimizer_step_pre_hook(self._optimizer_begins).remove)
        self._undo.callback(optimizer.register_optimizer_step_post_hook(self._optimizer_ends).remove)
        for owner, name, around in (
            (torch.nn.Module, "__call__", self._around_call),
            (torch.autograd, "backward", self._around_backward),
            (torch.autograd.profiler.record_function, "__enter__", self._entering_range),
            (torch.autograd.profiler.record_function, "__exit__", self._leaving_range),
        ):
            patch = Patch(owner, name, around)
            patch.open()
            self._undo.callback(patch.close)

    def close(self) -> None:
        """Remove the hooks."""
        self._undo.close()

    def restart(self) -> None:
        """Begin a step."""
        self._made_by.clear()
        self.optimizer_steps.clear()
        self._stack.clear()
        self._forward = False

    @property
    def phase(self) -> str:
        """The phase that runs; an optimizer may call forward and backward itself, as its closure."""
        if self._backward:
            return BACKWARD
        if self._forward:
            return FORWARD
        return OPTIMIZER if self._optimizer else OTHER

    def here(self, line: Callable[[], str | None]) -> Place:
        """Return where the current operation belongs; `line()` finds the line of the user's code."""
        import torch  # noqa: PLC0415

        node = torch._C._current_autograd_node() if self._backward else None
        made = self._made_by.get(node._sequence_nr()) if node is not None else None
        inside = self._name(self._stack[-1]) if self._stack else None
        if made is not None:
            return Place(self.range or inside or made.module, made.source)
        place = Place(self.range or inside, line())
        if not self._backward or self._stack:
            self._made_by.setdefault(torch.autograd._get_sequence_nr() - 1, place)
        return place

    def wrapping_lines(self) -> dict[str, str]:
        """Return by a module's name the line that wrapped it for communication."""
        named = ((self._names.get(module), line) for module, line in self.wrapped_at.items())
        return {name: line for name, line in named if name is not None and line is not None}

    @property
    def after_backward(self) -> bool:
        """Whether backward has run all its nodes, and what was left for its end runs."""
        import torch  # noqa: PLC0415

        return self._backward == 1 and torch._C._current_autograd_node() is None

    # -- modules ---------------------------------------------------------------------------------------------------

    def _around_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            # Hooks are part of a call: those of tensor parallelism communicate.
            if not self._stack:
                self._name_all(module)
                if not self._backward:
                    self._forward = True
            depth = len(self._stack)
            self._stack.append(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                del self._stack[depth:]

        return call

    def _name(self, module: Any) -> str | None:
        return self._names.get(id(module)) or None

    def _name_all(self, root: Any) -> None:
        if id(root) in self._names:
            return
        self._roots.append(root)
        for name, module in root.named_modules():
            self._names.setdefault(id(module), _without_wrappers(name, root))
        for parameter in root.parameters():
            self.parameters[id(parameter)] = parameter

    # -- phases ----------------------------------------------------------------------------------------------------

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            with self._counted("_backward", BACKWARD):
                return original(*args, **kwargs)

        return backward

    @contextmanager
    def _counted(self, name: str, phase: str) -> Iterator[None]:
        setattr(self, name, getattr(self, name) + 1)
        try:
            yield
        finally:
            if getattr(self, name) == 1:
                self._on_phase_end(phase)
                self._forward = False
            setattr(self, name, getattr(self, name) - 1)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self._optimizer += 1
        self._forward = False

    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = max(0, self._optimizer - 1)
        self.optimizer_steps.append(optimizer)

    # -- FSDP's ranges ---------------------------------------------------------------------------------------------

    def _entering_range(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        def entered(range_: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                self.range = module_of(range_.name)
            return enter(range_)

        return entered

    def _leaving_range(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        def left(range_: Any, *args: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                self.range = None
            return leave(range_, *args)

        return left


def _without_wrappers(name: str, root: Any) -> str:
    """Return a module's path without what wrappers add to it."""
    parts = name.split(".") if name else []
    wrapped = type(root).__name__ in _WRAPPER_TYPES
    kept = [part for at, part in enumerate(parts)
            if not (part in _WRAPPERS and (part != "module" or (wrapped and at == 0)))]  # fmt: skip
    return ".".join(kept)
