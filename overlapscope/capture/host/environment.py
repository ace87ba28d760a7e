"""Read what does not change while a job trains: versions, process groups, settings, DDP buckets."""

import os
import platform
import socket
import sys
from typing import Any

import msgspec

from overlapscope.timeline.run import Group

RECORDED_PREFIXES = ("NCCL_", "RCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "GLOO_", "UCX_", "FI_")
"""Prefixes of environment variables that configure communication; only these ..."""
RECORDED_NAMES = (
    "OMP_NUM_THREADS",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF",
)
"""... and these are recorded; no other variable's value is."""


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the world size; (0, 1) without a process group."""
    from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def device_of(model: Any) -> tuple[int | None, bool]:
    """Return the CUDA index of the device that the job computes on, and whether it stays the same; None without one.

    It is the device of the model, or that on which this process has allocated most, which need not be the current one:
    a job that moves its model to `cuda:1` and never calls `set_device` has `cuda:0` as its current device.
    """
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None, False
    parameters = model.parameters() if model is not None else ()
    index = next((each.device.index for each in parameters if each.device.type == "cuda"), None)
    if index is not None:
        return int(index), True
    current = int(torch.cuda.current_device())
    allocated = [int(torch.cuda.memory_allocated(each)) for each in range(torch.cuda.device_count())]
    most = max(range(len(allocated)), key=allocated.__getitem__, default=current)
    if allocated and allocated[most] > allocated[current]:
        return most, True
    return current, False


def device(index: int | None) -> tuple[int | None, str | None]:
    """Return a CUDA index and the UUID of that device; None for the UUID where torch does not report it."""
    import torch  # noqa: PLC0415

    if index is None:
        return None, None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return index, f"GPU-{uuid}" if uuid is not None else None


def groups() -> tuple[Group, ...]:
    """Return the process groups of this process, with their ranks."""
    from torch import distributed  # noqa: PLC0415

    if not distributed.is_available() or not distributed.is_initialized():
        return ()
    world = distributed.distributed_c10d._world
    found = []
    for group, members in world.pg_group_ranks.items():
        if not isinstance(group, distributed.ProcessGroup):
            continue  # torch notes groups that this rank is not in under a number
        ranks = tuple(sorted(members))
        try:
            name, description = group.group_name, group.group_desc or None
        except RuntimeError:  # a group written in Python need not have a name
            continue
        found.append(Group(name=name, description=description, size=len(ranks), ranks=ranks))
    return tuple(sorted(found, key=lambda each: each.name))


def groups_led_by(rank: int) -> list[dict[str, Any]]:
    """Return the process groups whose lowest rank this process is, as plain values; none of rank 0.

    Rank 0 lists its own in `run.json`, and knows no others: so each group is listed once.
    """
    led = [each for each in groups() if rank > 0 and each.ranks and each.ranks[0] == rank]
    return [msgspec.to_builtins(each) for each in led]


OVERRIDDEN = (
    "allreduce",
    "allgather",
    "_allgather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "broadcast",
    "send",
)
"""Methods of a process group that begin its communication; those of torch pass its dispatcher."""


def groups_outside_the_dispatcher() -> tuple[str, ...]:
    """Return the classes of this process's groups whose communication is written in Python: nothing of it is seen."""
    from torch import distributed  # noqa: PLC0415

    if not distributed.is_available() or not distributed.is_initialized():
        return ()
    own = distributed.ProcessGroup
    # A group that this process is no member of is there, too, as a number.
    kinds = {type(group) for group in distributed.distributed_c10d._world.pg_group_ranks if isinstance(group, own)}
    return tuple(
        sorted(
            f"{kind.__module__}.{kind.__qualname__}"
            for kind in kinds
            if any(getattr(kind, name, None) is not getattr(own, name, None) for name in OVERRIDDEN)
        )
    )


def fingerprint(index: int | None) -> dict[str, str | int | None]:
    """Return the versions of the software and the name of the device with this CUDA index; None without one."""
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    known: dict[str, str | int | None] = {"torch_version": str(torch.__version__), "python": platform.python_version()}
    if distributed.is_available() and distributed.is_initialized():
        known["backend"] = distributed.get_backend()
    if index is None:
        return {**known, "device": "cpu"}
    known["device"] = torch.cuda.get_device_name(index)
    known["cuda_runtime_version"] = torch.version.cuda
    try:
        known["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):
        known["nccl_version"] = None  # torch without NCCL, as on Windows and on some boards
    return known


def settings() -> dict[str, Any]:
    """Return the host name, the process id, the cores that this thread may use (None where the system does not tell)
    and the environment variables that configure communication."""
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(RECORDED_PREFIXES) or name in RECORDED_NAMES
    }
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": cores,
        "environment": dict(sorted(chosen.items())),
    }


def peak_memory_bytes(index: int | None) -> int | None:
    """Return the peak bytes of the allocator of a device; None without a device."""
    import torch  # noqa: PLC0415

    return int(torch.cuda.max_memory_allocated(index)) if index is not None else None


def ddp_buckets(model: Any) -> dict[str, Any]:
    """Return the buckets and settings that DistributedDataParallel reports; empty for any other model."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    found = next((each for each in _modules(model) if isinstance(each, DistributedDataParallel)), None)
    if found is None:
        return {}
    reported = found._get_ddp_logging_data()
    parameters = [
        name
        for name, parameter in found.module.named_parameters()
        if parameter.requires_grad and name not in found.parameters_to_ignore
    ]
    indices = [list(map(int, part.split())) for part in reported.get("rebuilt_per_bucket_param_indices", "").split(",")]
    return {
        "bucket_cap_bytes": reported.get("bucket_cap_bytes"),
        "bucket_bytes": _numbers(reported.get("rebuilt_bucket_sizes") or reported.get("bucket_sizes", "")),
        "bucket_parameters": [
            [parameters[index] for index in bucket if index < len(parameters)] for bucket in indices if bucket
        ],
        "gradient_as_bucket_view": bool(reported.get("gradient_as_bucket_view")),
        "static_graph": bool(reported.get("static_graph")),
        "find_unused_parameters": bool(reported.get("find_unused_parameters")),
        "comm_hook": reported.get("comm_hook") or None,
        "compile_splits": _compile_splits(model),
    }


def _compile_splits(model: Any) -> bool:
    """Return whether torch.compile makes one graph per bucket: the compiled module is inside DDP, or is DDP itself.

    `Module.compile()` sets `_compiled_call_impl`; `torch.compile(module)` returns an OptimizedModule around it.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or dynamo.config.optimize_ddp not in (True, "ddp_optimizer"):
        return False
    return any(
        isinstance(each, dynamo.OptimizedModule) or getattr(each, "_compiled_call_impl", None) is not None
        for each in _modules(model)
    )


def _modules(model: Any) -> Any:
    """Return the model and the modules inside it; nothing for None."""
    return model.modules() if model is not None else ()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split()]
