"""Find the DDP settings that make the recorded buckets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.buckets import DEFAULT_CAP_MB, DEFAULT_FIRST_BYTES, MIB, DdpSettings
from overlapscope.whatif.ddp.ddp_step import HALF, Settings, buckets_of
from overlapscope.whatif.ddp.recorded_steps import HOW, Recorded, no_buckets
from overlapscope.whatif.workload.workload import Gradients, Workload


def recorded_settings(run: Run, seen: Recorded) -> tuple[Settings, list[str]]:
    """Return the settings that make the recorded buckets, with notes; raises InputError where none do."""
    recorded: Mapping[str, Any] = next(iter(run.ranks.values())).recorded.get("ddp") or {}
    sent = int(seen.bytes.sum()) / int(seen.grad_bytes.sum())
    base = Settings(
        gradient_as_bucket_view=bool(recorded.get("gradient_as_bucket_view", True)),
        accumulation=seen.passes,
        no_sync=seen.passes > 1 and seen.synced == 1,
        communicated=HALF if abs(sent - HALF) < 1e-9 else sent,
    )
    flags = DdpSettings(
        static_graph=bool(recorded.get("static_graph")),
        find_unused_parameters=bool(recorded.get("find_unused_parameters")),
    )
    cap = recorded.get("bucket_cap_bytes")
    recorded_cap = [cap / MIB] if isinstance(cap, int) and 0 < cap < 1 << 60 else []
    caps = recorded_cap or _possible_caps(seen)
    rules = [replace(flags, bucket_cap_mb=each, small_first_bucket=small) for each in caps for small in (False, True)]
    if DEFAULT_CAP_MB in caps:
        rules.insert(0, flags)
    for rule in rules:
        made = replace(base, ddp=rule)
        if has_buckets(seen, made):
            plain = replace(made, ddp=replace(rule, small_first_bucket=None))
            same = has_buckets(seen, plain)
            found = plain if same else made
            note = f"no cap is recorded; {_words(found.ddp)} makes the recorded buckets"
            return found, [] if recorded_cap else [note]
    limits = tuple(float(each) / MIB for each in _gradient_bytes_of_buckets(seen))
    listed = replace(base, ddp=replace(flags, bucket_cap_mb_list=limits))
    if not has_buckets(seen, listed):
        raise no_buckets(
            run,
            "its all-reduces are not the buckets that torch's rule makes of its gradients in the recorded order, so no "
            f"other cap can be replayed; {HOW}",
        )
    return listed, [
        "no single cap makes the recorded buckets; they are replayed as a list of caps, one for each bucket"
    ]


def _words(rule: DdpSettings) -> str:
    """Return a cap in words, with its first bucket where that is smaller."""
    first = f"a first bucket of {DEFAULT_FIRST_BYTES // MIB} MiB"
    if rule.bucket_cap_mb is None:
        return f"torch's default (bucket_cap_mb=None: {DEFAULT_CAP_MB} MiB after {first})"
    older = f" after {first}, as before torch 2.4," if rule.small_first_bucket else ""
    return f"bucket_cap_mb={rule.bucket_cap_mb:g}{older}"


def has_buckets(seen: Recorded, settings: Settings) -> bool:
    """Return whether torch makes the recorded buckets of the recorded gradients under these settings."""
    return bool(_bucket_elements(seen, settings) == sent_elements(seen).tolist())


def sent_elements(seen: Recorded) -> Ints:
    """Return the number of elements of each all-reduce."""
    return seen.bytes // np.array([ITEM_BYTES[each] for each in seen.sent_dtypes], np.int64)


def _possible_caps(seen: Recorded) -> list[float]:
    """Return caps in MiB that may have made the buckets, the likeliest first: torch's default, a whole number, the size
    of the smallest full bucket.
    """
    full = _gradient_bytes_of_buckets(seen)[:-1] if seen.bytes.size > 1 else _gradient_bytes_of_buckets(seen)
    least = float(full.min()) / MIB
    return [float(DEFAULT_CAP_MB), *([float(int(least))] if least >= 1 else []), least]


def _gradient_bytes_of_buckets(seen: Recorded) -> Ints:
    edges = np.searchsorted(np.cumsum(seen.elements), np.cumsum(sent_elements(seen)))
    total = np.cumsum(seen.grad_bytes)[np.minimum(edges, seen.elements.size - 1)]
    return np.diff(np.concatenate(([0], total)))


def _bucket_elements(seen: Recorded, settings: Settings) -> list[int]:
    count = seen.elements.size
    gradients = Gradients(
        names=seen.names,
        sizes_bytes=seen.grad_bytes,
        kinds=tuple(("all", each) for each in seen.dtypes),
        ready_ns=np.arange(count, dtype=np.float64),
        registered=np.arange(count)[::-1].copy(),
    )
    workload = Workload(world_size=2, forward_ns=0, backward_ns=0, optimizer_ns=0, gradients=gradients)
    return [int(seen.elements[list(each.parameters)].sum()) for each in buckets_of(workload, settings)]
