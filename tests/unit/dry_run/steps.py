"""Small steps for the tests of dry runs; `build` functions as a user writes them."""

from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

Step = Callable[[], None]


def layers(count: int, width: int = 256) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def plain(device: torch.device) -> Step:
    """Two products of 64 x 256 by 256 x 256, forward and backward, and SGD."""
    model, x = layers(2), torch.randn(64, 256, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(device: torch.device) -> Step:
    model = nn.parallel.DistributedDataParallel(layers(3), bucket_cap_mb=0.1)
    x = torch.randn(8, 256, device=device)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return step


def fsdp(device: torch.device) -> Step:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not in every version

    model, x = layers(3), torch.randn(8, 256, device=device)
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return step


def attends(device: torch.device) -> Step:
    q = torch.randn(2, 4, 128, 32, device=device, requires_grad=True)
    table = nn.Embedding(1000, 64, device=device)
    rows = torch.zeros(16, dtype=torch.int64, device=device)

    def step() -> None:
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        with torch.no_grad():
            table(rows)

    return step


def reads_loss(device: torch.device) -> Step:
    model, x = layers(1), torch.randn(4, 256, device=device)

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 2:
            raise RuntimeError("a loss of 1 is assumed")

    return step


def reads_integer(device: torch.device) -> Step:
    x = torch.zeros(4, dtype=torch.int64, device=device)

    def step() -> None:
        torch.ones(int(x.sum().item()), device=device)

    return step


def selects(device: torch.device) -> Step:
    x = torch.randn(4, device=device)

    def step() -> None:
        x[x > 0].sum()

    return step


def needs_device(_: torch.device) -> Step:
    layers(1).cuda()
    return lambda: None


def nothing(_: torch.device) -> None:
    return None


def does_not_factor(device: torch.device) -> Step:
    init_device_mesh(device.type, (2, 3))
    return lambda: None


def changes_dtype(device: torch.device) -> Step:
    model = layers(2).to(device).to(torch.bfloat16)
    x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)

    def step() -> None:
        model(x).sum().backward()

    return step


def module() -> tuple[nn.Module, torch.Tensor]:
    return layers(3), torch.randn(8, 256)
