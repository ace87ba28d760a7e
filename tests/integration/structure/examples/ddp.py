"""DDP with compressed gradients, and two micro-batches a step."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from transformer import VOCABULARY, Decoder, loss_of

BATCH, LENGTH = 4, 64


def build(device):
    torch.manual_seed(0)
    decoder = Decoder(4, device)
    model = DistributedDataParallel(decoder, bucket_cap_mb=4)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    targets = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)

    def step():
        with model.no_sync():
            first = loss_of(model(tokens), targets)
            first.backward()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
