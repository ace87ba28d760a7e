"""A pipeline of two stages under 1F1B."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformer import DIM, HEADS, VOCABULARY, Block, loss_of

BATCH, LENGTH, MICRO_BATCHES = 8, 32, 4


class First(nn.Module):
    def __init__(self, device, dtype):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM, device=device, dtype=dtype)
        self.blocks = nn.ModuleList([Block(DIM, HEADS, device, dtype) for _ in range(2)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x


class Last(nn.Module):
    def __init__(self, device, dtype):
        super().__init__()
        self.blocks = nn.ModuleList([Block(DIM, HEADS, device, dtype) for _ in range(2)])
        self.head = nn.Linear(DIM, VOCABULARY, bias=False, device=device, dtype=dtype)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(device):
    torch.manual_seed(0)
    rank, stages = dist.get_rank(), dist.get_world_size()
    model = (First if rank == 0 else Last)(device, torch.bfloat16)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    targets = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    part = BATCH // MICRO_BATCHES
    hidden = torch.empty(part, LENGTH, DIM, dtype=torch.bfloat16, device=device, requires_grad=True)
    logits = torch.empty(part, LENGTH, VOCABULARY, dtype=torch.bfloat16, device=device, requires_grad=True)
    shapes = (tokens[:part], hidden) if rank == 0 else (hidden, logits)
    stage = PipelineStage(model, rank, stages, device, input_args=shapes[0], output_args=shapes[1])
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step():
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()

    return step
