"""Accelerate with FSDP2, in a loop of one's own. Import accelerate where the module begins, not inside `build`.

overlapscope dryrun examples/dryrun/accelerate_fsdp2.py:build --world 64 -o runs/accelerate
"""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

WRAP = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Linear"]}


def build(device):
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **WRAP))
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    batch = torch.randn(8, 512, device=device)

    def step():
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    return step
