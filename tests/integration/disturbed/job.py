"""One rank of the job: it trains under DDP, records every recording of its plan, and writes its own times beside it.

    python -m tests.integration.disturbed.job RANK STORE FOLDER

The plan is FOLDER/plan.json.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import overlapscope
from tests.integration.disturbed.plan import CORES, INTERFACE, WORLD

WIDTH, LAYERS, BATCH = 512, 4, 256
WARMUP, STEPS = 3, 12
EVERY_CORE = sorted(os.sched_getaffinity(0))
RATE, BURST = "160mbit", "32kb"


class Disturbance:
    """What holds the rank, once in every step, at its place; notes how long it did."""

    def __init__(self, kind: str, place: str) -> None:
        self.place = place
        self.length_s = self.work_s = 0.0
        """How long to hold the rank, and for computing how long on a core; 0 while it rests."""
        self.lasted_s = 0.0
        self._do: Callable[[], None] = {
            "compute": self._compute, "sleep": self._sleep, "loader": self._sleep, "collector": self._collect,
        }.get(kind, lambda: None)  # fmt: skip
        self._weight = torch.randn(384, 384)
        self._kept: list[list[int]] = [[] for _ in range(100_000)] if kind == "collector" else []

    def at(self, place: str) -> None:
        if place == self.place and self.length_s:
            begun = time.perf_counter()
            self._do()
            self.lasted_s += time.perf_counter() - begun

    def _sleep(self) -> None:
        time.sleep(self.length_s)

    def _compute(self) -> None:
        with torch.no_grad():
            end = time.thread_time() + self.work_s
            while time.thread_time() < end:
                torch.tanh(self._weight @ self._weight)

    def _collect(self) -> None:
        end = time.perf_counter() + self.length_s
        while time.perf_counter() < end:
            gc.collect()


class InForward(nn.Module):
    """Disturbs on the way forward and on the way back."""

    disturbance: Disturbance | None = None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.disturbance is not None:
            self.disturbance.at("forward")
        return _OnTheWayBack.apply(value, self)


class _OnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, module: InForward) -> torch.Tensor:
        ctx.module = module
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.module.disturbance is not None:
            ctx.module.disturbance.at("backward")
        return gradient, None


class Batches(IterableDataset):
    """Batches without end; the slow one's come late."""

    def __init__(self, disturbance: Disturbance) -> None:
        self._disturbance = disturbance

    def __iter__(self) -> Iterator[torch.Tensor]:
        value = torch.randn(BATCH, WIDTH)
        while True:
            for place in ("between steps", "in a region", "in the step"):
                self._disturbance.at(place)
            yield value


def model_of() -> tuple[nn.Module, InForward]:
    torch.manual_seed(7)
    way = InForward()
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    middle = len(layers) // 2
    return nn.Sequential(*layers[:middle], way, *layers[middle:]), way


def record(made: dict[str, Any], model: nn.Module, way: InForward, rank: int, folder: Path) -> dict[str, Any]:
    """Record one; give the job's own times of the disturbed steps."""
    mine = made["rank"] == rank and made["kind"] != "one_slow_link"
    disturbance = Disturbance(made["kind"] if mine else "", made["place"])
    way.disturbance = disturbance
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Batches(disturbance), batch_size=None))
    periods: list[float] = []
    worked: list[float] = []
    held: list[float] = []
    limit(made, rank)
    bind(made["kind"], rank)
    name = f"{made['kind']}-{made['mode']}-{made['seed']}"
    dist.barrier()
    with overlapscope.profile(
        folder / "runs" / name, model=model, mode=made["mode"], warmup=WARMUP, steps=STEPS, measure_overhead=False
    ) as scope:
        ended = time.perf_counter()
        for number in range(WARMUP + STEPS + 1):
            if number == WARMUP:
                disturbance.length_s = made["share"] * median(periods)
                disturbance.work_s = 1.5 * made["share"] * median(worked)
            disturbance.lasted_s = 0.0
            began_work = time.thread_time()
            batch = None if made["place"] in ("in a region", "in the step") else next(batches)
            with scope.step():
                if batch is None:
                    with scope.region("data") if made["place"] == "in a region" else nullcontext():
                        batch = next(batches)
                disturbance.at("before forward")
                loss = model(batch).square().mean()
                disturbance.at("before backward")
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                disturbance.at("after the optimizer")
            now = time.perf_counter()
            periods.append(now - ended)
            worked.append(time.thread_time() - began_work)
            held.append(disturbance.lasted_s)
            ended = now
    way.disturbance = None
    del disturbance
    gc.collect()
    return {
        "periods_s": periods[WARMUP:], "held_s": held[WARMUP:], "worked_s": worked[WARMUP:],
        "undisturbed_s": periods[:WARMUP],
    }  # fmt: skip


def limit(made: dict[str, Any], rank: int) -> None:
    """Throttle this rank's link, one way or both, or take the limit away; nothing without links of the job's own."""
    hub = os.environ.get("DISTURBED_HUB")
    if hub is None:
        return
    for device, inside, way in (
        (INTERFACE, [], "what it sends"),
        (f"port{rank}", ["ip", "netns", "exec", hub], "what it receives"),
    ):
        slow = made["kind"] == "all_slow_links" or (made["rank"] == rank and made["place"] in ("both ways", way))
        shape = ["tbf", "rate", RATE, "burst", BURST, "latency", "400ms"] if slow else ["pfifo", "limit", "1000"]
        subprocess.run([*inside, "tc", "qdisc", "replace", "dev", device, "root", *shape], check=True)


def bind(kind: str, rank: int) -> None:
    """Let all threads of this rank use its core alone, where the kind says so, else all; as `taskset -a` does."""
    cores = [EVERY_CORE[CORES[kind][rank] % len(EVERY_CORE)]] if kind in CORES else EVERY_CORE
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def main() -> None:
    rank, store, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    model, way = model_of()
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1.5)
    for _ in range(3):
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
    gc.freeze()  # a collection then takes as long as the job's own garbage, not torch's modules
    for made in json.loads((folder / "plan.json").read_text(encoding="utf-8")):
        own = record(made, model, way, rank, folder)
        name = f"{made['kind']}-{made['mode']}-{made['seed']}"
        (folder / f"{name}.rank{rank}.json").write_text(json.dumps(own), encoding="utf-8")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
