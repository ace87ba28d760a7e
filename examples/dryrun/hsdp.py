"""HSDP: sharded inside each node of 8, replicated between nodes.

overlapscope dryrun examples/dryrun/hsdp.py:build --world 64 -o runs/hsdp
"""

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(device):
    mesh = init_device_mesh(device.type, (dist.get_world_size() // 8, 8), mesh_dim_names=("replicate", "shard"))
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, 0, batch_first=True, device=device) for _ in range(4)]
    model = fully_shard(torch.nn.Sequential(*[fully_shard(layer, mesh=mesh) for layer in layers]), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 256, 512, device=device)

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
