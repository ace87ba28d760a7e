"""Hugging Face transformers: a callback that records the training of a `Trainer`.

    trainer.add_callback(overlapscope.frameworks.transformers.callback("runs/trainer"))

A step is the Trainer's own, one optimizer step: with `gradient_accumulation_steps=n` it holds n batches.
"""

from os import PathLike
from typing import Any

from overlapscope.frameworks.framework_steps import HostedProfile, imported


def callback(path: str | PathLike[str], **options: Any) -> Any:
    """Return a TrainerCallback that records into the run directory `path`; options are those of `profile`.

    Raises UsageError when transformers is not installed.
    """
    (host,) = imported(["transformers"], "transformers")
    return type("OverlapScopeCallback", (_Hooks, host.TrainerCallback), {})(path, options)


class _Hooks:
    """The events; the Trainer's own base class, which has them all, comes behind it."""

    def __init__(self, path: str | PathLike[str], options: dict[str, Any]) -> None:
        super().__init__()
        self._profile = HostedProfile(path, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Open the profile; a wrapper around the model shows itself at its first call."""
        del args, state, control
        self._profile.open(model)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step with its first batch; one that never ended was not whole."""
        del args, state, control
        self._profile.steps.spoil()
        self._profile.steps.end()
        self._profile.steps.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the step, before logging, evaluating and saving."""
        del args, state, control
        self._profile.steps.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the run."""
        del args, state, control
        self._profile.close()
