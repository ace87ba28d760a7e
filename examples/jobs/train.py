"""A training script that records ten steps; any launcher that sets the variables of `env://` starts it.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT    as torchrun sets them
RUN                                                       on each node's own disk, or on a shared one
KEEP                                                      where rank 0 copies the run to: a folder, s3://..., gs://...
"""

import os

import fsspec
import torch
from torch import distributed, nn

import overlapscope


def train(run: str) -> None:
    """Join the job's process group, train, and keep what was recorded."""
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train_in_group(run)
    distributed.destroy_process_group()


def train_in_group(run: str) -> None:
    """Train twelve steps and record the last ten into the folder `run`; rank 0 copies it to $KEEP."""
    place = os.environ.get("KEEP", "") if distributed.get_rank() == 0 else ""
    if place:
        check(place)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    wrapped = [device] if device.type == "cuda" else None
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=wrapped)
    optimizer = torch.optim.AdamW(model.parameters())
    with overlapscope.profile(run, model=model, mode="events", warmup=2, measure_overhead=False) as scope:
        for _ in range(12):
            with scope.step():
                model(torch.randn(32, 512, device=device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    if place:
        keep(run, place)


def check(place: str) -> None:
    """Fail before the training where nothing can be kept: no package for the URL, files there, no right to write."""
    system, path = fsspec.core.url_to_fs(place)
    if system.exists(path) and system.ls(path):
        raise SystemExit(f"{place} holds files already: set KEEP to another place")
    system.makedirs(path, exist_ok=True)
    system.touch(f"{path}/.writable")
    system.rm_file(f"{path}/.writable")


def keep(run: str, place: str) -> None:
    """Copy a run directory to a folder or a URL; the other nodes need none of it, as rank 0 has the columns of all."""
    system, path = fsspec.core.url_to_fs(place)
    system.put(f"{run}/", f"{path.rstrip('/')}/", recursive=True)


if __name__ == "__main__":
    train(os.environ["RUN"])
