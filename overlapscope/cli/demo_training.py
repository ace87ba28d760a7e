"""One rank of the demo: a small MLP with DistributedDataParallel over gloo, recorded by `overlapscope.profile`.

python -m overlapscope.cli.demo_training RUN STORE WORLD_SIZE RANK [BUCKET_MIB] [STEPS]
"""

import sys
from pathlib import Path

WIDTH = 768
LAYERS = 8
BATCH = 256
BUCKET_MIB = 4.0
STEPS = 6
WARMUP_STEPS = 3


def train(run: Path, store: Path, world_size: int, rank: int, bucket_mib: float, steps: int) -> None:
    """Train WARMUP_STEPS + `steps` steps and record the last `steps` into the run directory `run`."""
    import torch
    from torch import distributed, nn

    import overlapscope

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(store), world_size), rank=rank, world_size=world_size
    )
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mib)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with overlapscope.profile(run, model=model, warmup=WARMUP_STEPS, steps=steps) as scope:
        for step in range(WARMUP_STEPS + steps):
            with scope.step():
                with scope.region("data"):
                    generator = torch.Generator().manual_seed(step * world_size + rank)
                    batch = torch.randn(BATCH, WIDTH, generator=generator)
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    optional = sys.argv[5:]
    train(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        float(optional[0]) if optional else BUCKET_MIB,
        int(optional[1]) if len(optional) > 1 else STEPS,
    )
