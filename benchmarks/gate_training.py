"""One rank of the job that `benchmarks.gate_recordings` records: DDP over gloo, which may lose time on purpose.

python -m benchmarks.gate_training RUN STORE RANK DELAY_NS
"""

import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import overlapscope

WORLD_SIZE = 2
WIDTH = 768
LAYERS = 6
BATCH = 96
STEPS = 24
WARMUP = 4


def main() -> None:
    run, store, rank, delay_ns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, WORLD_SIZE), rank=rank, world_size=2)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, WIDTH)
    with overlapscope.profile(
        run, model=model, mode="events", warmup=WARMUP, measure_overhead=False, wait_seconds=20
    ) as scope:
        for _ in range(WARMUP + STEPS):
            with scope.step():
                if rank == 1:
                    time.sleep(delay_ns / 1e9)  # the loss: a host that comes late, and the other rank waits for it
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
