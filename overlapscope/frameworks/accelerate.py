"""Hugging Face Accelerate in a loop of one's own: a step ends where Accelerate synchronises gradients.

with overlapscope.profile("runs/accelerate", model=model) as scope:
    batch_of_step = overlapscope.frameworks.accelerate.batches(scope, accelerator)
    for batch in loader:
        with batch_of_step(), accelerator.accumulate(model):
            ...
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from overlapscope.capture.session import Session
from overlapscope.errors import UsageError
from overlapscope.frameworks import framework_steps as hosted


def batches(scope: Session, accelerator: Any) -> Callable[..., AbstractContextManager[None]]:
    """Return what goes around each batch, outside of `accelerator.accumulate`; it takes the batch's own amounts.

    Raises UsageError when `accelerator` is none.
    """
    if not hasattr(accelerator, "sync_gradients"):
        raise UsageError(f"{type(accelerator).__name__} is no accelerate.Accelerator: it has no sync_gradients")
    return hosted.batches(scope, lambda: bool(accelerator.sync_gradients))
