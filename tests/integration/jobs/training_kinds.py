"""One rank of a real training of another kind; called as `tests.integration.jobs.training` is.

Kinds of models, and of ends, that are not a plain data-parallel loop.
"""

import os
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

import overlapscope
from tests.integration.jobs.training import (
    MODE,
    RANK,
    RUN,
    WORLD,
    batch,
    bucket_bytes,
    ddp,
    digest,
    main,
    mlp,
    profiled,
    sharded,
    step_of,
    train,
)  # fmt: skip

MODES = ("without", "events", "trace")
"""One job trains without us and in both modes: starting processes costs more than training here."""


def data_parallel(model: nn.Module | None = None, **options: object) -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(model or mlp(), bucket_cap_mb=0.03, **options)


def compiled(backend: str, mode: str) -> dict[str, object]:
    torch._dynamo.reset()
    width = 300  # three buckets of 1 MiB: the compiler wants none smaller than the first
    model = nn.parallel.DistributedDataParallel(mlp(width), bucket_cap_mb=1)
    called = torch.compile(model, backend=backend)
    with profiled(model, mode, measure_overhead=False, steps=3) as scope:
        train(scope, model, (batch(number, width) for number in range(6)), called)
    return {"digest": digest(model), "bucket_bytes": bucket_bytes(model)}


def compiled_eager() -> dict[str, object]:
    """torch.compile's splitting of DDP graphs, without and with us."""
    return {mode: compiled("eager", mode) for mode in MODES}


def compiled_inductor() -> dict[str, object]:
    return {mode: compiled("inductor", mode) for mode in MODES}


def joined(mode: str) -> dict[str, object]:
    """Uneven inputs: this rank has two batches more than the one before it."""
    model = data_parallel()
    with profiled(model, mode, measure_overhead=False, steps=3) as scope, Join([model]):
        train(scope, model, map(batch, range(6 + 2 * RANK)))
    return {"digest": digest(model)}


def uneven() -> dict[str, object]:
    return {mode: joined(mode) for mode in MODES}


def autocast(mode: str) -> str:
    model = data_parallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiled(model, mode, measure_overhead=False, steps=3) as scope:
        for number in range(6):
            with step_of(scope):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(batch(number)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return digest(model)


def mixed_precision() -> dict[str, object]:
    """Autocast to bfloat16, under which DDP still reduces float32."""
    return {mode: autocast(mode) for mode in MODES}


def fsdp_mixed() -> dict[str, object]:
    return {mode: fsdp_of(mode) for mode in MODES[1:]}


def fsdp_of(mode: str) -> None:
    """FSDP2 that gathers bfloat16 and reduces float32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(mesh=init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp_shard",)), mp_policy=policy)
    with profiled(model, mode, measure_overhead=False, steps=3) as scope:
        train(scope, model, map(batch, range(6)))


def fsdp_timed() -> dict[str, object]:
    """FSDP2 over gloo in both modes, beside the job's own timer: how long its thread is in collectives that block."""
    from torch.distributed.device_mesh import init_device_mesh

    blocked_ns = [0]

    def timed(call: Any) -> Any:
        def measured(*arguments: Any, **options: Any) -> Any:
            begin = time.monotonic_ns()
            under_way = call(*arguments, **options)
            blocked_ns[0] += time.monotonic_ns() - begin
            assert under_way is None
            return under_way

        return measured

    # FSDP2 of different versions of torch calls these by different names.
    for name in ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            setattr(dist, name, timed(getattr(dist, name)))
    model = sharded(width=1024, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, object] = {}
    for mode in MODES[1:]:
        steps = []
        with profiled(model, mode, measure_overhead=False, steps=4) as scope:
            for number in range(7):
                before = blocked_ns[0]
                with scope.step():
                    model(batch(number, 1024)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                steps.append(blocked_ns[0] - before)
        found[mode] = steps
    return found


def static_graph() -> dict[str, object]:
    return ddp(static_graph=True, accumulates=False)


def decorated_ddp() -> dict[str, object]:
    """The profile as a decorator; the job takes its groups down before it ends."""
    model = data_parallel()

    @overlapscope.profile(RUN, model=model, mode=MODE, warmup=2, measure_overhead=False, wait_seconds=20)
    def one_step(number: int) -> None:
        model(batch(number)).square().mean().backward()
        model.zero_grad()

    for number in range(6):
        one_step(number)
    return {"bucket_bytes": bucket_bytes(model)}


def crossing() -> dict[str, object]:
    groups = [dist.new_group(list(range(WORLD)), group_desc=name) for name in ("first", "second")]
    sums = {mode: cross(groups, mode) for mode in MODES}
    return {"sums": sums, "groups": [group.group_name for group in groups]}


def cross(groups: list[dist.ProcessGroup], mode: str) -> list[list[float]]:
    """Collectives of two groups under way at once, waited for in the other order."""
    sums = []
    with profiled(None, mode, measure_overhead=False, steps=3) as scope:
        for number in range(6):
            with step_of(scope):
                values = [torch.full((1000 * (at + 1),), float(RANK + number)) for at in range(2)]
                works = [
                    dist.all_reduce(value, group=group, async_op=True)
                    for value, group in zip(values, groups, strict=True)
                ]
                for work in reversed(works):
                    work.wait()
                sums.append([value.unique().item() for value in values])
    return sums


def tensor_parallel() -> dict[str, object]:
    """Two layers split over the ranks: all their communication is DTensor's, by functional collectives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    model = parallelize_module(mlp(layers=2), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with profiled(model, measure_overhead=False) as scope:
        for number in range(6):
            with step_of(scope):
                model(torch.full((16, 64), float(number))).square().mean().backward()
                model.zero_grad()
    return {}


class DoneWork(dist.Work):
    """What a group's method returns where it has waited itself."""

    def wait(self, timeout: object = None) -> bool:
        return True


class PythonGroup(dist.ProcessGroup):
    """A process group written in Python, as torchft's are: its all-reduce passes no dispatcher."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's own name
        return "python_group"

    def allreduce(self, tensors: list[torch.Tensor], options: object = None) -> dist.Work:
        for tensor in tensors:
            tensor.mul_(WORLD)
        return DoneWork()


def python_group() -> dict[str, object]:
    """A group that is written in Python beside one that is not, and one that rank 1 is no member of."""
    dist.Backend.register_backend("python_group", lambda _, rank, size, __: PythonGroup(rank, size), devices=["cpu"])
    group = dist.new_group(backend="python_group")
    dist.new_group([0])  # torch keeps a number for it where a rank is no member
    value = torch.ones(8)
    with profiled(None, warmup=0, measure_overhead=False) as scope:
        for _ in range(3):
            with scope.step():
                dist.all_reduce(value, group=group)
                dist.all_reduce(value)
    return {"sum": float(value[0])}


def ends_early() -> dict[str, object]:
    """The last rank is done after half the steps, and leaves without a word to the others."""
    model = mlp()
    done = RANK == WORLD - 1
    with profiled(model, warmup=1, measure_overhead=False, wait_seconds=20) as scope:
        for number in range(4 if done else 8):
            with scope.step() if scope is not None else nullcontext():
                model(batch(number)).mean().backward()
    if done:
        sys.stdout.flush()
        os._exit(0)
    return {}


if __name__ == "__main__":
    main(globals())
