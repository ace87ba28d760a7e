"""An optimizer whose state is sharded by own code: gradients scattered in backward, parameters gathered after it."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH = 256, 5, 32


class ShardedAdam:
    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.world = dist.get_world_size()
        self.shards = [each.detach().chunk(self.world)[dist.get_rank()].clone() for each in self.parameters]
        self.adam = torch.optim.Adam(self.shards, lr=lr)
        self.pending = []
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda each, number=number: self.scatter(number, each))

    def scatter(self, number, parameter):
        own = torch.empty_like(self.shards[number])
        work = dist.reduce_scatter_tensor(own, parameter.grad, async_op=True)
        self.pending.append((number, own, work))
        parameter.grad = None

    def step(self):
        for number, own, work in self.pending:
            work.wait()
            self.shards[number].grad = own / self.world
        self.pending.clear()
        norm = torch.stack([each.grad.norm() for each in self.shards]).norm()
        dist.all_reduce(norm)
        for each in self.shards:
            each.grad.mul_((1.0 / norm).clamp(max=1.0))
        self.adam.step()
        self.adam.zero_grad()
        works = [
            dist.all_gather_into_tensor(whole.detach(), own, async_op=True)
            for whole, own in zip(self.parameters, self.shards, strict=True)
        ]
        for work in works:
            work.wait()


def build(device):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(LAYERS)]
    model = nn.Sequential(*[module for layer in layers for module in (layer, nn.Tanh())])
    optimizer = ShardedAdam(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH, device=device)

    def step():
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
