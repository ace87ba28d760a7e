"""PyTorch Lightning, as `lightning.pytorch` or `pytorch_lightning`: a callback that records the training of `fit`.

    trainer = Trainer(callbacks=[overlapscope.frameworks.lightning.callback("runs/lightning")])

A step is what Lightning counts as one (`trainer.global_step`): with `accumulate_grad_batches=n` it holds n batches,
and the loading of all but the first.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from overlapscope.frameworks.framework_steps import HostedProfile, imported

HOSTS = ("lightning.pytorch", "pytorch_lightning")


Amounts = Callable[[Any], Mapping[str, float]]
"""What a batch of this rank holds: `tokens`, `samples`, `flops`, as far as known."""


def callback(path: str | PathLike[str], *, amounts: Amounts | None = None, **options: Any) -> Any:
    """Return a Lightning callback that records into the run directory `path`; options are those of `profile`.

    `amounts` returns a batch's tokens, samples and model FLOPs of this rank; without it, samples are counted where all
    tensors of the batch have the loader's batch size, and FLOPs where the module has Lightning's `flops_per_batch`.
    Raises UsageError when Lightning is not installed. Where both packages are in use it is a callback of both.
    """
    hosts = imported(HOSTS, "lightning")
    bases = (_Hooks, *(host.Callback for host in hosts))
    return type("OverlapScopeCallback", bases, {})(path, amounts, options)


def _again(path: str | PathLike[str], amounts: Amounts | None, options: dict[str, Any]) -> Any:
    return callback(path, amounts=amounts, **options)


class _Hooks:
    """The hooks; Lightning's own base class comes behind it."""

    def __init__(self, path: str | PathLike[str], amounts: Amounts | None, options: dict[str, Any]) -> None:
        super().__init__()
        self._made_of = (path, amounts, options)
        self._amounts = amounts
        self._profile = HostedProfile(path, options)
        self._before = 0

    def __reduce__(self) -> Any:
        """Travel to the processes that Lightning spawns: the class is made at run time, so it is made anew there."""
        return _again, self._made_of

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the profile, now that the strategy has wrapped the model."""
        self._profile.open(getattr(trainer, "model", None) or pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        """Begin a step with its first batch, and count what each holds."""
        del batch_idx
        if not self._profile.steps.open:
            self._before = trainer.global_step
            self._profile.steps.begin()
        if self._amounts is not None:
            self._profile.steps.count(self._amounts, batch)
        else:
            self._profile.steps.count(_known, trainer, pl_module, batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """End the step with the batch in which the optimizer stepped."""
        del pl_module, outputs, batch, batch_idx
        if trainer.global_step != self._before:
            self._profile.steps.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave out a step that validation interrupts between its batches."""
        del trainer, pl_module
        self._profile.steps.spoil()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave out a step whose last batches the epoch does not have."""
        del trainer, pl_module
        self._profile.steps.spoil()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the run."""
        del trainer, pl_module
        self._profile.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what there is."""
        del trainer, pl_module
        self._profile.close(exception)


def _known(trainer: Any, pl_module: Any, batch: Any) -> dict[str, float]:
    """Return what Lightning knows of this rank's batch: each rank's part where several are given the same one."""
    amounts: dict[str, float] = {}
    size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else [batch]
    found = {each.shape[0] for each in parts if len(getattr(each, "shape", ())) > 0}
    # The last batch may be smaller. A list of images has other first dimensions.
    if size and (found == {size} or (len(found) == 1 and max(found) < size and trainer.is_last_batch)):
        replicas = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {"num_replicas": 1}
        amounts["samples"] = found.pop() * replicas["num_replicas"] / trainer.world_size
    flops = getattr(pl_module, "flops_per_batch", None)
    if flops is not None:
        amounts["flops"] = flops
    return amounts
