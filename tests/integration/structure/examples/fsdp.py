"""FSDP2 with mixed precision and explicit prefetch."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformer import VOCABULARY, Decoder, loss_of

BATCH, LENGTH = 4, 128


def build(device):
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = Decoder(4, device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    for block, following in zip(model.blocks, model.blocks[1:], strict=False):
        block.set_modules_to_forward_prefetch([following])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    targets = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)

    def step():
        logits = model(tokens)
        loss = loss_of(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
