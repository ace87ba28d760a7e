"""What does not change while a job trains: versions, groups, settings, buckets."""

import os
import platform
import socket
import sys
from typing import Any

from overlapscope.timeline.run import Group

STEERING = ("NCCL_", "RCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "GLOO_", "UCX_", "FI_")
"""Environment variables that steer communication; values of no others are recorded."""
ALSO = ("OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF")


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
    """Return software and device versions."""
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
    """Return the host and the variables that steer communication."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(STEERING) or name in ALSO}
    return {"host": socket.gethostname(), "pid": os.getpid(), "environment": dict(sorted(chosen.items()))}


def peak_memory_bytes() -> int | None:
    """Return the peak of the device's allocator; None without a device."""
    import torch  # noqa: PLC0415

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def ddp_buckets(model: Any) -> dict[str, Any]:
    """Return what DistributedDataParallel says of its buckets; empty for any other model."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    found = next((each for each in _modules(model) if isinstance(each, DistributedDataParallel)), None)
    if found is None:
        return {}
    said = found._get_ddp_logging_data()
    parameters = [
        name
        for name, parameter in found.module.named_parameters()
        if parameter.requires_grad and name not in found.parameters_to_ignore
    ]
    indices = [list(map(int, part.split())) for part in said.get("rebuilt_per_bucket_param_indices", "").split(",")]
    return {
        "bucket_cap_bytes": said.get("bucket_cap_bytes"),
        "bucket_bytes": _numbers(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes", "")),
        "bucket_parameters": [
            [parameters[index] for index in bucket if index < len(parameters)] for bucket in indices if bucket
        ],
        "gradient_as_bucket_view": bool(said.get("gradient_as_bucket_view")),
        "static_graph": bool(said.get("static_graph")),
        "find_unused_parameters": bool(said.get("find_unused_parameters")),
        "comm_hook": said.get("comm_hook") or None,
        "compile_splits": _compile_splits(model),
    }


def _compile_splits(model: Any) -> bool:
    """Return whether torch.compile makes a graph for each bucket: what it compiles runs inside DDP, or is DDP itself.

    `_compiled_call_impl` is what `Module.compile()` sets; `torch.compile(module)` gives an OptimizedModule around it.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None or dynamo.config.optimize_ddp not in (True, "ddp_optimizer"):
        return False
    return any(
        isinstance(each, dynamo.OptimizedModule) or getattr(each, "_compiled_call_impl", None) is not None
        for each in _modules(model)
    )


def _modules(model: Any) -> Any:
    """Return the model and what stands inside it; nothing for None."""
    return model.modules() if model is not None else ()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split()]
