"""One rank of the job that `benchmarks.capture` measures: DDP over gloo, modes alternated in one process.

python -m benchmarks.capture_training FOLDER STORE RANK ROUNDS
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import overlapscope

WORLD_SIZE = 2
WIDTH = 1024
LAYERS = 8
BATCH = 640
STEPS = 6
WARMUP = 2


def main() -> None:
    folder, store, rank, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, WORLD_SIZE), rank=rank, world_size=2)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, WIDTH)

    def one_step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def steps(scope: Any, number: int) -> list[int]:
        lasted = []
        for _ in range(number):
            begin = time.perf_counter_ns()
            with scope.step() if scope is not None else nullcontext():
                one_step()
            lasted.append(time.perf_counter_ns() - begin)
        return lasted

    steps(None, 4)
    found: dict[str, list[list[int]]] = {"without": [], "events": [], "trace": []}
    for turn in range(rounds):
        # Blocks of steps, turn by turn in another order: what disturbs the machine disturbs all alike.
        for mode in (("events", "without", "trace"), ("trace", "without", "events"))[turn % 2]:
            if mode == "without":
                steps(None, WARMUP)
                found[mode].append(steps(None, STEPS))
                continue
            with overlapscope.profile(
                folder / f"{mode}{turn}",
                model=model,
                mode=mode,
                warmup=WARMUP,
                steps=STEPS,
                measure_overhead=False,
                wait_seconds=20,
            ) as scope:
                steps(scope, WARMUP)
                found[mode].append(steps(scope, STEPS))
    distributed.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
