"""One rank of a training whose trigger may record; called as `tests.integration.jobs.training` is."""

import itertools
import os
import signal
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import overlapscope
from tests.integration.jobs.training import RANK, batch, bucket_bytes, digest, hooked, main, mlp, profiled

LIMIT_SECONDS = 60
STEP_SECONDS = 0.02
EVEN_STEP_SECONDS = 0.1
"""So long that what its host computes leaves time to sleep, also on slow cores."""
SLOWER = 1.3
MUCH_SLOWER = 4.0
"""Also where other tests keep the cores busy."""


def trained(
    even_seconds: float,
    slow_seconds: float,
    for_seconds: float,
    steps_each: float,
    slower: float = SLOWER,
) -> dict[str, object]:
    """Take even steps, then steps in which rank 1 takes `slower` times as long.

    A step sleeps until it has taken its time, as the host of a device does that it waits for; then ranks reduce their
    loss, so that none stays ahead of the others for what it was late once.
    """
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trigger = overlapscope.Trigger(slower=1.15, for_seconds=for_seconds, steps=2)
    even, slow = round(even_seconds / steps_each), round(slow_seconds / steps_each / slower)
    with profiled(model, "events", trigger=trigger, events_every=1) as scope:
        for number in range(even + slow):
            with scope.step():
                until = time.monotonic() + steps_each * (slower if RANK == 1 and number >= even else 1.0)
                loss = model(batch(number)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(max(0.0, until - time.monotonic()))
                dist.all_reduce(loss.detach())
    return {
        "digest": digest(model),
        "written": [str(Path(file)) for file in scope.trigger.written],
        "slow_from_step": even,
        "failures": scope.guard.failures,
    }


def even() -> dict[str, object]:
    """Ten minutes without a disturbance."""
    return trained(600, 0, 10, EVEN_STEP_SECONDS)


def slowed() -> dict[str, object]:
    """A minute with a slow rank, after one without."""
    return trained(60, 60, 10, EVEN_STEP_SECONDS)


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
