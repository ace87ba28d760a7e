"""Gradients reduced by own hooks while backward goes on."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH = 512, 6, 16


class Layer(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False, device=device)

    def forward(self, x):
        return torch.relu(self.linear(x))


def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer(device) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(BATCH, WIDTH, device=device)
    statistics = torch.zeros(8, device=device)
    pending = []

    def reduce(parameter):
        work = dist.all_reduce(parameter.grad, async_op=True)
        pending.append(work)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)

    def step():
        counts = dist.all_reduce(statistics, async_op=True)
        output = model(batch)
        counts.wait()
        loss = output.square().mean()
        loss.backward()
        for work in pending:
            work.wait()
        pending.clear()
        optimizer.step()
        optimizer.zero_grad()

    return step
