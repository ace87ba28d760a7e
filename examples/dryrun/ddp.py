"""DistributedDataParallel, in buckets of 10 MiB.

overlapscope dryrun examples/dryrun/ddp.py:build --world 64 -o runs/ddp
"""

import torch
from torch.nn.parallel import DistributedDataParallel


def build(device):
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, 0, batch_first=True, device=device) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=10)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 256, 512, device=device)

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
