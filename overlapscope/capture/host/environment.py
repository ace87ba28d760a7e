"""Read what does not change while a job trains: versions, process groups, settings, DDP buckets."""

import os
import platform
import socket
import sys
from typing import Any

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


def device() -> tuple[int | None, str | None]:
    """Return the CUDA index and the UUID of this rank's device; (None, None) without one."""
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None, None
    index = torch.cuda.current_device()
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
        ranks = tuple(sorted(members))
        found.append(Group(name=group.group_name, description=group.group_desc or None, size=len(ranks), ranks=ranks))
    return tuple(sorted(found, key=lambda each: each.name))


def fingerprint() -> dict[str, str | int | None]:
    """Return the versions of the software and the name of the device."""
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    known: dict[str, str | int | None] = {"torch_version": str(torch.__version__), "python": platform.python_version()}
    if distributed.is_available() and distributed.is_initialized():
        known["backend"] = distributed.get_backend()
    if torch.cuda.is_available():
        known["device"] = torch.cuda.get_device_name()
        known["cuda_runtime_version"] = torch.version.cuda
        known["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    else:
        known["device"] = "cpu"
    return known


def settings() -> dict[str, Any]:
    """Return the host name, the process id and the environment variables that configure communication."""
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(RECORDED_PREFIXES) or name in RECORDED_NAMES
    }
    return {"host": socket.gethostname(), "pid": os.getpid(), "environment": dict(sorted(chosen.items()))}


def peak_memory_bytes() -> int | None:
    """Return the peak bytes of the device's allocator; None without a device."""
    import torch  # noqa: PLC0415

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


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
