"""PyTorch Lightning, as `lightning.pytorch` or `pytorch_lightning`: a callback that records the training of `fit`.

    trainer = Trainer(callbacks=[overlapscope.frameworks.lightning.callback("runs/lightning")])

A step is what Lightning counts as one (`trainer.global_step`): with `accumulate_grad_batches=n` it holds n batches,
and the loading of all but the first.
"""

from os import PathLike
from typing import Any

from overlapscope.frameworks.framework_steps import HostedProfile, imported

HOSTS = ("lightning.pytorch", "pytorch_lightning")


def callback(path: str | PathLike[str], **options: Any) -> Any:
    """Return a Lightning callback that records into the run directory `path`; options are those of `profile`.

    Raises UsageError when Lightning is not installed. Where both packages are in use it is a callback of both.
    """
    hosts = imported(HOSTS, "lightning")
    bases = (_Hooks, *(host.Callback for host in hosts))
    return type("OverlapScopeCallback", bases, {})(path, options)


def _again(path: str | PathLike[str], options: dict[str, Any]) -> Any:
    return callback(path, **options)


class _Hooks:
    """The hooks; Lightning's own base class comes behind it."""

    def __init__(self, path: str | PathLike[str], options: dict[str, Any]) -> None:
        super().__init__()
        self._made_of = (path, options)
        self._profile = HostedProfile(path, options)
        self._before = 0

    def __reduce__(self) -> Any:
        """Travel to the processes that Lightning spawns: the class is made at run time, so it is made anew there."""
        return _again, self._made_of

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the profile, now that the strategy has wrapped the model."""
        self._profile.open(getattr(trainer, "model", None) or pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *_: Any) -> None:
        """Begin a step with its first batch."""
        del pl_module, batch, batch_idx
        if not self._profile.steps.open:
            self._before = trainer.global_step
            self._profile.steps.begin()

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
