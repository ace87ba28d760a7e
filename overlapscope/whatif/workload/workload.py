"""The work of one training step, independent of how it was scheduled.

Every rank has one axis of *free* compute time: the durations of forward, backward and optimizer while nothing else runs
on the device. On this axis gradients become ready, collectives are launched, and their results are needed. Bucket caps
and other settings turn a workload into a `Job` (see `ddp_step`), which `replay` runs.
"""

from collections.abc import Hashable

import msgspec
import numpy as np

from overlapscope.timeline.columns import Floats, Ints
from overlapscope.whatif.cost.curves import Curve


class Gradients(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Gradients in the order in which they become ready; one entry each."""

    names: tuple[str, ...]
    sizes_bytes: Ints
    kinds: tuple[Hashable, ...]
    """Device and dtype, or any other key that separates buckets."""
    ready_ns: Floats
    """On the axis of free compute, ascending."""
    registered: Ints
    """Number of the parameter as the module registers it."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Empty where they are not known."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that no bucket setting moves: a gather of FSDP, an all-reduce of tensor parallelism."""

    op: str
    bytes: int
    ranks: tuple[int, ...]
    launch_ns: float
    """On the axis of free compute."""
    needed_ns: float | None
    """When compute waits for it; None is before the optimizer."""
    dtype: str | None = None
    stream: str = "comm"
    """Collectives of one stream run in order."""
    link: str = "link"
    """Collectives that run at the same time on one link share it."""


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long compute and collectives take beside each other; 1 is no interference."""

    compute: float = 1.0
    """Compute, while a collective transfers on its device."""
    comm: float = 1.0
    """A collective, while any of its members computes."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One step of all ranks. Times are ns of undisturbed compute."""

    world_size: int
    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    gradients: Gradients
    curves: tuple[Curve, ...] = ()
    """Collective times, one curve for each operation and number of ranks."""
    by_channels: tuple[tuple[int, Curve], ...] = ()
    """All-reduce times with other numbers of channels."""
    placed: tuple[Placed, ...] = ()
    host_gap_ns: float = 0.0
    """Time of a step in which the device waits for its host; no setting here changes it."""
    per_bucket_ns: float = 0.0
    """Compute that each bucket costs: launching, finishing."""
    pass_ns_per_byte: float = 0.0
    """Time of reading and writing a byte of gradients once: dividing it, copying it out of its bucket."""
    lateness_ns: tuple[float, ...] = ()
    """How much later than the first rank each rank begins; empty where all begin at the same time."""
    interference: Interference = msgspec.field(default_factory=Interference)
    comm_share: float = 1.0
    """How much of compute's slowdown a collective suffers too (0 to 1), where both cannot be measured apart."""
    comm_width: int = 1
    """How many collectives of one stream run at once: 1 for NCCL, 2 worker threads for gloo."""

    @property
    def compute_ns(self) -> float:
        """Free compute of one step: its duration without communication."""
        return self.forward_ns + self.backward_ns + self.optimizer_ns


def curve_of(workload: Workload, op: str, ranks: int) -> Curve:
    """Return the curve of an operation. Raises KeyError without one for that operation and number of ranks."""
    for each in workload.curves:
        if each.op == op and each.ranks in (ranks, None):
            return each
    raise KeyError(f"{op} over {ranks} ranks")


def without_interference(times_ns: Floats, busy: Floats, slowdown: float) -> Floats:
    """Convert times to what they would be without interference.

    `busy` has shape (n, 2), rows (start, end), ascending without overlap: when a collective transferred. Compute
    advanced there by 1 / `slowdown`. Recorded times are already stretched by it, so they must be converted before they
    are replayed with another overlap.
    """
    if not busy.size:
        return np.asarray(times_ns, np.float64)
    lost = np.concatenate(([0.0], np.cumsum(busy[:, 1] - busy[:, 0]))) * (1 - 1 / slowdown)
    place = np.searchsorted(busy[:, 0], times_ns, side="right")
    inside = place > 0
    before = np.where(inside, lost[place - 1], 0.0)
    last = np.maximum(place - 1, 0)
    within = np.clip(times_ns - busy[last, 0], 0.0, busy[last, 1] - busy[last, 0]) * (1 - 1 / slowdown)
    return np.asarray(times_ns - before - np.where(inside, within, 0.0), np.float64)
