"""A step of DistributedDataParallel under given settings: a workload becomes a job to replay."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from overlapscope.whatif.buckets import Bucket, DdpSettings, ddp_buckets
from overlapscope.whatif.compression import Compression, sent, sent_ns
from overlapscope.whatif.curves import Curve
from overlapscope.whatif.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload import Workload, curve_of

HALF = 0.5
"""What a hook sends of float32 that casts it to 16 bits."""
_USED_MAP_BYTES = 4
"""A DDP that looks for unused parameters also reduces an int32 for each parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be chosen for a job without changing its model."""

    ddp: DdpSettings = field(default_factory=DdpSettings)
    gradient_as_bucket_view: bool = True
    accumulation: int = 1
    """Backward passes of one optimizer step."""
    no_sync: bool = False
    """Whether all but the last of them leave gradients unreduced."""
    communicated: float = 1.0
    """Share of each gradient's bytes that is sent: 0.5 where float32 is cast to 16 bits by a hook."""
    compression: Compression | None = None
    """A hook that sends something else for gradients."""
    link_speed: float = 1.0
    """No setting, but what would be with links so many times as fast."""
    late_ranks: bool = True
    """Likewise: False is as if all ranks began their step at once."""

    @property
    def hypothetical(self) -> bool:
        """Whether no setting alone would bring it about."""
        return self.link_speed != 1 or not self.late_ranks

    def knobs(self) -> dict[str, object]:
        """Give what differs from torch's defaults, in torch's words."""
        found: dict[str, object] = {"bucket_cap_mb": self.ddp.bucket_cap_mb}
        if self.ddp.bucket_cap_mb_list:
            found = {"bucket_cap_mb_list": list(self.ddp.bucket_cap_mb_list)}
        if self.gradient_as_bucket_view:
            found["gradient_as_bucket_view"] = True
        if self.accumulation > 1:
            found |= {"accumulation": self.accumulation, "no_sync": self.no_sync}
        if self.communicated != 1:
            found["hook"] = "16-bit" if self.communicated == HALF else self.communicated
        if self.compression is not None:
            found["hook"] = self.compression.words
        if self.link_speed != 1:
            found["link_speed"] = self.link_speed
        if not self.late_ranks:
            found["late_ranks"] = False
        flags = ("find_unused_parameters", "static_graph", "small_last_bucket")
        return found | {name: True for name in flags if getattr(self.ddp, name)}


def buckets_of(workload: Workload, settings: Settings) -> list[Bucket]:
    """Give the buckets of a workload, as places among its gradients, in the order of launch."""
    gradients = workload.gradients
    by_number = np.argsort(gradients.registered)
    # torch numbers parameters as registered; the workload's gradients stand in the order of readiness.
    found = ddp_buckets(
        gradients.sizes_bytes[by_number].tolist(),
        [gradients.kinds[each] for each in by_number.tolist()],
        settings.ddp,
        ready_order=gradients.registered.tolist(),
    )
    return [Bucket(tuple(int(by_number[each]) for each in one.parameters), one.limit_bytes) for one in found]


def bucket_memory_bytes(workload: Workload, settings: Settings) -> int:
    """Give the memory that buckets take beside gradients: none where gradients are views of them.

    Compression keeps the error of all gradients for the next step.
    """
    copies = (not settings.gradient_as_bucket_view) + (settings.compression is not None)
    return copies * int(workload.gradients.sizes_bytes.sum())


def ddp_job(workload: Workload, settings: Settings) -> Job:
    """Give the job of one optimizer step. Ranks that begin at the same time are one: they would do the same.

    Raises KeyError where the workload has no curve for a collective that is needed.
    """
    lateness = (settings.late_ranks and workload.lateness_ns) or (0.0,)
    ranks = tuple(sorted({late: rank for rank, late in reversed(list(enumerate(lateness)))}.values()))
    reductions = _reductions(workload, settings)
    transfers: list[Transfer] = []
    body: list[Instruction] = [Gap(workload.host_gap_ns)] if workload.host_gap_ns else []
    for turn in range(settings.accumulation):
        synced = turn == settings.accumulation - 1 or not settings.no_sync
        body += _passes(workload, reductions if synced else [], ranks, transfers)
    if workload.optimizer_ns:
        body.append(Work(workload.optimizer_ns))
    return Job(
        programmes={rank: [Gap(lateness[rank]), *body] if lateness[rank] else body for rank in ranks},
        transfers=[replace(each, alone_ns=each.alone_ns / settings.link_speed) for each in transfers],
        interference=workload.interference,
        width=workload.comm_width,
    )


@dataclass(frozen=True, slots=True)
class _Reduction:
    """An all-reduce of a bucket: when its gradients are ready, what it takes, and the work around it."""

    launch_ns: float
    alone_ns: float
    before_ns: float
    after_ns: float


def _reductions(workload: Workload, settings: Settings) -> list[_Reduction]:
    """Give the reductions of a backward pass in the order of launch: a bucket also waits for those before it."""
    gradients = workload.gradients
    members = [list(each.parameters) for each in buckets_of(workload, settings)]
    curve = curve_of(workload, "all_reduce", workload.world_size)
    sizes = np.array([gradients.sizes_bytes[each].sum() for each in members], np.float64)
    ready = np.maximum.accumulate([gradients.ready_ns[each].max() for each in members])
    # Every gradient is divided by the world size: into its bucket, or in place where it is a view of it. Copies that
    # are no views are also copied back (`Reducer::mark_variable_ready_dense` and `finalize_bucket_dense`).
    once = workload.pass_ns_per_byte * sizes
    back = once * (not settings.gradient_as_bucket_view)
    alone = curve.at(sizes * settings.communicated)
    cost = once
    if settings.compression is not None:
        alone = np.array([_compressed_ns(workload, settings.compression, each, curve) for each in members])
        cost = once * (1 + settings.compression.passes)
    found = [
        _Reduction(*each)
        for each in zip(
            ready.tolist(), alone.tolist(), (workload.per_bucket_ns + cost).tolist(), back.tolist(), strict=True
        )
    ]
    if not settings.ddp.rebuilds:
        used = float(curve.at(_USED_MAP_BYTES * len(gradients.names)))
        found.append(_Reduction(workload.forward_ns + workload.backward_ns, used, 0.0, 0.0))
    return found


def _compressed_ns(workload: Workload, compression: Compression, members: Sequence[int], curve: Curve) -> float:
    gradients = workload.gradients
    shapes = [gradients.shapes[each] for each in members]
    item_bytes = int(gradients.sizes_bytes[members[0]]) // max(prod(shapes[0]), 1)
    return sent_ns(sent(compression, shapes, item_bytes, workload.world_size), curve)


def _passes(
    workload: Workload, reductions: Sequence[_Reduction], ranks: tuple[int, ...], transfers: list[Transfer]
) -> list[Instruction]:
    """Give a forward and a backward pass with its launches, and the waits that end it; adds to `transfers`."""
    marks = _placed_marks(workload, ranks, transfers)
    waits: list[Instruction] = []
    for each in reductions:
        work: list[Instruction] = [Work(each.before_ns)] if each.before_ns else []
        marks.append((each.launch_ns, [*work, Launch(len(transfers))]))
        waits += [Wait(len(transfers)), *([Work(each.after_ns)] if each.after_ns else [])]
        transfers.append(Transfer(ranks=ranks, alone_ns=each.alone_ns))
    end = workload.forward_ns + workload.backward_ns
    body: list[Instruction] = []
    at = 0.0
    for time, instructions in [*sorted(marks, key=lambda mark: mark[0]), (end, [])]:
        if min(time, end) > at:
            body.append(Work(min(time, end) - at))
            at = min(time, end)
        body += instructions
    return body + waits


def _placed_marks(
    workload: Workload, ranks: tuple[int, ...], transfers: list[Transfer]
) -> list[tuple[float, list[Instruction]]]:
    """Add the collectives that stand where they stand, and give where they are launched and waited for."""
    marks: list[tuple[float, list[Instruction]]] = []
    for each in workload.placed:
        number = len(transfers)
        alone = float(curve_of(workload, each.op, len(each.ranks)).at(each.bytes))
        transfers.append(Transfer(ranks=ranks, alone_ns=alone, stream=each.stream, link=each.link))
        needed = workload.forward_ns + workload.backward_ns if each.needed_ns is None else each.needed_ns
        marks.append((each.launch_ns, [Launch(number)]))
        marks.append((needed, [Wait(number)]))
    return marks
