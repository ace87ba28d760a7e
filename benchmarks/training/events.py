"""One rank of the job that `benchmarks.events` measures: many small collectives a step, recorded in `events` mode.

python -m benchmarks.training.events FOLDER STORE RANK RANKS STEP_MS CALLS STEPS BLOCK
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed

import overlapscope
from overlapscope.capture.session import Session
from overlapscope.capture.steps import MEASURED_STEPS

ELEMENTS = 4096
WARMUP = 10
HOST_TURNS, HOST_CALLS = 30, 200
CALIBRATED_PIECES = 5000
"""Pieces of compute that are timed alone, to find how many take as long as a step."""


class Block(msgspec.Struct):
    """A block of steps: nanoseconds on the clock and on cores."""

    wall_ns: int
    cpu_ns: int
    measuring: bool = False
    """Whether it is one of the first, in which it is not yet chosen which steps are recorded."""


def step_of(calls: int, work: int) -> Callable[[], None]:
    """Return a step: computation, and an all-reduce under each piece of it."""
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    tensors = [torch.zeros(ELEMENTS) for _ in range(calls)]

    def step() -> None:
        pending = []
        for tensor in tensors:
            pending.append(distributed.all_reduce(tensor, async_op=True))
            for _ in range(work):
                torch.mm(left, right)
            if len(pending) > 2:
                pending.pop(0).wait()
        for each in pending:
            each.wait()

    return step


def calibrated(step_ms: float, calls: int) -> Callable[[], None]:
    """Return a step whose compute takes so long; both ranks do the same work, and communication runs under it.

    Compute is timed alone: how long a small all-reduce takes is the scheduler's doing, and differs from one minute to
    the next.
    """
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    lasted = []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(CALIBRATED_PIECES):
            torch.mm(left, right)
        lasted.append((time.perf_counter() - begun) * 1e3 / CALIBRATED_PIECES)
    work = torch.tensor([step_ms / statistics.median(lasted) / calls])
    distributed.broadcast(work, 0)
    return step_of(calls, round(float(work)))


def block(scope: Session | None, step: Callable[[], None], steps: int) -> Block:
    distributed.barrier()
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(steps):
        with scope.step() if scope is not None else nullcontext():
            step()
    return Block(time.perf_counter_ns() - wall, time.process_time_ns() - cpu)


def alternated(folder: Path, step: Callable[[], None], steps: int, size: int) -> dict[str, Any]:
    """Run blocks with and without capture in turn; the first ones hold the steps that measure the cost."""
    run = folder / "run"
    with overlapscope.profile(run, mode="events", warmup=0, wait_seconds=30) as scope:
        blocks: dict[str, list[Block]] = {"with": [], "without": []}
        for turn in range(steps // size):
            measuring = scope.steps.count < MEASURED_STEPS
            pair, aside_ns = {}, 0
            for kind in ("with", "without")[:: 1 if turn % 2 else -1]:
                if kind == "without":
                    begun_ns = time.perf_counter_ns()
                    scope.hooks.step_aside()  # until a step is recorded; without us the next step would begin with it
                    aside_ns = time.perf_counter_ns() - begun_ns
                pair[kind] = block(scope if kind == "with" else None, step, size)
            pair["with"].wall_ns += aside_ns
            pair["with"].cpu_ns += aside_ns
            for kind, found in pair.items():
                blocks[kind].append(msgspec.structs.replace(found, measuring=measuring))
    return {**msgspec.to_builtins(blocks), "every": scope.steps.sampled[-1].every}


def host_cost() -> dict[str, float]:
    """Return what a recorded call costs the host, in microseconds on the clock and on a core: medians over turns."""
    tensor = torch.zeros(16)

    def turn() -> tuple[float, float]:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(HOST_CALLS):
            distributed.all_reduce(tensor, async_op=True).wait()
        return (time.perf_counter_ns() - wall) / HOST_CALLS / 1e3, (time.thread_time_ns() - cpu) / HOST_CALLS / 1e3

    place = Path(sys.argv[1]) / "host"
    differences = []
    with overlapscope.profile(place, mode="events", warmup=0, events_every=1, wait_seconds=30) as scope:
        for _ in range(HOST_TURNS):
            scope.hooks.step_aside()
            bare = turn()
            with scope.step():
                recorded = turn()
            differences.append([after - before for before, after in zip(bare, recorded, strict=True)])
    wall, cpu = (statistics.median(each) for each in zip(*differences, strict=True))
    return {"host_wall_us": wall, "host_cpu_us": cpu}


def main() -> None:
    folder, store, rank, ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    if each:
        os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])
    step_ms, calls, steps, size = float(sys.argv[5]), *map(int, sys.argv[6:9])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks)
    step = calibrated(step_ms, calls)
    for _ in range(WARMUP):
        step()
    result = alternated(folder, step, steps, size) | host_cost()
    distributed.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
