"""The replayed step of one rank for display: when it computes, and when each collective waits and transfers."""

import msgspec

from overlapscope.whatif.ddp.ddp_step import Settings, buckets_of, ddp_job
from overlapscope.whatif.replay.replay import Work, replay
from overlapscope.whatif.workload.workload import Workload


class CollectiveSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the step; times in ns from its start."""

    begun_ns: float
    """When the rank began; it waits for the others until `start_ns`."""
    start_ns: float
    end_ns: float
    bytes: int | None
    """Bytes of gradients; None for a collective that is no bucket."""


class ReplayedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A replayed step on the rank that ends last. The last four times add up to the step."""

    step_ns: float
    computing_ns: tuple[tuple[float, float], ...]
    """Start and end of each stretch of compute."""
    sent: tuple[CollectiveSpan, ...]
    compute_only_ns: float
    hidden_ns: float
    exposed_ns: float
    idle_ns: float


def replayed_step(workload: Workload, settings: Settings) -> ReplayedStep:
    """Replay a step under settings, with the assumptions of the workload."""
    job = ddp_job(workload, settings)
    done = replay(job)
    rank = max(done.ended_ns, key=lambda each: done.ended_ns[each])
    reached = done.reached_ns[rank]
    stretches: list[tuple[float, float]] = []
    for at, instruction in enumerate(job.programmes[rank]):
        begin, end = reached[at], reached[at + 1]
        if not isinstance(instruction, Work) or end <= begin:
            continue
        if stretches and stretches[-1][1] >= begin:
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    moved, sizes = done.transferring_ns, _sizes(workload, settings, len(done.transferring_ns))
    sent = tuple(
        CollectiveSpan(begun_ns=done.begun_ns[at][rank], start_ns=moved[at][0], end_ns=moved[at][1], bytes=sizes[at])
        for at in range(len(moved))
        if rank in done.begun_ns[at]
    )
    computed = sum(end - begin for begin, end in stretches)
    hidden, exposed = done.hidden_comm_ns[rank], done.exposed_comm_ns[rank]
    return ReplayedStep(
        step_ns=done.step_ns,
        computing_ns=tuple(stretches),
        sent=sent,
        compute_only_ns=max(computed - hidden, 0.0),
        hidden_ns=hidden,
        exposed_ns=exposed,
        idle_ns=max(done.step_ns - computed - exposed, 0.0),
    )


def _sizes(workload: Workload, settings: Settings, transfers: int) -> list[int | None]:
    """Return the gradient bytes of each transfer of `ddp_job`: placed ones first, then buckets, then the used map."""
    sizes = workload.gradients.sizes_bytes
    buckets = [int(sizes[list(each.parameters)].sum()) for each in buckets_of(workload, settings)]
    placed: list[int | None] = [None] * len(workload.placed)
    used_map: list[int | None] = [] if settings.ddp.rebuilds else [None]
    found: list[int | None] = []
    for turn in range(settings.accumulation):
        synced = turn == settings.accumulation - 1 or not settings.no_sync
        found += [*placed, *(buckets if synced else []), *(used_map if synced else [])]
    assert len(found) == transfers
    return found
