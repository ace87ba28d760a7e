"""Assign gradients to the buckets of DistributedDataParallel, by torch's own rule.

A bucket takes gradients of one device and dtype until it holds *at least* its limit: limits are soft, and a tensor is
never split. Each device and dtype fills its own buckets and uses the list of limits by itself; the last limit repeats.
(`compute_bucket_assignment_by_size` and `Reducer::rebuild_buckets` in torch's reducer.cpp, and `_BucketCapacityConfig`
in distributed.py, torch 2.13; tests compare with torch's own function.)
"""

from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

MIB: Final = 1 << 20
"""Unit of torch's `bucket_cap_mb`."""
DEFAULT_CAP_MB: Final = 25
DEFAULT_FIRST_BYTES: Final = MIB
"""The first bucket's limit where no cap is given (`_DEFAULT_FIRST_BUCKET_BYTES`)."""


class DdpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide buckets, by the names of DistributedDataParallel."""

    bucket_cap_mb: float | None = None
    """MiB; None is torch's default: 25 with a first bucket of 1."""
    bucket_cap_mb_list: tuple[float, ...] = ()
    """A limit for each bucket in the order in which they are filled; replaces `bucket_cap_mb` where not empty."""
    find_unused_parameters: bool = False
    static_graph: bool = False
    small_first_bucket: bool | None = None
    """Whether the first bucket has 1 MiB. None is torch's rule since 2.4 (only with the default cap); True is the rule
    of older versions, with any cap."""
    small_last_bucket: bool = False
    """`DDP_SET_LAST_BUCKET_CAP=1`: the small bucket is the one that is filled last."""

    @property
    def rebuilds(self) -> bool:
        """Whether buckets are rebuilt after the first iteration, in the order in which gradients became ready."""
        return self.static_graph or not self.find_unused_parameters

    def limits(self) -> tuple[int, ...]:
        """Return the limits in bytes; the last one repeats."""
        if self.bucket_cap_mb_list:
            return tuple(int(each * MIB) for each in self.bucket_cap_mb_list)
        cap_mb = DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        cap = int(cap_mb * MIB)
        small = self.bucket_cap_mb is None if self.small_first_bucket is None else self.small_first_bucket
        first = DEFAULT_FIRST_BYTES if small else cap
        # Buckets that are never rebuilt get a small first bucket only where it is smaller than the cap.
        return (first, cap) if first < cap or self.rebuilds else (cap,)


class Bucket(msgspec.Struct, frozen=True):
    """The gradients of one bucket, as parameter numbers, and the limit in bytes that it was filled to."""

    parameters: tuple[int, ...]
    limit_bytes: int


def assign(
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
    limits: Sequence[int],
    *,
    order: Sequence[int] | None = None,
) -> list[Bucket]:
    """Assign parameters to buckets as torch does; buckets are in torch's order.

    `kinds` holds the device and dtype of each parameter, or any other key that separates buckets. Without `order`
    parameters are taken as registered and buckets are sorted by their first parameter. With `order` (parameter numbers
    as they become ready) buckets come in the order in which they fill up, then the unfilled ones, the kind that was
    seen last first: that is the order in which the standard library that torch is built with iterates its hash table.
    """
    filling: dict[Hashable, list[int]] = {}
    filled_bytes: dict[Hashable, int] = {}
    place: dict[Hashable, int] = {}
    done: list[Bucket] = []
    for parameter in range(len(sizes_bytes)) if order is None else order:
        kind = kinds[parameter]
        filling.setdefault(kind, []).append(parameter)
        filled_bytes[kind] = filled_bytes.get(kind, 0) + sizes_bytes[parameter]
        limit = limits[place.setdefault(kind, 0)]
        if filled_bytes[kind] >= limit:
            done.append(Bucket(tuple(filling[kind]), limit))
            filling[kind], filled_bytes[kind] = [], 0
            place[kind] = min(place[kind] + 1, len(limits) - 1)
    left = [Bucket(tuple(filling[kind]), limits[place[kind]]) for kind in reversed(filling) if filling[kind]]
    found = done + left
    return sorted(found, key=lambda bucket: min(bucket.parameters)) if order is None else found


def ddp_buckets(
    sizes_bytes: Sequence[int],
    kinds: Sequence[Hashable],
    settings: DdpSettings,
    *,
    ready_order: Sequence[int] | None = None,
) -> list[Bucket]:
    """Return the buckets of all iterations but the first, in the order in which they are launched.

    Parameters are numbered as the module registers them. `ready_order` is the order in which their gradients became
    ready in the first iteration on rank 0; without it they are taken from the last registered to the first.
    """
    limits = settings.limits()
    if not settings.rebuilds:
        return assign(sizes_bytes, kinds, limits)[::-1]
    order = list(ready_order) if ready_order is not None else list(range(len(sizes_bytes)))[::-1]
    if settings.small_last_bucket:
        return assign(sizes_bytes, kinds, limits, order=order[::-1])[::-1]
    return assign(sizes_bytes, kinds, limits, order=order)
