"""One rank of the demo: a small MLP under DistributedDataParallel over gloo, recorded by torch.profiler.

python -m overlapscope.capture.demo_training FOLDER STORE WORLD_SIZE RANK
"""

import sys
from pathlib import Path

WIDTH = 768
LAYERS = 8
BATCH = 256
BUCKET_MIB = 4
STEPS = 4
WARMUP_STEPS = 3
"""DDP rebuilds its buckets after the first step; the profiler's own start disturbs the next."""


def train(folder: Path, store: Path, world_size: int, rank: int) -> None:
    """Train a few steps, record the last ones, write `FOLDER/rankN.pt.trace.json.gz`."""
    import torch
    from torch import distributed, nn
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(store), world_size), rank=rank, world_size=world_size
    )
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace = folder / f"rank{rank}.pt.trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=WARMUP_STEPS - 1, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        record_shapes=True,
    ) as profiler:
        for step in range(WARMUP_STEPS + STEPS):
            generator = torch.Generator().manual_seed(step * world_size + rank)
            batch = torch.randn(BATCH, WIDTH, generator=generator)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
