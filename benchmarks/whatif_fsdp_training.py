"""One rank of the job that `benchmarks.whatif_fsdp` measures: FSDP2 over gloo, under one setting after another.

python -m benchmarks.whatif_fsdp_training RANK FOLDER

FOLDER/plan.json lists what to do, in order, as for `benchmarks.whatif_training`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from benchmarks.whatif_training import CORES, WARMUP, busy_s, do_all, limit, recorded, timed

SHAPES = {"even": (512, 6, 512), "deep": (384, 8, 512), "wide": (640, 4, 384)}
"""Width, blocks, batch."""


def model_of(settings: dict[str, Any], width: int, count: int) -> nn.Module:
    """Return the model, sharded as an entry says."""
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(count)]
    model = nn.Sequential(*blocks)
    options = {
        "mesh": init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("dp_shard",)),
        "reshard_after_forward": settings.get("reshard_after_forward", True),
    }
    many = settings.get("modules_per_group", 1)
    for at in range(0, count, many):
        fully_shard(blocks[at : at + many] if many > 1 else blocks[at], **options)
    fully_shard(model, mesh=options["mesh"], reshard_after_forward=False)
    model.train()
    if settings.get("deferred", True):
        model._set_unshard_async_op(True)  # type: ignore[operator]  # gloo has no streams: gathers are async calls
    ahead = settings.get("forward_prefetch", 0)
    units = [each for each in blocks if isinstance(each, FSDPModule)]
    for at, unit in enumerate(units):
        if ahead:
            unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + ahead])
    return model


def carry_out(entry: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Do one entry; give the seconds of its counted steps."""
    limit(entry["rate_mbit"], rank)
    width, blocks, rows = SHAPES[entry["shape"]]
    model = model_of(entry["settings"], width, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(rows, width)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    distributed.barrier()
    before = busy_s()
    if entry.get("record"):
        lasted = recorded(entry, folder, step, model)
    else:
        lasted = [timed(step) for _ in range(WARMUP + entry["steps"])][WARMUP:]
    all_s, own_s, wall_s = (after - begun for after, begun in zip(busy_s(), before, strict=True))
    share = torch.tensor([own_s])
    distributed.all_reduce(share)
    return {"seconds": lasted, "foreign": max(all_s - float(share), 0.0) / wall_s / CORES}


if __name__ == "__main__":
    do_all(carry_out)
