"""One rank of a real training, for the tests of capture.

    python -m tests.integration.jobs.training SCENARIO RANK WORLD_SIZE STORE RUN MODE OUT

Writes what the test asks about to OUT, as JSON.
"""

import fcntl
import hashlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

import overlapscope

SCENARIO, RANK, WORLD, STORE, RUN, MODE, OUT = sys.argv[1:8]
RANK, WORLD = int(RANK), int(WORLD)


def mlp(width: int = 64, layers: int = 6) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())))


def batch(step: int, width: int = 64) -> torch.Tensor:
    return torch.randn(16, width, generator=torch.Generator().manual_seed(1000 * step + RANK))


def digest(model: nn.Module) -> str:
    parts = hashlib.sha256()
    for parameter in model.parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        parts.update(own.detach().numpy().tobytes())
    return parts.hexdigest()


def profiled(model: nn.Module | None, mode: str = MODE, **options: object):
    if mode == "without":
        return nullcontext()
    run = RUN if mode == MODE else f"{RUN}-{mode}"
    return overlapscope.profile(run, model=model, mode=mode, **{"warmup": 2, "wait_seconds": 10, **options})


def step_of(scope: object):
    return scope.step() if scope is not None else nullcontext()


def train(scope: object, model: nn.Module, batches: Iterable[torch.Tensor], called: Any = None) -> None:
    """Take a step of SGD on each batch; `called` is the compiled model, where there is one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called = model if called is None else called
    for each in batches:
        with step_of(scope):
            called(each).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def sharded(*, width: int = 64, **options: object) -> nn.Module:
    """Return two layers under FSDP2, sharded each on its own."""
    from torch.distributed.fsdp import fully_shard

    model = mlp(width, layers=2)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def bucket_bytes(model: nn.parallel.DistributedDataParallel) -> list[int]:
    reported = model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")  # rebuilt in the second step
    return [int(part) for part in reported.split(",") if part.strip()]


def ddp(*, accumulates: bool = True, mode: str = MODE, **options: object) -> dict[str, object]:
    """DDP with several buckets and accumulation over two batches."""
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=0.03, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with profiled(model, mode, measure_overhead=False) as scope:
        for number in range(8):
            with step_of(scope):
                if accumulates:
                    with model.no_sync():
                        model(batch(2 * number)).square().mean().backward()
                model(batch(2 * number + 1)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return {"digest": digest(model), "bucket_bytes": bucket_bytes(model)}


def bits() -> dict[str, object]:
    """The same training without us and in both modes, for three kinds of DDP."""
    kinds = {
        "copied": {},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True, "accumulates": False},
    }
    return {
        kind: {mode: ddp(mode=mode, **options)["digest"] for mode in ("without", "trace", "events", "without")}
        for kind, options in kinds.items()
    }


def hooked(calls: list[int]) -> nn.parallel.DistributedDataParallel:
    """Return DDP with the user's own communication hook, which sends the bucket, and in the callback of that once more.

    One bucket: callbacks run on the two threads of gloo that make the transfers. `calls` gets its number at each call.
    """
    model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=1)

    def send_again(future: torch.futures.Future[Any]) -> torch.Tensor:
        time.sleep(0.005)
        (sent,) = future.value()
        dist.all_reduce(sent, async_op=True).wait()
        return sent.div_(WORLD)

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        calls.append(bucket.index())
        work = dist.all_reduce(bucket.buffer().div_(WORLD), async_op=True)
        return work.get_future().then(send_again)

    model.register_comm_hook(None, hook)
    return model


def ddp_hook(steps: int = 6, **options: object) -> dict[str, object]:
    calls: list[int] = []
    model = hooked(calls)
    with profiled(model, measure_overhead=False, **options) as scope:
        for number in range(steps):
            with step_of(scope):
                model(batch(number)).square().mean().backward()
                model.zero_grad()
    return {"hook_calls": len(calls), "bucket_bytes": bucket_bytes(model)}


def ddp_hook_at_once() -> dict[str, object]:
    return ddp_hook(warmup=0)


def ddp_hook_of_one_step() -> dict[str, object]:
    return ddp_hook(steps=1, warmup=0)


def fsdp() -> dict[str, object]:
    """FSDP2 over gloo."""
    from torch.distributed.device_mesh import init_device_mesh

    model = sharded(mesh=init_device_mesh("cpu", (WORLD,)))
    with profiled(model, measure_overhead=False) as scope:
        train(scope, model, map(batch, range(5)))
    return {}


def plain() -> dict[str, object]:
    """Plain collectives, waiting and not, on two groups, with user regions."""
    pair = dist.new_group(list(range(WORLD)), group_desc="pair")
    value = torch.ones(1000)
    with profiled(None, measure_overhead=False) as scope:
        for _ in range(5):
            with step_of(scope):
                with scope.region("data"):
                    value = value + 0
                dist.all_reduce(value)
                work = dist.all_reduce(value, group=pair, async_op=True)
                out = torch.empty(WORLD * 10)
                dist.all_gather_into_tensor(out, torch.ones(10))
                work.wait()
                dist.broadcast(value, src=0)
                with scope.comm("own transport"):
                    value.sum()
    return {}


def uneven_pairs() -> dict[str, object]:
    """On one of two groups ranks 0 and 1 exchange something that rank 2 has no part in; on a third ranks 1 and 2 do."""
    pairs = dist.new_group(list(range(WORLD)), group_desc="pairs")
    last = dist.new_group([1, 2], group_desc="last")
    value = torch.ones(1000)
    with profiled(None, warmup=0, measure_overhead=False) as scope:
        for _ in range(3):
            with step_of(scope):
                dist.all_reduce(value)
                if RANK == 0:
                    dist.send(value, 1, group=pairs)
                elif RANK == 1:
                    dist.recv(value, 0, group=pairs)
                    dist.send(value, 2, group=last)
                else:
                    dist.recv(value, group=last)  # from whom is not said
                dist.all_reduce(value, group=pairs)
    return {}


def late_buffers() -> dict[str, object]:
    """DDP sends its buffers at the begin of forward, for which rank 1 waits in C++; rank 0 comes 60 ms late."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiled(model, measure_overhead=False) as scope:
        for step in range(6):
            with step_of(scope):
                if RANK == 0:
                    time.sleep(0.06)
                model(batch(step)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return {}


def own_transport() -> dict[str, object]:
    """Communication that torch does not know of: computation before it, and under it a thread that does not count."""
    value = torch.randn(200, 200)
    with profiled(None, warmup=1, measure_overhead=False) as scope:
        for _ in range(4):
            with step_of(scope):
                for _ in range(20):
                    value = (value @ value).tanh()
                with scope.comm("own transport"):
                    time.sleep(0.05)
                    value.sum()
    return {}


def failing() -> dict[str, object]:
    """The user's own exception, in the middle of a step."""
    model = mlp()
    try:
        with profiled(model, warmup=1) as scope:
            for number in range(6):
                with scope.step():
                    model(batch(number)).mean().backward()
                    if number == 4:
                        raise ZeroDivisionError("the user's own")  # noqa: TRY301 - this is what users do
    except ZeroDivisionError as error:
        return {"error": str(error), "notes": len(getattr(error, "__notes__", []))}
    return {}


def killed() -> dict[str, object]:
    """The last rank is killed in the middle."""
    model = nn.parallel.DistributedDataParallel(mlp())
    try:
        with profiled(model, warmup=1, measure_overhead=False, wait_seconds=5) as scope:
            for number in range(8):
                if number == 6 and RANK == WORLD - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                with scope.step():
                    model(batch(number)).mean().backward()
    except RuntimeError as error:
        return {"error": str(error)[:60]}
    return {}


def terminated() -> dict[str, object]:
    """SIGTERM in the middle: the run is written, then the process ends as it would have."""
    model = mlp()
    with profiled(model, warmup=1, measure_overhead=False) as scope:
        for number in range(6):
            with scope.step():
                model(batch(number)).mean().backward()
                if number == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def handles_its_end() -> dict[str, object]:
    """SIGTERM where the job handles it itself: it goes on for two steps, then ends in its own way."""
    signals = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    model = mlp()
    after = 0
    with profiled(model, warmup=1, measure_overhead=True) as scope:
        for number in range(12):
            with scope.step():
                model(batch(number)).mean().backward()
                if number == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
            after += bool(signals)
            if after == 3:
                break
    return {"signals": signals, "after": after}


def hanging() -> dict[str, object]:
    """Rank 0 waits in a collective that the other never enters, until it is terminated."""
    model = mlp()
    with Path(OUT).with_name("alive").open("a") as alive:
        if RANK == 0:
            fcntl.flock(alive, fcntl.LOCK_EX)
        dist.barrier()
        with profiled(model, warmup=1, steps=2, measure_overhead=False) as scope:
            for number in range(4):
                with scope.step():
                    model(batch(number)).mean().backward()
            if RANK == 0:
                Path(OUT).with_suffix(".waiting").touch()
                with scope.step():
                    dist.all_reduce(torch.ones(1))
            else:
                fcntl.flock(alive, fcntl.LOCK_EX)  # until rank 0 has ended
    return {}


def _without_core_ns() -> int:
    """Return how long this thread was ready to run without a core, by Linux; elsewhere 0."""
    known = Path("/proc/thread-self/schedstat")
    return int(known.read_text().split()[1]) if known.exists() else 0


def hidden() -> dict[str, object]:
    """A collective under way during backward, waited for after much more computation."""

    class Sending(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            values = torch.ones(1 << 20)
            begin = time.monotonic_ns()
            works.append(dist.all_reduce(values, async_op=True))
            stood_ns.append(time.monotonic_ns() - begin)
            return gradient

    works: list[dist.Work] = []
    stood_ns: list[int] = []
    """How long the job's own clock says that the training thread stood in the call and in the wait, by step; and how
    long, by the kernel's, it waited for a core meanwhile or between operations."""
    weight = torch.randn(700, 700, requires_grad=True)
    with profiled(None, warmup=1, measure_overhead=False) as scope:
        for _ in range(4):
            with scope.step():
                without_core = _without_core_ns()
                value = weight
                for _ in range(24):
                    value = value @ weight * 0.01
                Sending.apply(value).sum().backward()
                begin = time.monotonic_ns()
                works.pop().wait()
                stood_ns[-1] += time.monotonic_ns() - begin
                stood_ns[-1] += _without_core_ns() - without_core
    return {"stood_ns": stood_ns}


def amounts() -> dict[str, object]:
    """Steps that say what they process, unequally on each rank, beside the job's own timers outside and inside them."""
    model = nn.parallel.DistributedDataParallel(mlp())
    timed = []
    with profiled(model, measure_overhead=False) as scope:
        for number in range(7):
            tokens, times = 1000 * (RANK + 1) + number, [time.monotonic_ns()]
            with scope.step(tokens=tokens, samples=np.int64(16), flops=2.5e9):
                times.append(time.monotonic_ns())
                model(batch(number)).square().mean().backward()
                time.sleep(0.04)
                times.append(time.monotonic_ns())
            timed.append((number, tokens, *times, time.monotonic_ns()))
            time.sleep(0.02)
    return {"timed": timed}


def bad_amounts() -> dict[str, object]:
    """Amounts that are none; warnings are errors in the job."""
    warnings.simplefilter("error")
    model = mlp()
    bad = [-1, float("nan"), float("inf"), "many", True, torch.tensor(5.0), 10**400, [1]]
    with profiled(model, warmup=0, measure_overhead=False, steps=len(bad)) as scope:
        for each in bad:
            with scope.step(tokens=each, samples=4):
                model(batch(0)).square().mean().backward()
    return {"failures": scope.recorded()["failures"]}


def store_timeout() -> dict[str, object]:
    """What the job's own store allows before and after a profile."""
    store = dist.distributed_c10d._get_default_store()
    before = store.timeout.total_seconds()
    with profiled(None, warmup=0) as scope, scope.step():
        dist.all_reduce(torch.ones(1))
    return {"before": before, "after": store.timeout.total_seconds()}


def decorated() -> dict[str, object]:
    """The profile as a decorator of a step function, closed at the interpreter's exit."""
    model = mlp()

    @overlapscope.profile(RUN, model=model, mode=MODE, warmup=1, measure_overhead=False)
    def one_step(number: int) -> float:
        loss = model(batch(number)).square().mean()
        loss.backward()
        return loss.item()

    return {"losses": [one_step(number) for number in range(6)]}


def late_groups() -> dict[str, object]:
    """A job that makes its process groups inside the profile; warnings are errors in it."""
    warnings.simplefilter("error")
    with profiled(None, warmup=0, steps=2) as scope:
        join()
        for _ in range(3):
            with scope.step():
                dist.all_reduce(torch.ones(1000))
    return {}


def sampled() -> dict[str, object]:
    """Steps that do not bear the cost: the ranks agree which are recorded; rank 1 answers late."""
    from overlapscope.capture import sampling, session

    session.AHEAD_SECONDS = 0.5
    needed = sampling.needed_every
    session.needed_every = lambda cost, step: (time.sleep(0.2 * RANK), needed(cost, step), 3 + 4 * RANK)[2]
    tensor = torch.zeros(8)
    with overlapscope.profile(RUN, mode="events", warmup=1, wait_seconds=10) as scope:
        for _ in range(500):
            with scope.step():
                dist.all_reduce(tensor)
                time.sleep(0.003)
    return {"sampled": [[each.since_step, each.every] for each in scope.steps.sampled]}


def join() -> None:
    dist.init_process_group("gloo", store=dist.FileStore(STORE, WORLD), rank=RANK, world_size=WORLD)


def main(scenarios: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if WORLD > 1 and SCENARIO != "late_groups":
        join()
    result = scenarios[SCENARIO]()
    Path(OUT).write_text(json.dumps(result), encoding="utf-8")
    if WORLD > 1 and SCENARIO != "killed":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(globals())
