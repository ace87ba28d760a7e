"""One rank of the job that `benchmarks.capture` measures: DDP over gloo, modes alternated in one process.

python -m benchmarks.capture_training FOLDER STORE RANK ALONE TURNS
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
from overlapscope.capture import session

WORLD_SIZE = 2
WIDTH = 1536
LAYERS = 8
BATCH = 160
BUCKET_CAP_MB = 16
TURN_STEPS = 6
WARMUP = 2
"""Steps of a block, in which caches and threads settle, before the measured ones."""


def main() -> None:
    folder, store, rank, alone, turns = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, WORLD_SIZE), rank=rank, world_size=2)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_CAP_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(BATCH, WIDTH)

    def steps(scope: Any, number: int) -> list[int]:
        lasted = []
        for _ in range(number):
            begin = time.perf_counter_ns()
            with scope.step() if scope is not None else nullcontext():
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            lasted.append(time.perf_counter_ns() - begin)
        return lasted

    def options(mode: Any, place: str) -> session.Session:
        return overlapscope.profile(
            folder / place,
            model=model,
            mode=mode,
            warmup=WARMUP,
            steps=TURN_STEPS,
            measure_overhead=False,
            wait_seconds=20,
        )

    def block(mode: str, turn: int) -> list[int]:
        if mode == "without":
            steps(None, WARMUP)
            return steps(None, TURN_STEPS)
        with options(mode, f"{mode}{turn}") as scope:
            steps(scope, WARMUP)
            return steps(scope, TURN_STEPS)

    def seen_twice(turn: int) -> None:
        """Record the same steps in both modes at once, which only a benchmark may."""
        with options("trace", f"twice_trace{turn}") as trace:
            session._open_sessions.clear()  # else the second is refused
            with options("events", f"twice_events{turn}") as events:
                for _ in range(WARMUP + TURN_STEPS):
                    with trace.step():
                        steps(events, 1)

    def alternated() -> list[tuple[int, bool]]:
        """Capture every second step; give (time, whether captured) of each, as capture measures itself."""
        session.LEFT_ALONE = frozenset(range(1, 2 * alone, 2))
        with overlapscope.profile(folder / "alternated", model=model, mode="events", warmup=WARMUP) as scope:
            steps(scope, WARMUP + 2 * alone + 1)
        return scope.lasted

    steps(None, 4)
    found: dict[str, list[list[int]]] = {"events": [], "without": [], "trace": []}
    # Short blocks, turn by turn in another order: what disturbs the machine disturbs all alike.
    for turn in range(turns):
        for mode in ("events", "without", "trace")[:: 1 if turn % 2 else -1]:
            found[mode].append(block(mode, turn))
        seen_twice(turn)
    result = {"turns": found, "alternated": alternated() if alone else []}
    distributed.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
