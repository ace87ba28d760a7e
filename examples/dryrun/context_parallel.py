"""Context parallelism by a ring: keys and values move on to the next rank while attention to the last ones runs.

overlapscope dryrun examples/dryrun/context_parallel.py:build --world 8 -o runs/cp
"""

import torch
from torch import distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd


def build(device):
    rank, world, heads = dist.get_rank(), dist.get_world_size(), 16
    layer = torch.nn.Linear(64, 3 * 64, device=device)
    batch = torch.randn(heads, 1024, 64, device=device)  # this rank's part of the sequence
    after, before = [[2 * heads * (each == (rank + way) % world) for each in range(world)] for way in (1, -1)]

    def step():
        query, *pair = layer(batch).chunk(3, -1)
        pair, weighted, total = torch.cat(pair), 0.0, 0.0
        for turn in range(world):
            if turn < world - 1:  # awaited where it is used
                arriving = all_to_all_single_autograd(pair, before, after, dist.group.WORLD)
            key, value = pair.chunk(2)
            weights = (query @ key.mT / 8).exp()
            weighted, total, pair = weighted + weights @ value, total + weights.sum(-1, keepdim=True), arriving
        (weighted / total).square().mean().backward()

    return step
