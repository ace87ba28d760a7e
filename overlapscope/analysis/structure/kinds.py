"""The kinds of differences between the structures of two steps."""

from typing import Final, Literal

import msgspec

ChangeKind = Literal[
    "collective_added", "collective_removed", "reduction_removed", "bytes_grew", "bytes_shrank", "dtype_widened",
    "dtype_narrowed", "group_changed", "order_changed", "moved_behind_backward", "phase_changed", "prefetch_lost",
    "prefetch_gained", "overlap_lost", "overlap_gained", "host_sync_added", "host_sync_removed", "flops_grew",
    "flops_shrank", "memory_grew", "memory_shrank",
]  # fmt: skip


class Kind(msgspec.Struct, frozen=True):
    """One kind of difference."""

    words: str
    worse: bool
    """Whether it fails the gate unless the policy says otherwise."""


KINDS: Final[dict[ChangeKind, Kind]] = {
    "moved_behind_backward": Kind("reduced after backward, not during it", worse=True),
    "prefetch_lost": Kind("no longer prefetched", worse=True),
    "overlap_lost": Kind("can no longer overlap with compute", worse=True),
    "host_sync_added": Kind("the host waits for the device", worse=True),
    "collective_added": Kind("more calls", worse=True),
    "dtype_widened": Kind("a wider dtype", worse=True),
    "bytes_grew": Kind("more bytes", worse=True),
    "group_changed": Kind("another group", worse=True),
    "order_changed": Kind("another order on its group", worse=True),
    "reduction_removed": Kind("gradients no longer reduced", worse=True),
    "flops_grew": Kind("more FLOPs", worse=True),
    "memory_grew": Kind("more memory at the peak", worse=True),
    "collective_removed": Kind("fewer calls", worse=False),
    "bytes_shrank": Kind("fewer bytes", worse=False),
    "dtype_narrowed": Kind("a narrower dtype", worse=False),
    "phase_changed": Kind("in another phase", worse=False),
    "prefetch_gained": Kind("now prefetched", worse=False),
    "overlap_gained": Kind("can now overlap with compute", worse=False),
    "host_sync_removed": Kind("the host no longer waits for the device", worse=False),
    "flops_shrank": Kind("fewer FLOPs", worse=False),
    "memory_shrank": Kind("less memory at the peak", worse=False),
}
"""Words of each kind, in the order in which differences are shown."""


class StructureChange(msgspec.Struct, kw_only=True, frozen=True):
    """Differences of one kind between two steps, of calls that are otherwise alike."""

    kind: ChangeKind
    count: int
    """Calls, waits or operations that differ, on one rank."""
    ranks: tuple[int, ...] = ()
    """Ranks that differ in this way."""
    op: str | None = None
    dimension: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    phase: str | None = None
    unit: Literal["bytes", "flops", "calls"] = "calls"
    base: int | None = None
    """Sum over these calls, or of the step, in `unit`; null where the base has none."""
    candidate: int | None = None
    base_is: str | None = None
    """What was changed: the dtype, phase or group of the base."""
    candidate_is: str | None = None
    modules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Lines of the user's code that launch what is new, `train.py:34`; of the base for what is gone."""
    set_up: tuple[str, ...] = ()
    """Lines that wrapped these modules for communication."""
