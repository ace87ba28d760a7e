"""One rank of a training on a CUDA device; called as `jobs.training` is, and by traces/record_nccl.py.

Several ranks may share one device: NCCL refuses that within a host, so each rank is given a NCCL_HOSTID of its own and
they meet over sockets.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

import overlapscope
from overlapscope.gpu_check import two_ranks

WIDTH = 1024


def mlp(layers: int = 4) -> nn.Module:
    torch.manual_seed(7)
    parts = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*parts).cuda()


def batch(number: int) -> torch.Tensor:
    return torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(number)).cuda()


def train(model: nn.Module, run: str, mode: str, trace_of_step: str | None = None) -> None:
    """Eight steps, recorded by us; the seventh also by torch's profiler where a file for it is given."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with overlapscope.profile(
        run, model=model, mode=mode, warmup=2, steps=3, measure_overhead=False, wait_seconds=60
    ) as scope:
        for number in range(8):
            profiler = None
            if trace_of_step is not None and number == 6:
                activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
                profiler = torch.profiler.profile(activities=activities)
                torch.cuda.synchronize()
                profiler.start()
            with scope.step():
                model(batch(number)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if profiler is not None:
                torch.cuda.synchronize()
                profiler.stop()
                profiler.export_chrome_trace(trace_of_step)
        torch.cuda.synchronize()


def alone(run: str, mode: str, out: Path) -> dict[str, Any]:
    """One rank without a process group."""
    trace = out.with_suffix(".pt.trace.json")
    train(mlp(), run, mode, str(trace) if mode == "events" else None)
    return {"trace": str(trace)}


def ddp(run: str, mode: str, out: Path) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(mlp(), device_ids=[torch.cuda.current_device()], bucket_cap_mb=5)
    trace = out.with_suffix(".pt.trace.json")
    train(model, run, mode, str(trace) if mode == "events" else None)
    said = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return {"trace": str(trace), "bucket_bytes": [int(part) for part in said.split(",") if part.strip()]}


def fsdp(run: str, mode: str, out: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    del out
    model = mlp(layers=2)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, run, mode)
    return {"layer_bytes": 4 * (WIDTH * WIDTH + WIDTH)}


def graphed(run: str, mode: str, out: Path) -> dict[str, Any]:
    """A graph that is captured inside a recorded step and replayed in later ones."""
    del out
    model = mlp(layers=2)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    given = batch(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(side)
    expected = model(given).sum().item()
    graph = torch.cuda.CUDAGraph()
    sums = []
    with overlapscope.profile(run, model=model, mode=mode, warmup=1, measure_overhead=False) as scope:
        for number in range(9):
            with scope.step():
                if number < 4:
                    model(given)
                elif number == 4:
                    with torch.cuda.graph(graph):
                        result = model(given)
                else:
                    graph.replay()
            if number > 4:
                sums.append(result.sum().item())
        torch.cuda.synchronize()
    return {"sums": sums, "expected": expected}


def main() -> None:
    scenario, rank, world, store, run, mode, out = sys.argv[1:8]
    torch.cuda.set_device(int(rank) % torch.cuda.device_count())
    if int(world) > 1:
        dist.init_process_group("nccl", store=dist.FileStore(store, int(world)), rank=int(rank), world_size=int(world))
    result = {"alone": alone, "ddp": ddp, "fsdp": fsdp, "graphed": graphed}[scenario](run, mode, Path(out))
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    if int(world) > 1:
        dist.barrier(device_ids=[torch.cuda.current_device()])
        dist.destroy_process_group()


def environment(rank: int, *, log: Path | None = None) -> dict[str, str]:
    """Return the environment of one rank; ranks that share a device need it. `log` is where NCCL writes its own."""
    return {**os.environ, **two_ranks.environment(rank, log=log)}


if __name__ == "__main__":
    main()
