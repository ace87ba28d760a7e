"""FSDP2, with parameters gathered in 16 bits.

overlapscope dryrun examples/dryrun/fsdp2.py:build --world 1024 -o runs/fsdp2
"""

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(device):
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, 0, batch_first=True, device=device) for _ in range(4)]
    model = torch.nn.Sequential(*[fully_shard(layer, mesh=mesh, mp_policy=policy) for layer in layers])
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 256, 512, device=device)

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
