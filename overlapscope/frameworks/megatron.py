"""Megatron-LM's training loop (`megatron.training`, on Megatron-Core): each `train_step` of `pretrain` is a step.

    overlapscope.frameworks.megatron.record("runs/megatron")
    pretrain(...)

`train` and `train_step` of `megatron.training.training`, which `pretrain` calls by these names, are replaced: the
process groups are there when `train` begins, and not yet gone when it ends. A loop of one's own around Megatron-Core
needs no adapter: `with scope.step():` around the call of `forward_backward_func` and the optimizer.
"""

from functools import wraps
from os import PathLike
from typing import Any

import overlapscope
from overlapscope.frameworks.framework_steps import imported


def record(path: str | PathLike[str], **options: Any) -> None:
    """Record the next training loop into the run directory `path`; options are those of `profile`.

    Raises UsageError when Megatron-LM is not on the path.
    """
    (training,) = imported(["megatron.training.training"], "megatron-core, with Megatron-LM on PYTHONPATH")
    train, train_step = training.train, training.train_step

    @wraps(train)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        training.train = train
        chunks = args[1] if len(args) > 1 else kwargs.get("model")
        # Of an interleaved pipeline's chunks none is the model.
        model = chunks[0] if isinstance(chunks, list) and len(chunks) == 1 else None
        with overlapscope.profile(path, model=model, **options) as scope:
            training.train_step = scope(train_step)
            try:
                return train(*args, **kwargs)
            finally:
                training.train_step = train_step

    training.train = recorded
