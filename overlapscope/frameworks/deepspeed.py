"""DeepSpeed: a step ends where the engine counts one, at the boundary of gradient accumulation.

    with overlapscope.profile("runs/deepspeed", model=engine) as scope:
        batch_of_step = overlapscope.frameworks.deepspeed.batches(scope, engine)
        for batch in loader:
            with batch_of_step():
                engine.backward(engine(batch))
                engine.step()

A pipeline engine's `train_batch` is a whole step: `with scope.step(): engine.train_batch(data)`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from overlapscope.capture.session import Session
from overlapscope.errors import UsageError
from overlapscope.frameworks import framework_steps as hosted


def batches(scope: Session, engine: Any) -> Callable[..., AbstractContextManager[None]]:
    """Return what goes around each micro-batch (forward, `engine.backward`, `engine.step`); it takes its amounts.

    Raises UsageError when `engine` is none.
    """
    if not hasattr(engine, "global_steps"):
        raise UsageError(f"{type(engine).__name__} is no engine of deepspeed.initialize: it has no global_steps")
    counted = engine.global_steps

    def stepped() -> bool:
        nonlocal counted
        before, counted = counted, engine.global_steps
        return bool(counted != before)

    return hosted.batches(scope, stepped)
