"""Stages of ZeRO for a job whose ranks each hold the whole model: what is sharded, bytes sent, memory saved.

Rajbhandari et al. (arXiv 1910.02054): of P parameters with K bytes of optimizer state each, N ranks hold (2 + 2 + K) P
bytes each of a model in 16 bits. Stage 1 shards the optimizer's states, (2 + 2 + K / N) P; stage 2 the gradients too,
(2 + (2 + K) / N) P; stage 3 the parameters too, (2 + 2 + K) P / N. K is 12 for Adam with its copy of the parameters in
32 bits; a model in 32 bits needs no such copy: (4 + 4 + 8) P. Stages 1 and 2 send as many bytes as
all-reduces, a reduce-scatter and an all-gather of the whole; stage 3 sends half as much again, because it gathers in
forward and in backward.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.whatif.workload.workload import Workload

STAGES: Final = (1, 2, 3)
STATE_BYTES: Final = {"sgd": 0, "sgd_momentum": 4, "adam": 8, "adamw": 8}
"""Bytes of optimizer state for one parameter, in 32 bits."""
COPY_BYTES: Final = 4
"""Bytes of the 32-bit copy of one 16-bit parameter, which the optimizer updates."""
SCATTER_SHARE: Final = {True: (0.4, 0.5, 0.7), False: (0.5, 1.0, 1.0)}
"""Time of a reduce-scatter as a share of an all-reduce of as many bytes, where it was not measured: low, usual, high.
True for rings, which reduce-scatter and then gather (Patarasuk and Yuan 2009); False for gloo, whose
reduce-scatter is an all-reduce in torch."""
GATHER_SHARE: Final = {True: (0.4, 0.5, 0.7), False: (0.5, 0.6, 0.8)}
"""The same for an all-gather; gloo's was measured at 0.5 to 0.75 (see docs/whatif.md)."""


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of ZeRO, and the cost of its collectives where they were not measured."""

    stage: int
    state_bytes: int
    """Bytes of optimizer state for one parameter, in 32 bits."""
    cost: int = 1
    """Index of the share of an all-reduce's time that is used: 0 low, 1 usual, 2 high."""

    def range(self) -> "list[Sharding]":
        """Return the stage with low, usual and high cost."""
        return [replace(self, cost=each) for each in range(3)]


def sharding_of(stage: int, optimizer: str) -> Sharding:
    """Return a stage under an optimizer. Raises UsageError for another stage than 1, 2 or 3."""
    if stage not in STAGES:
        raise UsageError(f"--zero-stage {stage}: there are stages 1, 2 and 3")
    return Sharding(stage=stage, state_bytes=STATE_BYTES[optimizer])


def time_ns(workload: Workload, sharding: Sharding, op: str, size_bytes: float) -> float:
    """Return the time of a collective in ns: measured, else a share of the all-reduce of as many bytes."""
    curves = {each.op: each for each in workload.curves if each.ranks in (workload.world_size, None)}
    if op in curves:
        return float(curves[op].at(size_bytes))
    shares = SCATTER_SHARE if op == "reduce_scatter" else GATHER_SHARE
    return float(curves["all_reduce"].at(size_bytes)) * shares[workload.comm_width == 1][sharding.cost]


def unmeasured_operations(workload: Workload) -> list[str]:
    """Return the operations of the stages that were not measured."""
    known = {each.op for each in workload.curves if each.ranks in (workload.world_size, None)}
    return [each for each in ("reduce_scatter", "all_gather") if each not in known]


def saved_bytes(workload: Workload, sharding: Sharding, largest_bucket_bytes: int) -> int:
    """Return the bytes of memory that the stage saves on a rank; parameters are assumed to have gradients' dtypes.

    Stage 3 holds the whole parameters of two buckets at a time: the one it computes with and the next one.
    """
    gradients = workload.gradients
    whole = states = 0
    for size, kind in zip(gradients.sizes_bytes.tolist(), gradients.kinds, strict=True):
        item = ITEM_BYTES.get(str(kind[-1] if isinstance(kind, tuple) else kind), 4)
        whole += size
        states += size // item * (sharding.state_bytes + (COPY_BYTES if item < COPY_BYTES else 0))
    sharded = states + (whole if sharding.stage > 1 else 0) + (whole if sharding.stage > 2 else 0)
    kept = min(2 * largest_bucket_bytes, whole) if sharding.stage > 2 else 0
    ranks = workload.world_size
    return sharded - -(-sharded // ranks) - kept * (ranks - 1) // ranks
