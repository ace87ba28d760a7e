"""Find bucket settings to try: single caps, and a list of caps by a merge rule and a local search."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from overlapscope.whatif.ddp.buckets import MIB, DdpSettings
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.workload.workload import Workload, curve_of

CAPS_MB: Final = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)
"""Caps in MiB that are tried by default."""
ROUNDS: Final = 3
"""Rounds of the local search; each tries to move every boundary once."""
MOST_WORK: Final = 100_000
"""Limit on gradients times tries of the local search: a model with very many gradients gets few tries."""


def with_cap(base: Settings, cap_mb: float | None) -> Settings:
    """Return the settings with one cap for all buckets."""
    return replace(base, ddp=replace(base.ddp, bucket_cap_mb=cap_mb, bucket_cap_mb_list=()))


def with_groups(workload: Workload, base: Settings, groups: Sequence[Sequence[int]]) -> Settings:
    """Return the settings with which torch makes these buckets: groups of gradients in the order of readiness.

    Each limit is the size of its group, so that the bucket closes with the group's last gradient.
    """
    sizes = workload.gradients.sizes_bytes
    limits = tuple(float(sizes[list(group)].sum()) / MIB for group in groups)
    return replace(base, ddp=replace(base.ddp, bucket_cap_mb=None, bucket_cap_mb_list=limits))


def merged(workload: Workload) -> list[list[int]]:
    """Group gradients by the rule of MG-WFBP (Shi et al., INFOCOM 2019), with a curve instead of its linear cost.

    A gradient joins the group before it if it is ready before that group's transfer could start, or if waiting for it
    costs less than the latency of its own transfer.
    """
    gradients = workload.gradients
    curve = curve_of(workload, "all_reduce", workload.world_size)
    sizes, ready = gradients.sizes_bytes.tolist(), gradients.ready_ns.tolist()
    groups: list[list[int]] = [[0]]
    free_ns = 0.0
    held = sizes[0]
    for number in range(1, len(sizes)):
        start = max(ready[number - 1], free_ns)
        alone = curve.at([held, sizes[number], held + sizes[number]])
        saved = float(alone[0] + alone[1] - alone[2])
        if ready[number] <= start or ready[number] - start < saved:
            groups[-1].append(number)
            held += sizes[number]
            continue
        free_ns = start + float(alone[0])
        groups.append([number])
        held = sizes[number]
    return groups


def improved(
    groups: Sequence[Sequence[int]], cost: Callable[[Sequence[Sequence[int]]], float], most_tries: int = 600
) -> list[list[int]]:
    """Move, remove and add boundaries between groups while the cost falls, in at most `most_tries` calls of it."""
    count = sum(map(len, groups))
    most_tries = min(most_tries, MOST_WORK // count)
    cuts = _cuts(groups)
    best, tries = cost(groups), 1
    for _ in range(ROUNDS):
        before = best
        for cut in range(1, count):
            options = [cuts ^ {cut}]
            if cut in cuts:
                options += [(cuts - {cut}) | {near} for near in (cut - 1, cut + 1) if 0 < near < count]
            for option in options:
                if tries >= most_tries:
                    return _groups(cuts, count)
                tries += 1
                found = cost(_groups(option, count))
                if found < best:
                    cuts, best = option, found
        if best >= before:
            break
    return _groups(cuts, count)


def _cuts(groups: Sequence[Sequence[int]]) -> frozenset[int]:
    return frozenset(group[0] for group in groups[1:])


def _groups(cuts: frozenset[int] | set[int], count: int) -> list[list[int]]:
    edges = [0, *sorted(cuts), count]
    return [list(range(start, end)) for start, end in pairwise(edges)]


def can_list(settings: Settings, workload: Workload) -> bool:
    """Return whether a list of caps can make any grouping: buckets are rebuilt, and all gradients have one kind."""
    return settings.ddp.rebuilds and len(set(workload.gradients.kinds)) == 1 and not settings.ddp.small_last_bucket


def caps_to_try(base: DdpSettings, requested: Sequence[float]) -> list[float | None]:
    """Return the caps to replay in MiB: the requested ones, else the usual ones and torch's default (None).

    The present cap is always included.
    """
    caps: list[float | None] = list(requested) or [*CAPS_MB, None]
    if not base.bucket_cap_mb_list and base.bucket_cap_mb not in caps:
        caps.append(base.bucket_cap_mb)
    return list(dict.fromkeys(caps))
