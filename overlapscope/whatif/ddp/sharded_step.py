"""Build the job of a DistributedDataParallel step with optimizer, gradients or parameters sharded (ZeRO).

Buckets stay the same. Stages 1 and 2 reduce-scatter each bucket in backward; the optimizer works on a rank's share,
then parameters are gathered, fully exposed. Stage 3 gathers a bucket's parameters before its forward and again before
its backward, and those of the next bucket while it computes, as FSDP does.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from overlapscope.timeline.columns import Floats
from overlapscope.whatif.ddp.ddp_step import Settings, buckets_of, of_ranks
from overlapscope.whatif.ddp.zero import Sharding, time_ns
from overlapscope.whatif.replay.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload.workload import Workload


def sharded_job(workload: Workload, settings: Settings) -> Job:
    """Return the job of one optimizer step; `settings.sharding` must be set.

    From stage 2 on the gradients of every pass are scattered, because a rank does not keep those of others.
    """
    sharding = settings.sharding
    assert sharding is not None
    build = _Step(workload, settings, sharding)
    for turn in range(settings.accumulation):
        last = turn == settings.accumulation - 1
        build.one_pass(scatters=last or not settings.no_sync or sharding.stage > 1)
    if workload.optimizer_ns:
        build.body.append(Work(workload.optimizer_ns / workload.world_size))
    if sharding.stage < 3:
        gathers = [build.call("all_gather", each) for each in build.parameter_bytes]
        build.body += [*map(Launch, gathers), *map(Wait, gathers)]
    return of_ranks(workload, settings, build.body, build.transfers)


class _Parts(msgspec.Struct, frozen=True):
    """Compute of each bucket in forward and backward, in ns, in launch order."""

    forward_ns: Floats
    backward_ns: Floats
    tail_ns: float
    """Compute of backward after the last gradient is ready."""


class _Step:
    """Builder of the programme that all ranks follow."""

    def __init__(self, workload: Workload, settings: Settings, sharding: Sharding) -> None:
        self.workload, self.settings, self.sharding = workload, settings, sharding
        sizes = workload.gradients.sizes_bytes
        members = [list(each.parameters) for each in buckets_of(workload, settings)]
        self.parameter_bytes = [int(sizes[each].sum()) for each in members]
        self.parts = _parts(workload, members)
        self.body: list[Instruction] = [Gap(workload.host_gap_ns)] if workload.host_gap_ns else []
        self.transfers: list[Transfer] = []

    def call(self, op: str, size_bytes: float) -> int:
        """Add a collective of the whole group and return its number."""
        self.transfers.append(Transfer(ranks=(), alone_ns=time_ns(self.workload, self.sharding, op, size_bytes)))
        return len(self.transfers) - 1

    def one_pass(self, *, scatters: bool) -> None:
        """Add a forward and a backward pass, and the waits for its reduce-scatters."""
        count = len(self.parameter_bytes)
        gathers = self.sharding.stage == 3
        self._computed(range(count)[::-1], self.parts.forward_ns, gathers=gathers, scatters=False)
        waits = self._computed(range(count), self.parts.backward_ns, gathers=gathers, scatters=scatters)
        self.body += [Work(self.parts.tail_ns)] if self.parts.tail_ns else []
        self.body += [Wait(each) for each in waits]

    def _computed(self, order: Sequence[int], times_ns: Floats, *, gathers: bool, scatters: bool) -> list[int]:
        """Add the compute bucket by bucket; parameters are gathered while the bucket before computes.

        Returns the numbers of the reduce-scatters.
        """
        gathered = [self.call("all_gather", self.parameter_bytes[each]) for each in order] if gathers else []
        self.body += [Launch(each) for each in gathered[:1]]
        scattered = []
        for place, bucket in enumerate(order):
            if gathers:
                self.body.append(Wait(gathered[place]))
                self.body += [Launch(each) for each in gathered[place + 1 : place + 2]]
            if times_ns[bucket]:
                self.body.append(Work(float(times_ns[bucket])))
            if scatters:
                scattered.append(self._scattered(bucket))
        return scattered

    def _scattered(self, bucket: int) -> int:
        size = self.parameter_bytes[bucket]
        copied = self.workload.per_bucket_ns + self.workload.pass_ns_per_byte * size
        if copied:
            self.body.append(Work(copied))
        number = self.call("reduce_scatter", size * self.settings.communicated)
        self.body.append(Launch(number))
        return number


def _parts(workload: Workload, members: Sequence[Sequence[int]]) -> _Parts:
    """Split both passes by bucket: its backward ends when its last gradient is ready; forward has the same shares."""
    ready = np.maximum.accumulate([workload.gradients.ready_ns[list(each)].max() for each in members])
    end = workload.forward_ns + workload.backward_ns
    edges = np.clip(np.concatenate(([workload.forward_ns], ready)), workload.forward_ns, end)
    backward = np.diff(edges)
    share = backward / backward.sum() if backward.sum() else np.full(backward.size, 1 / max(backward.size, 1))
    return _Parts(forward_ns=workload.forward_ns * share, backward_ns=backward, tail_ns=float(end - edges[-1]))
