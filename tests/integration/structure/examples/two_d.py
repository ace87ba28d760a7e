"""FSDP2 over tensor parallel; parameters stay gathered between forward and backward."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformer import HEADS, VOCABULARY, Decoder, loss_of

BATCH, LENGTH, TENSOR = 2, 64, 2


def build(device):
    torch.manual_seed(0)
    sizes = (dist.get_world_size() // TENSOR, TENSOR)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "tp"))
    model = Decoder(3, device, dtype=torch.bfloat16)
    for block in model.blocks:
        block.attention.heads = HEADS // TENSOR
        plan = {
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(),
        }
        parallelize_module(block, mesh["tp"], plan, src_data_rank=None)
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    targets = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)

    def step():
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
