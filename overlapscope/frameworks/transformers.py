"""Hugging Face transformers: a callback that records the training of a `Trainer`.

    trainer.add_callback(overlapscope.frameworks.transformers.callback("runs/trainer"))

A step is the Trainer's own, one optimizer step: with `gradient_accumulation_steps=n` it holds n batches.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Final

from overlapscope.frameworks.framework_steps import HostedProfile, imported

PACKED: Final = ("position_ids", "cu_seqlens", "cu_seq_lens_q", "seq_idx")
"""Beside these inputs a row of tokens may hold several samples."""


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
        self._uncount: Callable[[], None] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Open the profile; a wrapper around the model shows itself at its first call."""
        del state, control
        self._profile.open(model)
        self._uncount()
        counting = self._profile.attempt(
            "counting what a step processes", lambda: _counting(self._profile, model, args)
        )
        self._uncount = counting or (lambda: None)

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
        self._uncount()
        self._profile.close()


def _counting(profile: HostedProfile, model: Any, args: Any) -> Callable[[], None] | None:
    """Count what the model is called with, where ranks share no tokens; return what ends it."""
    parallel = getattr(args, "parallelism_config", None)
    if getattr(parallel, "non_data_parallel_size", 1) != 1 or (getattr(model, "tp_size", None) or 1) != 1:
        return None
    import torch  # noqa: PLC0415 - the host has imported it
    from torch.compiler import is_compiling  # noqa: PLC0415

    flops_per_token = _flops_per_token(model)

    def called(module: Any, _: Any, inputs: Mapping[str, Any]) -> None:
        # Under torch.compile nothing of it may be left in the graph; then nothing is counted. Nor are generated tokens.
        if not is_compiling() and module.training and torch.is_grad_enabled():
            profile.steps.count(_amounts, module, inputs, flops_per_token)

    remove: Callable[[], None] = model.register_forward_pre_hook(called, with_kwargs=True).remove
    return remove


def _amounts(model: Any, inputs: Mapping[str, Any], flops_per_token: float | None) -> dict[str, float]:
    """Return tokens (padding included), samples and model FLOPs of a batch, from shapes alone and where certain."""
    shape: tuple[int, ...] = getattr(inputs.get("input_ids"), "shape", ())
    if len(shape) != 2:
        return {}
    amounts: dict[str, float] = {}
    if not any(name in inputs for name in PACKED):
        amounts["samples"] = shape[0]
    # An encoder and its decoder take different tokens.
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", True):
        amounts["tokens"] = shape[0] * shape[1]
        if flops_per_token is not None:
            amounts["flops"] = amounts["tokens"] * flops_per_token
    return amounts


def _flops_per_token(model: Any) -> float | None:
    """Return what the Trainer counts itself in `total_flos`: 6 x parameters without embeddings, forward and backward.

    None where the formula does not hold: of experts a token meets some only, a frozen parameter has no gradient, and
    of a partitioned one (ZeRO-3, FSDP1) a rank sees a part. (`Trainer.floating_point_ops` of transformers.)
    """
    if not hasattr(model, "num_parameters") or "expert" in str(getattr(model, "config", "expert")).lower():
        return None
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return None
    if any(hasattr(each, "ds_id") or not each.requires_grad for each in model.parameters()):
        return None
    return 6.0 * float(model.num_parameters(exclude_embeddings=True))
