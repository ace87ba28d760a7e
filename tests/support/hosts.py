"""Small faithful fakes of training frameworks: their documented hooks, called in the order of their own sources.

Each class says which file of which version it follows.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer


def install(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> ModuleType:
    """Put a module of that name, and its parents, where `import` finds it."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:at]), ModuleType(".".join(parts[:at])))
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


# --- PyTorch Lightning ----------------------------------------------------------------------------------------------


class LightningCallback:
    """`Callback` of src/lightning/pytorch/callbacks/callback.py (2.x, 20a82d08): the hooks that a training calls."""

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_end(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None: ...
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None: ...
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None: ...
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None: ...
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None: ...


class LightningTrainer:
    """`Trainer.fit` with automatic optimization, as loops/training_epoch_loop.py (2.x, 017bff99) runs it.

    The optimizer calls the forward and backward of its step's last batch (loops/optimization/automatic.py).
    `trainer.model` is the wrapped module, `trainer.global_step` counts optimizer steps; an epoch's last batch steps
    even in the middle of an accumulation. Callbacks that are none of `base` are refused, as is_overridden does.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        base: type = LightningCallback,
        accumulate_grad_batches: int = 1,
        val_check_interval: int | None = None,
        max_epochs: int = 1,
    ) -> None:
        if not all(isinstance(each, base) for each in callbacks):
            raise ValueError("Expected a parent")
        self.callbacks = callbacks
        self.accumulate_grad_batches = accumulate_grad_batches
        self.val_check_interval, self.max_epochs = val_check_interval, max_epochs
        self.global_step = 0
        self.model: nn.Module | None = None

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, self.lightning_module, *args)

    def fit(self, module: Any, batches: Sequence[torch.Tensor], wrapped: nn.Module | None = None) -> None:
        self.lightning_module, self.model = module, wrapped or module
        try:
            self._fit(module, batches)
        except BaseException as error:
            self._call("on_exception", error)
            raise

    def _fit(self, module: Any, batches: Sequence[torch.Tensor]) -> None:
        optimizer = module.configure_optimizers()
        self._call("on_train_start")
        for _ in range(self.max_epochs):
            self._call("on_train_epoch_start")
            for index, batch in enumerate(batches):
                self._call("on_train_batch_start", batch, index)
                if module.on_train_batch_start(batch, index) == -1:
                    break
                steps = (index + 1) % self.accumulate_grad_batches == 0 or index + 1 == len(batches)

                def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                    loss = module.training_step(self.model, batch)
                    loss.backward()
                    return loss.detach()

                if steps:
                    loss = optimizer.step(closure)
                    optimizer.zero_grad()
                    self.global_step += 1
                else:  # DDPStrategy.block_backward_sync
                    with nullcontext() if self.model is module else self.model.no_sync():
                        loss = closure()
                self._call("on_train_batch_end", {"loss": loss}, batch, index)
                if self.val_check_interval and (index + 1) % self.val_check_interval == 0:
                    self._call("on_validation_start")
                    with torch.no_grad():
                        module.training_step(module, batch)
                    self._call("on_validation_end")
            self._call("on_train_epoch_end")
        self._call("on_train_end")


class LightningModule(nn.Module):
    """A LightningModule whose parts are called, not itself."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layers(batch)

    def training_step(self, called: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (self.layers if called is self else called)(batch).square().mean()

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> int | None:
        del batch, batch_idx
        return None


# --- Hugging Face ---------------------------------------------------------------------------------------------------


class TrainerCallback:
    """`TrainerCallback` of src/transformers/trainer_callback.py (55093b75): events take what `call_event` passes."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


@dataclass
class Trainer:
    """`Trainer._inner_training_loop` of src/transformers/trainer.py (since 4.46).

    Callbacks are given the bare model; training calls the one that accelerate wrapped. `partial_steps=False` is the
    older loop that leaves an epoch's last batches without a step.
    """

    model: nn.Module
    wrapped: nn.Module
    batches: Sequence[torch.Tensor]
    gradient_accumulation_steps: int = 1
    epochs: int = 1
    partial_steps: bool = True
    callbacks: list[Any] = field(default_factory=list)
    global_step: int = 0

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def _call(self, event: str) -> None:
        for callback in self.callbacks:
            given = {"model": self.model, "processing_class": None, "optimizer": self.optimizer}
            getattr(callback, event)(
                None, None, None, **given, lr_scheduler=None, train_dataloader=self.batches, eval_dataloader=None
            )

    def train(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        many = self.gradient_accumulation_steps
        self._call("on_train_begin")
        for _ in range(self.epochs):
            self._call("on_epoch_begin")
            for step, inputs in enumerate(self.batches):
                last = step + 1 == len(self.batches) and self.partial_steps
                synchronises = (step + 1) % many == 0 or last
                if step % many == 0:
                    self._call("on_step_begin")
                no_sync = getattr(self.wrapped, "no_sync", nullcontext)
                with nullcontext() if synchronises else no_sync():
                    self.wrapped(inputs).square().mean().backward()
                if synchronises:
                    self._call("on_pre_optimizer_step")
                    self.optimizer.step()
                    self._call("on_optimizer_step")
                    self.wrapped.zero_grad()
                    self.global_step += 1
                    self._call("on_step_end")
                    self._call("on_evaluate")
                else:
                    self._call("on_substep_end")
            self._call("on_epoch_end")
        self._call("on_train_end")


@dataclass
class Accelerator:
    """`accumulate` and `sync_gradients` of src/accelerate/accelerator.py (1.x): the last batch synchronises, too."""

    gradient_accumulation_steps: int
    batches: int
    step: int = 0
    seen: int = 0
    sync_gradients: bool = True

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        self.seen += 1
        if self.seen % self.batches == 0:
            self.step, self.sync_gradients = 0, True
        else:
            self.step += 1
            self.sync_gradients = self.step % self.gradient_accumulation_steps == 0
        with nullcontext() if self.sync_gradients or not hasattr(models[0], "no_sync") else models[0].no_sync():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


# --- DeepSpeed ------------------------------------------------------------------------------------------------------


class DeepSpeedEngine(nn.Module):
    """`forward`, `backward`, `step` of deepspeed/runtime/engine.py (b555aa53), a module around the user's.

    `step` is called after each micro-batch and counts in `global_steps` only at the accumulation's boundary.
    """

    def __init__(self, module: nn.Module, gradient_accumulation_steps: int) -> None:
        super().__init__()
        self.module = module
        self.gas = gradient_accumulation_steps
        self.basic_optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.micro_steps = self.global_steps = 0

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % self.gas == 0

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        (loss / self.gas).backward()
        if self.is_gradient_accumulation_boundary() and torch.distributed.is_initialized():
            for parameter in self.module.parameters():  # stands for buffered_allreduce_fallback
                torch.distributed.all_reduce(parameter.grad)
        return loss

    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            self.basic_optimizer.step()
            self.module.zero_grad()
            self.global_steps += 1
        self.micro_steps += 1


# --- Megatron-LM ----------------------------------------------------------------------------------------------------


def megatron_training(steps: int, micro_batches: int, seen: list[str]) -> dict[str, Callable[..., Any]]:
    """`pretrain`, `train` and `train_step` of megatron/training/training.py (001b00c2), which call each other by name.

    Give them as the attributes of one module: their globals.
    """
    source = """
def pretrain(model_provider):
    import torch
    seen.append("initialize_megatron")
    model = [model_provider()]
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    iteration, operations = train(
        forward_step, model, optimizer, None, None, None, None, None, None, None, None
    )
    seen.append("after training is done")
    return iteration

def forward_step(model):
    import torch
    return model(torch.ones(4, 8)).square().mean()

def train(
    forward_step_func, model, optimizer, opt_param_scheduler, train_data_iterator, valid_data_iterator,
    process_non_loss_data_func, config, checkpointing_context, non_loss_data_func, inference_model=None,
):
    iteration = 0
    while iteration < steps:
        loss_dict, skipped_iter, should_checkpoint, should_exit, exit_code, grad_norm, zeros, max_logit = train_step(
            forward_step_func, train_data_iterator, model, optimizer, opt_param_scheduler, config, None,
            iteration=iteration,
        )
        iteration += 1
        if should_exit:
            raise SystemExit(exit_code)
    return iteration, 0

def train_step(
    forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config, forward_backward_func,
    iteration=None,
):
    for _ in range(micro_batches):
        forward_step_func(model[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    return {}, 0, False, iteration + 1 == exits_at, 3, None, None, None
"""
    module: dict[str, Any] = {"steps": steps, "micro_batches": micro_batches, "seen": seen, "exits_at": None}
    exec(source, module)
    return module


# --- torchtitan -----------------------------------------------------------------------------------------------------


class TitanFunction:
    """`Function` of torchtitan/config/function.py (d95eab85): what `Config(fn=...)` builds is called."""

    @dataclass(kw_only=True)
    class Config:
        fn: Callable[..., Any]

        def build(self) -> "TitanFunction":
            return TitanFunction(self)

    def __init__(self, config: "TitanFunction.Config") -> None:
        self.fn = config.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class TitanProfiler:
    """`Profiler` of torchtitan/tools/profiler.py (0809806f): torch.profiler on a schedule, one folder an iteration."""

    def __init__(self, base_folder: str, trace_post_processor: Any, *, active: int = 2, warmup: int = 1) -> None:
        processor = trace_post_processor.build() if trace_post_processor else None

        def trace_handler(prof: Any) -> None:
            folder = f"{base_folder}/profiling/traces/iteration_{prof.step_num}"
            import os  # noqa: PLC0415 - as the original's imports do not matter here

            os.makedirs(folder, exist_ok=True)
            output_file = f"{folder}/rank{torch.distributed.get_rank()}_trace.json.gz"
            prof.export_chrome_trace(output_file)
            if processor is not None:
                processor(output_file)

        self.torch_profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=1, warmup=warmup, active=active),
            on_trace_ready=trace_handler,
            record_shapes=True,
        )

    def __enter__(self) -> "TitanProfiler":
        self.torch_profiler.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.torch_profiler.__exit__(*error)

    def step(self) -> None:
        self.torch_profiler.step()


class TitanTrainer:
    """`Trainer.train` and `train_step` of torchtitan/trainer.py (003fe280): a step takes the batches it accumulates."""

    def __init__(self, model: nn.Module, profiler: TitanProfiler | None, *, steps: int, accumulates: int) -> None:
        self.model_parts, self.profiler = [model], profiler
        self.parallel_dims = SimpleNamespace(non_data_parallel_size=2)
        self.metrics_processor = SimpleNamespace(num_flops_per_token=10)
        self.steps, self.gradient_accumulation_steps = steps, accumulates
        self.optimizers = torch.optim.SGD(model.parameters(), lr=0.1)
        self.step = 0

    def train_step(self, data_iterator: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.optimizers.zero_grad()
        for _ in range(self.gradient_accumulation_steps):
            inputs, labels = next(data_iterator)
            (self.model_parts[0](inputs) - labels).square().mean().backward()
        self.optimizers.step()

    def train(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        with self.profiler or nullcontext() as profiler:
            while self.step < self.steps:
                self.step += 1
                self.train_step(batches)
                if profiler is not None:
                    profiler.step()
