"""Attention over a sequence that all ranks share: keys and values go round a ring (without gradients of others)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn

BATCH, LENGTH, DIM, HEADS, LAYERS = 2, 64, 128, 4, 2


class RingAttention(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.project = nn.Linear(DIM, 3 * DIM, device=device)
        self.out = nn.Linear(DIM, DIM, device=device)

    def forward(self, x):
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        rank, world = dist.get_rank(), dist.get_world_size()
        moving = torch.stack([key, value]).detach()
        total = F.scaled_dot_product_attention(query, key, value)
        for _ in range(world - 1):
            arriving = torch.empty_like(moving)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, moving, (rank + 1) % world),
                dist.P2POp(dist.irecv, arriving, (rank - 1) % world),
            ])  # fmt: skip
            total = total + F.scaled_dot_product_attention(query, *moving)
            for work in works:
                work.wait()
            moving = arriving
        return x + self.out((total / world).transpose(1, 2).flatten(2))


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(*[RingAttention(device) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, LENGTH, DIM, device=device)

    def step():
        loss = model(batch).square().mean()
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(gradients)
        at = 0
        for each in model.parameters():
            each.grad.copy_(gradients[at : at + each.numel()].view_as(each))
            at += each.numel()
        optimizer.step()
        optimizer.zero_grad()

    return step
