"""Tensor and sequence parallelism over 8 ranks, and FSDP2 over the others.

overlapscope dryrun examples/dryrun/tensor_parallel.py:build --world 64 -o runs/tp
"""

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(torch.nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def build(device):
    mesh = init_device_mesh(device.type, (dist.get_world_size() // 8, 8), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(input_layouts=Shard(1)), "1": RowwiseParallel(output_layouts=Shard(1))}
    blocks = [Block(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)).to(device) for _ in range(4)]
    split = [parallelize_module(block, mesh["tp"], plan, src_data_rank=None) for block in blocks]
    model = fully_shard(torch.nn.Sequential(*[fully_shard(block, mesh=mesh["dp"]) for block in split]), mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 256 // 8, 512, device=device)

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
