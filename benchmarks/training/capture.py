"""One rank of the job that `benchmarks.capture` measures: DDP over gloo, modes alternated in one process.

python -m benchmarks.training.capture FOLDER STORE RANK TURNS
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed, nn

import overlapscope
from overlapscope.capture import session
from overlapscope.capture.session import Session

WORLD_SIZE = 2
WIDTH = 1536
LAYERS = 8
BATCH = 160
BUCKET_CAP_MB = 16
TURN_STEPS = 6
WARMUP = 2
"""Steps of a block, in which caches and threads settle, before the measured ones."""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What trains, and where its recordings go."""

    folder: Path
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: torch.Tensor

    def steps(self, scope: Session | None, number: int) -> list[int]:
        """Train so many steps; give how long each lasted."""
        lasted = []
        for _ in range(number):
            begin = time.perf_counter_ns()
            with scope.step() if scope is not None else nullcontext():
                self.model(self.batch).square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            lasted.append(time.perf_counter_ns() - begin)
        return lasted

    def profile(self, mode: Any, place: str) -> Session:
        return overlapscope.profile(
            self.folder / place,
            model=self.model,
            mode=mode,
            warmup=WARMUP,
            steps=TURN_STEPS,
            measure_overhead=False,
            wait_seconds=20,
        )


def trained() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Return the model under DDP, its optimizer and a batch."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_CAP_MB)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(BATCH, WIDTH)


def block(training: Training, mode: str, turn: int) -> list[int]:
    """Return how long the steps of a block lasted, recorded in this mode or "without"."""
    if mode == "without":
        training.steps(None, WARMUP)
        return training.steps(None, TURN_STEPS)
    with training.profile(mode, f"{mode}{turn}") as scope:
        training.steps(scope, WARMUP)
        return training.steps(scope, TURN_STEPS)


def seen_twice(training: Training, turn: int) -> None:
    """Record the same steps in both modes at once, which only a benchmark may."""
    with training.profile("trace", f"twice_trace{turn}") as trace:
        session._open_sessions.clear()  # else the second is refused
        with training.profile("events", f"twice_events{turn}") as events:
            for _ in range(WARMUP + TURN_STEPS):
                with trace.step():
                    training.steps(events, 1)


def in_turns(training: Training, turns: int) -> dict[str, list[list[int]]]:
    """Return each mode's blocks."""
    found: dict[str, list[list[int]]] = {"events": [], "without": [], "trace": []}
    # Short blocks, turn by turn in another order: what disturbs the machine disturbs all alike.
    for turn in range(turns):
        for mode in ("events", "without", "trace")[:: 1 if turn % 2 else -1]:
            found[mode].append(block(training, mode, turn))
        seen_twice(training, turn)
    return found


def main() -> None:
    folder, store, rank, turns = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, WORLD_SIZE), rank=rank, world_size=2)
    model, optimizer, batch = trained()
    training = Training(folder=folder, model=model, optimizer=optimizer, batch=batch)
    training.steps(None, 4)
    result = {"turns": in_turns(training, turns)}
    distributed.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
