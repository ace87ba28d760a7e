"""Build the job to replay for one step of DistributedDataParallel: a workload under given settings."""

from collections.abc import Sequence
from math import prod

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.whatif.cost.compression import Compression, collectives_ns, compressed_collectives
from overlapscope.whatif.cost.curves import Curve
from overlapscope.whatif.ddp.buckets import MIB, Bucket, DdpSettings, ddp_buckets
from overlapscope.whatif.ddp.zero import Sharding, saved_bytes
from overlapscope.whatif.replay.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload.workload import Workload, curve_of

HALF = 0.5
"""Share of the bytes that a communication hook sends where it casts float32 to 16 bits."""
_USED_MAP_BYTES = 4
"""With `find_unused_parameters` DDP also reduces an int32 for each parameter."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a job that do not change its model."""

    ddp: DdpSettings = msgspec.field(default_factory=DdpSettings)
    gradient_as_bucket_view: bool = True
    accumulation: int = 1
    """Backward passes of one optimizer step."""
    no_sync: bool = False
    """Whether only the last of these passes reduces gradients."""
    communicated: float = 1.0
    """Share of each gradient's bytes that is sent: 0.5 where float32 is cast to 16 bits by a hook."""
    compression: Compression | None = None
    """A hook that sends compressed gradients."""
    sharding: Sharding | None = None
    """A stage of ZeRO: the step is then not DistributedDataParallel's, see `sharded_step`."""
    partition_mb: float | None = None
    """Size in MiB of the pieces in which a bucket is sent; None sends it whole."""
    priority: bool = False
    """Whether gradients that the next forward needs first are sent first, see `priority_step`."""
    channels: int | None = None
    """NCCL channels; the workload must have a curve for them. None is the present number."""
    link_speed: float = 1.0
    """Hypothetical: links so many times as fast."""
    late_ranks: bool = True
    """Hypothetical: False is as if all ranks began their step at the same time."""

    @property
    def hypothetical(self) -> bool:
        """Whether no setting of the job can do it."""
        return self.link_speed != 1 or not self.late_ranks or self.priority or self.partition_mb is not None

    def knobs(self) -> dict[str, object]:
        """Return the settings that differ from torch's defaults, by torch's names."""
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
        if self.sharding is not None:
            found["zero_stage"] = self.sharding.stage
        if self.partition_mb is not None:
            found["partition_mb"] = self.partition_mb
        if self.priority:
            found["priority"] = True
        if self.channels is not None:
            found["channels"] = self.channels
        if self.link_speed != 1:
            found["link_speed"] = self.link_speed
        if not self.late_ranks:
            found["late_ranks"] = False
        flags = ("find_unused_parameters", "static_graph", "small_last_bucket")
        return found | {name: True for name in flags if getattr(self.ddp, name)}


def buckets_of(workload: Workload, settings: Settings) -> list[Bucket]:
    """Return the buckets of a workload in launch order; their parameters are indices into its gradients."""
    gradients = workload.gradients
    by_number = np.argsort(gradients.registered)
    # torch numbers parameters in registration order; the workload's gradients are in the order of readiness.
    found = ddp_buckets(
        gradients.sizes_bytes[by_number].tolist(),
        [gradients.kinds[each] for each in by_number.tolist()],
        settings.ddp,
        ready_order=gradients.registered.tolist(),
    )
    return [Bucket(tuple(int(by_number[each]) for each in one.parameters), one.limit_bytes) for one in found]


def bucket_memory_bytes(workload: Workload, settings: Settings) -> int:
    """Return the memory of buckets beside the gradients: none where gradients are views of them.

    Compression keeps the error of all gradients for the next step. The memory that a stage of ZeRO saves is subtracted.
    """
    sizes = workload.gradients.sizes_bytes
    copies = (not settings.gradient_as_bucket_view) + (settings.compression is not None)
    taken = copies * int(sizes.sum())
    if settings.sharding is not None:
        largest = max(int(sizes[list(each.parameters)].sum()) for each in buckets_of(workload, settings))
        taken -= saved_bytes(workload, settings.sharding, largest)
    return taken


def ddp_job(workload: Workload, settings: Settings) -> Job:
    """Return the job of one optimizer step. Ranks that begin at the same time do the same and are replayed as one.

    Raises KeyError where the workload has no curve for a collective that is needed.
    """
    reductions = reductions_of(workload, settings)
    transfers: list[Transfer] = []
    body: list[Instruction] = [Gap(workload.host_gap_ns)] if workload.host_gap_ns else []
    for turn in range(settings.accumulation):
        synced = turn == settings.accumulation - 1 or not settings.no_sync
        body += _passes(workload, reductions if synced else [], transfers)
    if workload.optimizer_ns:
        body.append(Work(workload.optimizer_ns))
    return of_ranks(workload, settings, body, transfers)


def of_ranks(workload: Workload, settings: Settings, body: Sequence[Instruction], transfers: Sequence[Transfer]) -> Job:
    """Return the job in which all ranks run `body`, each with its own lateness, and take part in every transfer."""
    lateness = (settings.late_ranks and workload.lateness_ns) or (0.0,)
    ranks = tuple(sorted({late: rank for rank, late in reversed(list(enumerate(lateness)))}.values()))
    return Job(
        programmes={rank: [Gap(lateness[rank]), *body] if lateness[rank] else body for rank in ranks},
        transfers=[replace(each, ranks=ranks, alone_ns=each.alone_ns / settings.link_speed) for each in transfers],
        interference=workload.interference,
        width=workload.comm_width,
    )


class Reduction(msgspec.Struct, frozen=True):
    """An all-reduce of a bucket: when its gradients are ready, the times of its pieces, and the work around it."""

    launch_ns: float
    pieces_ns: tuple[float, ...]
    before_ns: float
    after_ns: float


def reductions_of(workload: Workload, settings: Settings) -> list[Reduction]:
    """Return the reductions of a backward pass in launch order; a bucket also waits for the buckets before it.

    The buckets come first; with `find_unused_parameters` the reduction of the map of used parameters is last.
    """
    gradients = workload.gradients
    members = [list(each.parameters) for each in buckets_of(workload, settings)]
    curve = dict(workload.by_channels).get(settings.channels or 0)
    curve = curve or curve_of(workload, "all_reduce", workload.world_size)
    sizes = np.array([gradients.sizes_bytes[each].sum() for each in members], np.float64)
    ready = np.maximum.accumulate([gradients.ready_ns[each].max() for each in members])
    # Every gradient is divided by the world size: into its bucket, or in place where it is a view of it. Copies that
    # are no views are also copied back (`Reducer::mark_variable_ready_dense` and `finalize_bucket_dense`).
    once = workload.pass_ns_per_byte * sizes
    back = once * (not settings.gradient_as_bucket_view)
    alone = [tuple(curve.at(_pieces(size, settings.partition_mb)).tolist()) for size in sizes * settings.communicated]
    cost = once
    if settings.compression is not None:
        alone = [(_compressed_ns(workload, settings.compression, each, curve),) for each in members]
        cost = once * (1 + settings.compression.passes)
    found = [
        Reduction(*each)
        for each in zip(ready.tolist(), alone, (workload.per_bucket_ns + cost).tolist(), back.tolist(), strict=True)
    ]
    if not settings.ddp.rebuilds:
        used = float(curve.at(_USED_MAP_BYTES * len(gradients.names)))
        found.append(Reduction(workload.forward_ns + workload.backward_ns, (used,), 0.0, 0.0))
    return found


def _pieces(size_bytes: float, partition_mb: float | None) -> list[float]:
    """Return the sizes of the pieces in which a bucket is sent."""
    if partition_mb is None:
        return [size_bytes]
    limit = partition_mb * MIB
    whole = int(size_bytes // limit)
    rest = size_bytes - whole * limit
    return [limit] * whole + ([rest] if rest or not whole else [])


def _compressed_ns(workload: Workload, compression: Compression, members: Sequence[int], curve: Curve) -> float:
    gradients = workload.gradients
    shapes = [gradients.shapes[each] for each in members]
    item_bytes = int(gradients.sizes_bytes[members[0]]) // max(prod(shapes[0]), 1)
    return collectives_ns(compressed_collectives(compression, shapes, item_bytes, workload.world_size), curve)


def _passes(workload: Workload, reductions: Sequence[Reduction], transfers: list[Transfer]) -> list[Instruction]:
    """Return a forward and a backward pass with its launches and the final waits; adds its transfers to `transfers`."""
    marks = _placed_marks(workload, transfers)
    waits: list[Instruction] = []
    for each in reductions:
        work: list[Instruction] = [Work(each.before_ns)] if each.before_ns else []
        pieces = range(len(transfers), len(transfers) + len(each.pieces_ns))
        marks.append((each.launch_ns, [*work, *map(Launch, pieces)]))
        waits += [*map(Wait, pieces), *([Work(each.after_ns)] if each.after_ns else [])]
        transfers += [Transfer(ranks=(), alone_ns=ns) for ns in each.pieces_ns]
    end = workload.forward_ns + workload.backward_ns
    body: list[Instruction] = []
    at = 0.0
    for time, instructions in [*sorted(marks, key=lambda mark: mark[0]), (end, [])]:
        if min(time, end) > at:
            body.append(Work(min(time, end) - at))
            at = min(time, end)
        body += instructions
    return body + waits


def _placed_marks(workload: Workload, transfers: list[Transfer]) -> list[tuple[float, list[Instruction]]]:
    """Add the collectives that no bucket setting moves; return when each is launched and waited for."""
    marks: list[tuple[float, list[Instruction]]] = []
    for each in workload.placed:
        number = len(transfers)
        alone = float(curve_of(workload, each.op, len(each.ranks)).at(each.bytes))
        transfers.append(Transfer(ranks=(), alone_ns=alone, stream=each.stream, link=each.link))
        needed = workload.forward_ns + workload.backward_ns if each.needed_ns is None else each.needed_ns
        marks.append((each.launch_ns, [Launch(number)]))
        marks.append((needed, [Wait(number)]))
    return marks
