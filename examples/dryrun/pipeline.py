"""A pipeline, one stage a rank; `--rank 0,1,3` runs the first stage, one between, and the last.

overlapscope dryrun examples/dryrun/pipeline.py:build --world 4 --rank 0,1,3 -o runs/pp
"""

import torch
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def build(device):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = torch.nn.TransformerEncoderLayer(512, 8, 2048, 0, batch_first=True, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch, micro = torch.randn(8, 256, 512, device=device), torch.randn(1, 256, 512, device=device)
    given, made = micro.clone().requires_grad_(rank > 0), micro.clone().requires_grad_()
    stage = PipelineStage(model, rank, last + 1, device, input_args=(given,), output_args=(made,))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss)

    def step():
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == last else None)
        optimizer.step()
        optimizer.zero_grad()

    return step
