"""One rank of the job that `benchmarks.whatif_accuracy` measures: DDP over gloo, under one setting after another.

python -m benchmarks.whatif_training RANK FOLDER

FOLDER/plan.json lists what to do, in order: each entry names a shape, a link rate and settings, whether to record it
or to time it, and how many steps. What was timed is written to FOLDER/rank<RANK>.json.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import overlapscope
from tests.disturbed.plan import INTERFACE

WARMUP = 2
"""Steps before the counted ones: DDP rebuilds its buckets after the first."""
BURST = "128kb"


def model_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    """Give a model of a shape and its batch."""
    torch.manual_seed(7)
    if name == "mlp":  # all layers alike
        layers = [part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(320, 1024)
    if name == "wide_end":  # the largest gradient comes first, as of a model with a large head
        return (
            nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768),
                          nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 6144)),
            torch.randn(512, 768),
        )  # fmt: skip
    if name == "convolutions":  # much compute and small gradients first, large ones last
        return (
            nn.Sequential(
                nn.Flatten(), nn.Linear(3 * 32 * 32, 1536), nn.ReLU(), nn.Unflatten(1, (96, 4, 4)),
                *(part for _ in range(6) for part in (nn.Conv2d(96, 96, 3, padding=1), nn.ReLU())),
                nn.Flatten(), nn.Linear(1536, 512), nn.ReLU(), nn.Linear(512, 10),
            ),
            torch.randn(192, 3, 32, 32),
        )  # fmt: skip
    raise ValueError(name)


def wrapped(model: nn.Module, settings: dict[str, Any]) -> nn.parallel.DistributedDataParallel:
    """Give the model under DDP with an entry's settings."""
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


def carry_out(entry: dict[str, Any], rank: int, folder: Path) -> list[float]:
    """Do one entry; give the seconds of its counted steps."""
    limit(entry["rate_mbit"], rank)
    base, batch = model_of(entry["shape"])
    settings = entry["settings"]
    model = wrapped(base, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def steps(number: int, around: Callable[[], Any] | None = None) -> list[float]:
        lasted = []
        for _ in range(number):
            begun = time.perf_counter()
            if around is None:
                one_step(model, batch, optimizer, settings)
            else:
                with around():
                    one_step(model, batch, optimizer, settings)
            lasted.append(time.perf_counter() - begun)
        return lasted

    distributed.barrier()
    if entry.get("record"):
        with overlapscope.profile(
            folder / "runs" / entry["record"], model=model, mode=entry.get("mode", "events"), warmup=WARMUP,
            steps=entry["steps"], measure_overhead=False,
        ) as scope:  # fmt: skip
            return steps(WARMUP + entry["steps"] + 1, scope.step)[WARMUP:-1]
    return steps(WARMUP + entry["steps"])[WARMUP:]


def main() -> None:
    """Do all entries of the plan."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), plan["world_size"])
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=plan["world_size"])
    timed = []
    for entry in plan["entries"]:
        timed.append(carry_out(entry, rank, folder))
        (folder / f"rank{rank}.json").write_text(json.dumps(timed), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
