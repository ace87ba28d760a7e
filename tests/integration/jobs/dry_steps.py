"""Steps of every kind of parallelism: `build` functions that a dry run takes, and that train for real over gloo."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from overlapscope.dry_run.build_function import find_function
from tests.integration.structure.seeded import EXAMPLES

Step = Callable[[], None]
WIDTH = 64


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def blocks(count: int = 3) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(Block() for _ in range(count)))


def batch(device: torch.device, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(8, width, device=device)


def trained(
    model: nn.Module, x: torch.Tensor, *, micro: int = 1, between: Callable[[int], object] = nullcontext
) -> Step:
    """Return a step of AdamW after `micro` backwards, each inside what `between(number)` returns."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for number in range(micro):
            with between(number):
                model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- DDP ---------------------------------------------------------------------------------------------------------------


def replicated(model: nn.Module | None = None, **options: object) -> DistributedDataParallel:
    return DistributedDataParallel(model or blocks(), **{"bucket_cap_mb": 0.1, **options})


def ddp(device: torch.device) -> Step:
    return trained(replicated(), batch(device))


def ddp_static_graph(device: torch.device) -> Step:
    return trained(replicated(static_graph=True), batch(device))


def ddp_views(device: torch.device) -> Step:
    return trained(replicated(gradient_as_bucket_view=True), batch(device))


def ddp_unused(device: torch.device) -> Step:
    model = blocks()
    model[1].spare = nn.Linear(WIDTH, WIDTH)
    return trained(replicated(model, find_unused_parameters=True), batch(device))


def ddp_buffers(device: torch.device) -> Step:
    return trained(replicated(nn.Sequential(Block(), nn.BatchNorm1d(WIDTH), Block())), batch(device))


def ddp_accumulates(device: torch.device) -> Step:
    return trained(replicated(), batch(device), micro=2)


def ddp_no_sync(device: torch.device) -> Step:
    model = replicated()
    last = nullcontext()
    return trained(model, batch(device), micro=3, between=lambda number: model.no_sync() if number < 2 else last)


def ddp_fp16(device: torch.device) -> Step:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = replicated()
    model.register_comm_hook(None, fp16_compress_hook)
    return trained(model, batch(device))


def ddp_power_sgd(device: torch.device) -> Step:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = replicated(bucket_cap_mb=25)  # over gloo the hooks of several buckets run in no fixed order
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model, batch(device))


# -- FSDP2 -------------------------------------------------------------------------------------------------------------


def sharded(model: nn.Module, mesh: DeviceMesh, **options: object) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp(device: torch.device) -> Step:
    return trained(sharded(blocks(), init_device_mesh(device.type, (dist.get_world_size(),))), batch(device))


def fsdp_no_reshard(device: torch.device) -> Step:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    return trained(sharded(blocks(), mesh, reshard_after_forward=False), batch(device))


def fsdp_mixed_precision(device: torch.device) -> Step:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return trained(sharded(blocks(), mesh, mp_policy=policy), batch(device))


def fsdp_prefetch(device: torch.device) -> Step:
    model = sharded(blocks(4), init_device_mesh(device.type, (dist.get_world_size(),)))
    for before, after in pairwise(model):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    return trained(model, batch(device))


def fsdp_accumulates(device: torch.device) -> Step:
    model = sharded(blocks(), init_device_mesh(device.type, (dist.get_world_size(),)))

    def between(number: int) -> nullcontext:
        model.set_requires_gradient_sync(number == 1)
        return nullcontext()

    return trained(model, batch(device), micro=2, between=between)


def fsdp_checkpointed(device: torch.device) -> Step:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(*(checkpoint_wrapper(block) for block in blocks()))
    return trained(sharded(model, init_device_mesh(device.type, (dist.get_world_size(),))), batch(device))


def hsdp(device: torch.device) -> Step:
    mesh = init_device_mesh(device.type, (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return trained(sharded(blocks(), mesh), batch(device))


# -- tensor and two-dimensional parallelism ----------------------------------------------------------------------------


def split(model: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model:
        plan: dict[str, object] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "up": ColwiseParallel(input_layouts=Shard(0)),
                "down": RowwiseParallel(output_layouts=Shard(0)),
            }
        parallelize_module(block, mesh, plan, src_data_rank=None)
    return model


def tensor(device: torch.device) -> Step:
    return trained(split(blocks(), init_device_mesh(device.type, (dist.get_world_size(),))), batch(device))


def tensor_sequence(device: torch.device) -> Step:
    return trained(
        split(blocks(), init_device_mesh(device.type, (dist.get_world_size(),)), sequence=True), batch(device)
    )


def fsdp_tensor(device: torch.device) -> Step:
    mesh = init_device_mesh(device.type, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    return trained(sharded(split(blocks(), mesh["tp"]), mesh["dp"]), batch(device))


# -- pipelines ---------------------------------------------------------------------------------------------------------


def passed(micro: torch.Tensor, *, first: bool) -> dict[str, tuple[torch.Tensor]]:
    """Return what a stage is given and returns: stated, as in a dry run no other stage sends its shapes."""
    given = micro.clone().requires_grad_(not first)
    return {"input_args": (given,), "output_args": (micro.clone().requires_grad_(),)}


def pipeline(device: torch.device) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    x = batch(device)
    model = blocks(1).to(device)
    stage = PipelineStage(model, rank, world, device, **passed(x[:2], first=rank == 0))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        given = (x,) if rank == 0 else ()
        schedule.step(*given, **({"target": x} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline_interleaved(device: torch.device) -> Step:
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    x = batch(device)
    models = [blocks(1).to(device) for _ in range(2)]
    stages = [
        PipelineStage(model, rank + at * world, 2 * world, device, **passed(x[:2], first=rank + at == 0))
        for at, model in enumerate(models)
    ]
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.AdamW([each for model in models for each in model.parameters()])

    def step() -> None:
        given = (x,) if rank == 0 else ()
        schedule.step(*given, **({"target": x} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


# -- context parallelism (torch's own does not run on the CPU), experts, calls by hand ---------------------------------


def ring(device: torch.device) -> Step:
    """A ring of attention by hand: keys and values go round, each block's attention while the next is on its way."""
    torch.manual_seed(7)
    projection = nn.Linear(WIDTH, 3 * WIDTH).to(device)
    optimizer = torch.optim.AdamW(projection.parameters())
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(2, 16, WIDTH, device=device)

    def step() -> None:
        q, k, v = projection(x).chunk(3, -1)
        total, moving = 0.0, torch.cat([k, v], -1).detach().contiguous()
        for turn in range(world):
            arriving = torch.empty_like(moving)
            works = []
            if turn < world - 1:
                works = dist.batch_isend_irecv([
                    dist.P2POp(dist.isend, moving, (rank + 1) % world),
                    dist.P2POp(dist.irecv, arriving, (rank - 1) % world),
                ])  # fmt: skip
            keys, values = moving.chunk(2, -1)
            total = total + nn.functional.scaled_dot_product_attention(q, keys, values).square().mean()
            for work in works:
                work.wait()
            moving = arriving if works else moving
        total.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def experts(device: torch.device) -> Step:
    """One expert a rank and a fixed capacity: every rank sends as many tokens to each expert."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    torch.manual_seed(7)
    gate, expert = nn.Linear(WIDTH, dist.get_world_size()).to(device), Block().to(device)
    optimizer = torch.optim.AdamW([*gate.parameters(), *expert.parameters()])
    x = torch.randn(8 * dist.get_world_size(), WIDTH, device=device)

    def step() -> None:
        scores, order = gate(x).softmax(-1).amax(-1).sort()
        tokens = x[order] * scores.unsqueeze(-1)
        there = all_to_all_single_autograd(tokens, None, None, dist.group.WORLD)
        back = all_to_all_single_autograd(expert(there), None, None, dist.group.WORLD)
        (back.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def functional(device: torch.device) -> Step:
    from torch.distributed import _functional_collectives as functions

    model = Block().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, world = batch(device), dist.get_world_size()

    def step() -> None:
        model(x).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad = functions.all_reduce(parameter.grad, "sum", dist.group.WORLD) / world
        with torch.no_grad():
            whole = functions.all_gather_tensor(x, 0, dist.group.WORLD)
            functions.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD).sum()
            functions.broadcast(x, 0, dist.group.WORLD).sum()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_hand(device: torch.device) -> Step:
    """Calls of every kind: waited for at once, later, in one batch, on a group of some ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = Block().to(device)
    pairs = [dist.new_group([at, at + 1]) for at in range(0, world, 2)]
    pair = pairs[rank // 2]
    x = batch(device)

    def step() -> None:
        model(x).square().mean().backward()
        works = [dist.all_reduce(each.grad, async_op=True) for each in model.parameters()]
        flat = torch.zeros(8, WIDTH, device=device)
        dist.all_reduce(flat, group=pair)
        for work in works:
            work.wait()
        dist.broadcast(flat, 0)
        parts = [torch.empty_like(flat) for _ in range(world)]
        dist.all_gather(parts, flat)
        whole = torch.empty(8 * world, WIDTH, device=device)
        dist.all_gather_into_tensor(whole, flat)
        dist.reduce_scatter_tensor(flat, whole)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.reduce(flat, 0)
        dist.gather(flat, parts if rank == 0 else None, 0)
        dist.scatter(flat, parts if rank == 0 else None, 0)
        if rank % 2:
            dist.recv(flat, rank - 1)
        else:
            dist.send(flat, rank + 1)
        ops = [
            dist.P2POp(dist.isend, flat, (rank + 1) % world),
            dist.P2POp(dist.irecv, torch.empty_like(flat), (rank - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        dist.barrier()

    return step


def coalesced(device: torch.device) -> Step:
    from torch.distributed.distributed_c10d import _coalescing_manager

    world = dist.get_world_size()
    small, large = batch(device), batch(device, 2 * WIDTH)

    def step() -> None:
        with _coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(small)
            dist.all_reduce(large)
        manager.wait()
        with _coalescing_manager(async_ops=True) as manager:
            for each in (small, large):
                dist.all_gather_into_tensor(torch.empty(8 * world, each.shape[1], device=device), each)
        manager.wait()

    return step


def build_of(kind: str) -> Callable[[torch.device], Step]:
    """Return the `build` function of a kind: of one here, or of an example of the seeded changes, such as `conv.py`."""
    if kind.endswith(".py"):
        return find_function(f"{EXAMPLES / kind}:build")
    return globals()[kind]


KINDS = (
    ddp, ddp_static_graph, ddp_views, ddp_unused, ddp_buffers, ddp_accumulates, ddp_no_sync, ddp_fp16, ddp_power_sgd,
    fsdp, fsdp_no_reshard, fsdp_mixed_precision, fsdp_prefetch, fsdp_accumulates,
    fsdp_checkpointed, hsdp, tensor, tensor_sequence, fsdp_tensor, pipeline, pipeline_interleaved, ring,
    experts, functional, by_hand, coalesced,
)  # fmt: skip
