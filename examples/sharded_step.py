"""A small model under FSDP2: `overlapscope dryrun examples/sharded_step.py:build --world 1024 -o runs/dry`."""

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(device):
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device=device) for _ in range(4)])
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 1024, device=device)

    def step():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
