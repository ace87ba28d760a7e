"""A mixture of experts, one on each rank: experts choose their tokens, DDP reduces what all ranks share."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel

TOKENS, DIM, HIDDEN, LAYERS, CAPACITY = 256, 128, 256, 3, 32


class Expert(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.up = nn.Linear(DIM, HIDDEN, device=device, dtype=torch.bfloat16)
        self.down = nn.Linear(HIDDEN, DIM, device=device, dtype=torch.bfloat16)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.router = nn.Linear(DIM, dist.get_world_size(), bias=False, device=device, dtype=torch.bfloat16)
        self.shared = Expert(device)
        self.expert = Expert(device)

    def forward(self, x):
        scores, chosen = self.router(x).softmax(-1).t().topk(CAPACITY)
        sent = x[chosen.flatten()]
        arrived = all_to_all_single_autograd(sent, None, None, dist.group.WORLD)
        shared = self.shared(x)
        done = self.expert(arrived)
        returned = all_to_all_single_autograd(done, None, None, dist.group.WORLD)
        weighted = returned * scores.flatten().unsqueeze(-1)
        return x + shared.index_add(0, chosen.flatten(), weighted)


def build(device):
    torch.manual_seed(0)
    layers = nn.Sequential(*[Mixture(device) for _ in range(LAYERS)])
    own = [name for name, _ in layers.named_parameters() if ".expert." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layers, own)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randn(TOKENS, DIM, device=device, dtype=torch.bfloat16)

    def step():
        loss = model(tokens).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
