"""One rank of a training whose trigger may record; called as `tests.integration.jobs.training` is."""

import itertools
import os
import signal
import time
from pathlib import Path
from statistics import median

import torch
from torch import distributed as dist
from torch import nn

import overlapscope
from tests.integration.jobs.training import RANK, batch, bucket_bytes, digest, hooked, main, mlp, profiled

LIMIT_SECONDS = 60
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
    """Take even steps, then steps in which rank 1 takes `slower` times as long as it took; each computes, or sleeps."""
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trigger = overlapscope.Trigger(slower=1.15, for_seconds=for_seconds, steps=2)
    even, slow = round(even_seconds / steps_each), round(slow_seconds / steps_each / slower)
    left = torch.randn(256, 256)
    products = round(steps_each * _products_a_second(left)) if computes else 0
    step_seconds, product_seconds = [], []
    more_seconds, more_products = (slower - 1) * steps_each, 0
    with profiled(model, "events", trigger=trigger, events_every=1) as scope:
        for number in range(even + slow):
            late = RANK == 1 and number >= even
            if computes and number == even:
                more_products = round((slower - 1) * median(step_seconds) / median(product_seconds))
            with scope.step():
                begin = time.monotonic()
                model(batch(number)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if computes:
                    computing = time.monotonic()
                    for _ in range(products + late * more_products):
                        left @ left
                    if number < even:
                        product_seconds.append((time.monotonic() - computing) / products)
                else:
                    time.sleep(max(0.0, begin + steps_each + late * more_seconds - time.monotonic()))
                if computes and number < even:
                    step_seconds.append(time.monotonic() - begin)
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


def hook() -> dict[str, object]:
    """DDP with a communication hook, recorded every fourth step; rank 0 asks for a trace of three steps in a row."""
    model = hooked([])
    trigger = overlapscope.Trigger(for_seconds=1, steps=3, signal=signal.SIGUSR2)
    written, end = torch.zeros(1), time.monotonic() + LIMIT_SECONDS
    with profiled(model, "events", trigger=trigger, events_every=4) as scope:
        for number in itertools.count():
            with scope.step():
                model(batch(number)).square().mean().backward()
                model.zero_grad()
            if number == 4 and RANK == 0:
                os.kill(os.getpid(), signal.SIGUSR2)
            written[0] = bool(scope.trigger and scope.trigger.written) or time.monotonic() > end
            dist.all_reduce(written, dist.ReduceOp.MIN)
            if written:
                break
    return {
        "written": [str(Path(file)) for file in scope.trigger.written],
        "failures": scope.guard.failures,
        "bucket_bytes": bucket_bytes(model),
    }


if __name__ == "__main__":
    main(globals())
