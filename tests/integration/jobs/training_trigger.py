"""One rank of a training whose trigger may record; called as `tests.integration.jobs.training` is."""

import time
from pathlib import Path

import torch
from torch import nn

import overlapscope
from tests.integration.jobs.training import RANK, batch, digest, main, mlp, profiled

STEP_SECONDS = 0.02
SLOWER = 1.3
MUCH_SLOWER = 4.0
"""Also where other tests keep the cores busy."""


def _products_a_second(left: torch.Tensor) -> float:
    """Return how many products of two matrices the quieter of some tenths of a second holds."""
    rates = []
    for _ in range(10):
        begin = time.monotonic()
        for _ in range(200):
            left @ left
        rates.append(200 / (time.monotonic() - begin))
    return max(rates)


def trained(
    even_seconds: float,
    slow_seconds: float,
    for_seconds: float,
    steps_each: float,
    *,
    slower: float = SLOWER,
    computes: bool = False,
) -> dict[str, object]:
    """Take even steps, then steps in which rank 1 is slower; each computes, or sleeps, about its length."""
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trigger = overlapscope.Trigger(slower=1.15, for_seconds=for_seconds, steps=2)
    slow = steps_each * (slower if RANK == 1 else 1.0)
    lengths = [steps_each] * round(even_seconds / steps_each) + [slow] * round(slow_seconds / steps_each / slower)
    left = torch.randn(256, 256)
    products_a_second = _products_a_second(left) if computes else 0.0
    with profiled(model, "events", trigger=trigger, events_every=1) as scope:
        for number, seconds in enumerate(lengths):
            with scope.step():
                end = time.monotonic() + seconds
                model(batch(number)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if computes:
                    for _ in range(round(seconds * products_a_second)):
                        left @ left
                else:
                    time.sleep(max(0.0, end - time.monotonic()))
    return {
        "digest": digest(model),
        "written": [str(Path(file)) for file in scope.trigger.written],
        "failures": scope.guard.failures,
    }


def even() -> dict[str, object]:
    """Ten minutes without a disturbance."""
    return trained(600, 0, 10, 0.05, computes=True)


def slowed() -> dict[str, object]:
    """A minute with a slow rank, after one without."""
    return trained(60, 60, 10, 0.05, computes=True)


def soon() -> dict[str, object]:
    """The same in some seconds."""
    return trained(5, 8, 1, STEP_SECONDS, slower=MUCH_SLOWER)


if __name__ == "__main__":
    main(globals())
