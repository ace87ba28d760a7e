"""One rank of a training that times its own exposed communication; called as `tests.integration.jobs.training` is.

Of each job both modes are asked for what the job's own timer says: how long its training thread stood, in calls and in
waits, while a transfer was under way.
"""

import time
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

from overlapscope.timeline.intervals import intersection, length, union
from tests.integration.jobs.training import MODE, WORLD, digest, main, profiled, step_of

STEPS = 8
ALL_REDUCE = dist.all_reduce
SIZE = 1 << 22
"""Elements of the gradients that are sent by hand: some tens of milliseconds over gloo."""


class Timer:
    """Where, in each step, the thread stood in what the timer surrounds, and when transfers were under way.

    On busy cores a thread goes on long after the transfer that it waited for: exposed is what both are.
    """

    def __init__(self) -> None:
        self.stood: list[list[tuple[int, int]]] = []
        self.flights: list[list[list[int]]] = []

    def step(self) -> None:
        """Begin a step."""
        self.stood.append([])
        self.flights.append([])

    @contextmanager
    def __call__(self):
        begin = time.monotonic_ns()
        yield
        self.stood[-1].append((begin, time.monotonic_ns()))

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Send a tensor, and note when the transfer is under way."""
        flight = [time.monotonic_ns(), 0]
        self.flights[-1].append(flight)
        sent = ALL_REDUCE(tensor, async_op=True)
        sent.get_future().add_done_callback(lambda _: flight.__setitem__(1, time.monotonic_ns()))
        return sent

    def exposed_ns(self) -> list[int]:
        """Return for each step how long the thread stood while a transfer was under way, or stood at all."""
        found = []
        for stood, flights in zip(self.stood, self.flights, strict=True):
            both = union(_arrays(stood))
            found.append(length(intersection(both, union(_arrays(flights))) if flights else both))
        return found


def _arrays(pairs: Any) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def work(seconds: float) -> None:
    """Compute for so long on the calling thread."""
    value = torch.randn(200, 200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = (value @ value).tanh()


def timed(model: nn.Module | None, trained: nn.Module, step: Any, mode: str) -> dict[str, object]:
    """Take the steps under a profile of `model`, and return what the timer says and the bits that are trained."""
    timer = Timer()
    with profiled(model, mode, measure_overhead=False, steps=4, warmup=2) as scope:
        for number in range(STEPS):
            timer.step()
            with step_of(scope):
                step(number, timer)
    offset = time.time_ns() - time.monotonic_ns()
    stood = [[(begin + offset, end + offset) for begin, end in step] for step in timer.stood]
    return {"exposed_ns": timer.exposed_ns(), "stood_ns": stood, "digest": digest(trained)}


def bits() -> dict[str, object]:
    """Each job without us, and in both modes."""
    jobs = (asynchronous, clipping, power_sgd, fsdp2)
    return {job.__name__: [job(mode)["digest"] for mode in ("without", "events", "trace")] for job in jobs}


def asynchronous(mode: str = MODE) -> dict[str, object]:
    """An all-reduce by hand under computation that is in no phase."""
    gradient = torch.linspace(1, 2, SIZE)
    trained = nn.ParameterList([nn.Parameter(gradient, requires_grad=False)])

    def step(number: int, timer: Timer) -> None:
        work(0.02)
        with timer():
            sent = timer.all_reduce(gradient)
        work(0.01)
        with timer():
            sent.wait()
        gradient.mul_(0.9 / WORLD)

    return timed(None, trained, step, mode)


def clipping(mode: str = MODE) -> dict[str, object]:
    """Gradients are clipped, sent and averaged between backward and the optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(1500, 1500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(number: int, timer: Timer) -> None:
        model(torch.randn(64, 1500)).square().mean().backward()
        with timer():
            sent = timer.all_reduce(model.weight.grad)
        nn.utils.clip_grad_norm_([model.bias], 1.0)
        work(0.01)
        with timer():
            sent.wait()
        model.weight.grad /= WORLD
        optimizer.step()
        optimizer.zero_grad()

    return timed(model, model, step, mode)


def power_sgd(mode: str = MODE) -> dict[str, object]:
    """A communication hook of several rounds on one bucket: all of it after the last gradient."""
    torch.manual_seed(0)
    width = 1200
    model = nn.parallel.DistributedDataParallel(nn.Linear(width, width, bias=False), bucket_cap_mb=100)
    state = power.PowerSGDState(None, matrix_approximation_rank=400, start_powerSGD_iter=2, warm_start=False)
    model.register_comm_hook(state, power.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    running: list[Timer] = []

    def step(number: int, timer: Timer) -> None:
        running[:] = [timer]
        loss = model(torch.randn(64, width)).square().mean()
        with timer():  # the flights lie behind the only gradient
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.all_reduce = lambda tensor, **_: running[0].all_reduce(tensor)
    try:
        return timed(model, model, step, mode)
    finally:
        dist.all_reduce = ALL_REDUCE


def fsdp2(mode: str = MODE) -> dict[str, object]:
    """FSDP2 waits in its own calls and waits: the outermost one counts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1200, 1200, bias=False) for _ in range(4)))
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    running: list[Timer] = []
    depth = [0]

    def standing(original: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if depth[0] or not running:
                return original(*args, **kwargs)
            depth[0] += 1
            try:
                with running[0]():
                    return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        return called

    def step(number: int, timer: Timer) -> None:
        running[:] = [timer]
        model(torch.randn(64, 1200)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        running.clear()

    names = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single")
    places = [*((dist, name) for name in names if hasattr(dist, name)), (dist.Work, "wait")]
    originals = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, standing(getattr(owner, name)))
    try:
        return timed(model, model, step, mode)
    finally:
        for (owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


if __name__ == "__main__":
    main(globals())
