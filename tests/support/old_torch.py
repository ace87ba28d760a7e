"""What older versions of torch cannot do, and what tests do about it."""

import time
from functools import cache, wraps
from importlib import import_module
from typing import Any

import pytest


def needs_fsdp2_without_cuda() -> None:
    """Skip the test before torch 2.6, which made FSDP2 public; that of 2.4 opens CUDA streams for any device."""
    if not hasattr(import_module("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 of this torch needs CUDA")


def needs_dry_runs() -> None:
    """Skip the test before the torch that dry runs are promised on."""
    if not has_dry_runs():
        pytest.skip("dry runs need a newer torch")


def has_dry_runs() -> bool:
    """Whether dry runs are promised on this torch."""
    from overlapscope.dry_run.passes import LOWEST_TORCH  # noqa: PLC0415 - few tests need it

    return _version() >= LOWEST_TORCH


def pipelines_run_over_gloo() -> bool:
    """Whether torch's own 1F1B ends over gloo: it hangs in 2.6 and 2.7, without us too, and does not in 2.13."""
    return _version() >= (2, 13)


@cache
def rest_before_groups_are_destroyed() -> None:
    """Before torch 2.8, wait a little in front of each `destroy_process_group`.

    There it holds the interpreter while it joins the group's threads. A thread that has just ended a collective may
    need the interpreter to free a tensor, and then neither goes on, with and without us (pytorch/pytorch#154976).
    """
    from torch import distributed  # noqa: PLC0415 - slow, and not everywhere

    if _version() >= (2, 8):
        return
    destroy = distributed.destroy_process_group

    @wraps(destroy)
    def after_a_rest(*arguments: Any, **named: Any) -> None:
        time.sleep(0.5)
        destroy(*arguments, **named)

    distributed.destroy_process_group = after_a_rest
    distributed.distributed_c10d.destroy_process_group = after_a_rest


def _version() -> tuple[int, ...]:
    import torch  # noqa: PLC0415 - as above

    return tuple(int(part) for part in torch.__version__.split(".")[:2])
