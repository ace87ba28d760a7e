"""One rank of the job that `benchmarks.whatif_accuracy` measures: DDP over gloo, under one setting after another.

python -m benchmarks.whatif_training RANK FOLDER

FOLDER/plan.json lists what to do, in order: each entry names a shape, a link rate and settings, whether to record it
or to time it, and how many steps. What was timed is written to FOLDER/rank<RANK>.json.
"""

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import overlapscope
from tests.integration.disturbed.plan import INTERFACE

WARMUP = 2
"""Steps before the counted ones: DDP rebuilds its buckets after the first."""
BURST = "128kb"
CORES = len(os.sched_getaffinity(0))
TICKS = os.sysconf("SC_CLK_TCK")
FOREIGN = 0.05
"""Share of the cores that other programs may have: what they had more of is measured again."""
ATTEMPTS, PAUSE_S = 5, 2.0


def model_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model of a shape and its batch."""
    torch.manual_seed(7)
    if name == "mlp":  # all layers alike
        layers = [part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(320, 1024)
    if name == "wide_end":  # the largest gradient comes first, as of a model with a large head
        return (
            nn.Sequential(
                *(part for _ in range(10) for part in (nn.Linear(768, 768), nn.ReLU())), nn.Linear(768, 6144)
            ),
            torch.randn(512, 768),
        )
    if name == "convolutions":  # large gradients first, then most of the compute
        small = [part for _ in range(4) for part in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
        first, last = nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.Conv2d(64, 64, 3, stride=2, padding=1)
        head = [nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
        return nn.Sequential(first, nn.ReLU(), *small, last, nn.Flatten(), *head), torch.randn(64, 3, 32, 32)
    raise ValueError(name)


def wrapped(model: nn.Module, settings: dict[str, Any]) -> nn.parallel.DistributedDataParallel:
    """Return the model under DDP with an entry's settings."""
    made = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=settings["bucket_cap_mb"])
    if settings.get("hook") == "fp16":
        made.register_comm_hook(None, fp16_compress_hook)
    return made


def limit(rate_mbit: float, rank: int) -> None:
    """Throttle what this rank sends, and what comes to it, to a rate."""
    hub = os.environ["WHATIF_HUB"]
    shape = ["tbf", "rate", f"{rate_mbit:g}mbit", "burst", BURST, "latency", "400ms"]
    for device, inside in ((INTERFACE, []), (f"port{rank}", ["ip", "netns", "exec", hub])):
        subprocess.run([*inside, "tc", "qdisc", "replace", "dev", device, "root", *shape], check=True)


def one_step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
    """Train one optimizer step."""
    turns = settings.get("accumulation", 1)
    for turn in range(turns):
        if settings.get("no_sync") and turn < turns - 1:
            with model.no_sync():
                model(batch).square().mean().backward()
        else:
            model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def carry_out(entry: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Do one entry, again where other programs had the cores; give the seconds of its counted steps."""
    limit(entry["rate_mbit"], rank)
    base, batch = model_of(entry["shape"])
    settings = entry["settings"]
    for attempt in range(ATTEMPTS):
        model = wrapped(copy.deepcopy(base), settings)
        step = partial(one_step, model, batch, torch.optim.SGD(model.parameters(), lr=1e-4), settings)
        distributed.barrier()
        before = busy_s()
        if entry.get("record"):
            lasted = recorded(entry, folder, step, model)
        else:
            lasted = [timed(step) for _ in range(WARMUP + entry["steps"])][WARMUP:]
        all_s, own_s, wall_s = (after - begun for after, begun in zip(busy_s(), before, strict=True))
        share = torch.tensor([own_s])
        distributed.all_reduce(share)
        foreign = torch.tensor([max(all_s - float(share), 0.0) / wall_s / CORES])
        distributed.broadcast(foreign, 0)
        if float(foreign) <= FOREIGN:
            break
        if attempt < ATTEMPTS - 1:
            time.sleep(PAUSE_S)
    return {"seconds": lasted, "foreign": float(foreign), "attempts": attempt + 1}


def recorded(entry: dict[str, Any], folder: Path, step: Callable[[], None], model: nn.Module) -> list[float]:
    """Record steps; give how long they took."""
    lasted = []
    with overlapscope.profile(
        folder / "runs" / entry["record"], model=model, mode=entry.get("mode", "events"), warmup=WARMUP,
        steps=entry["steps"], measure_overhead=False,
    ) as scope:  # fmt: skip
        for _ in range(WARMUP + entry["steps"] + 1):
            begun = time.perf_counter()
            with scope.step():
                step()
            lasted.append(time.perf_counter() - begun)
    return lasted[WARMUP:-1]


def timed(step: Callable[[], None]) -> float:
    """Return the seconds of one step."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def busy_s() -> tuple[float, float, float]:
    """Return the seconds that the cores of this job were busy or taken away, this process's, and the clock's."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *spent = line.split()
        if name in names:
            user, nice, system, stolen = (int(spent[at]) for at in (0, 1, 2, 7))
            ticks += user + nice + system + stolen
    own = os.times()
    return ticks / TICKS, own.user + own.system, time.perf_counter()


def do_all(carry_out: Callable[[dict[str, Any], int, Path], dict[str, Any]]) -> None:
    """Do all entries of the plan that the command line names."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), plan["world_size"])
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=plan["world_size"])
    done = []
    for entry in plan["entries"]:
        done.append(carry_out(entry, rank, folder))
        (folder / f"rank{rank}.json").write_text(json.dumps(done), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    do_all(carry_out)
