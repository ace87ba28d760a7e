"""A recording of DDP made from a known workload by a simulation of its own: time goes in ticks of 20 us.

One step after the other does the same. Nothing here is shared with the replay that is tested: no events, no rates that
change at events, but what happens in each tick.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from overlapscope.timeline.columns import (
    COMPUTE,
    HOST,
    Collectives,
    Gradients,
    Lanes,
    Recordings,
    Spans,
    Steps,
    Telemetry,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS, timeline

TICK_NS = 20_000
STEPS = 6


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded: times in ticks of undisturbed compute, buckets as lists of gradients."""

    ready: Sequence[int]
    elements: Sequence[int]
    buckets: Sequence[Sequence[int]]
    optimizer: int = 150
    ticks_per_mb: float = 800.0
    latency: int = 0
    slowdown: float = 1.0
    workers: int = 2
    late: Sequence[int] = (0, 0)
    """Ticks by which each rank begins later."""
    passes: int = 1
    """Backward passes of a step, of which the last reduces."""

    @property
    def all_ready(self) -> list[int]:
        """When gradients of all passes are ready."""
        return [turn * self.ready[-1] + each for turn in range(self.passes) for each in self.ready]

    @property
    def cap_mb(self) -> float:
        """A cap that makes these buckets, where they are even."""
        return 4 * min(sum(self.elements[each] for each in bucket) for bucket in self.buckets) / 2**20


class _Seen(msgspec.Struct):
    ready: list[int]
    launched: list[int]
    done: list[int]
    computed: list[tuple[int, float]]
    """(tick, work done by then)."""
    end: int = 0


def simulate(made: Made) -> list[_Seen]:
    """Run one step tick by tick; give what each rank saw."""
    ranks = len(made.late)
    seen = [_Seen([], [], [], [(0, 0.0)]) for _ in range(ranks)]
    work, rested = [0.0] * ranks, [0] * ranks
    left = [made.latency + made.ticks_per_mb * 4 * sum(made.elements[g] for g in b) / 2**20 for b in made.buckets]
    ready = made.all_ready
    last, before = ready[-1], len(ready) - len(made.ready)
    ended: dict[int, int] = {}
    for tick in range(10_000_000):
        queued = [b for b in range(len(left)) if b not in ended and all(len(each.launched) > b for each in seen)]
        moving = queued[: made.workers]
        for bucket in moving:
            left[bucket] -= 1 / len(moving)
        for rank, each in enumerate(seen):
            if tick < made.late[rank]:
                continue
            if work[rank] < last:
                work[rank] += 1 / made.slowdown if moving else 1.0
                each.computed.append((tick + 1, work[rank]))
                while len(each.ready) < len(ready) and work[rank] >= ready[len(each.ready)] - 1e-6:
                    each.ready.append(tick + 1)
                    for bucket in made.buckets[len(each.launched) :]:
                        if before + bucket[-1] < len(each.ready):
                            each.launched.append(tick + 1)
            elif len(ended) == len(left):
                rested[rank] += 1
                each.end = each.end or (tick + made.optimizer if rested[rank] else 0)
        for bucket in moving:
            if left[bucket] <= 1e-9 and bucket not in ended:
                ended[bucket] = tick + 1
        if all(each.end for each in seen):
            for each in seen:
                each.done = [ended[bucket] for bucket in range(len(left))]
            return seen
    raise AssertionError("never ended")


def step_ns(made: Made) -> int:
    """Return how long a step takes, from the first rank's start."""
    return max(each.end for each in simulate(made)) * TICK_NS


def recorded(made: Made, *, shift_ns: Sequence[int] = (0, 0), thread_times: bool = True, drop: str = "") -> Run:
    """Return the recording of some steps as our own capture has it in `events` mode; `drop` leaves a table out."""
    ranks = {
        rank: _timeline(made, rank, seen, shift_ns[rank], thread_times=thread_times, drop=drop)
        for rank, seen in enumerate(simulate(made))
    }
    group = Group(name="0", size=len(ranks), ranks=tuple(ranks))
    return Run(world_size=len(ranks), ranks=ranks, groups=(group,))


def _timeline(made: Made, rank: int, seen: _Seen, shift: int, *, thread_times: bool, drop: str) -> RankTimeline:
    names = NameTable()
    period = (max(seen.end, 1) + 50) * TICK_NS
    starts = [EPOCH_NS + shift + step * period for step in range(STEPS)]
    begun = made.late[rank]
    count, buckets = len(made.all_ready), len(made.buckets)

    def times(ticks: Sequence[int]) -> list[int]:
        return [start + tick * TICK_NS for start in starts for tick in ticks]

    of_step = np.repeat(np.arange(STEPS), count)
    sizes = [sum(made.elements[each] for each in bucket) for bucket in made.buckets]
    readings = [*seen.computed[:: max(len(seen.computed) // 400, 1)], seen.computed[-1]]
    cpu = [(time, (step * made.all_ready[-1] + work) * TICK_NS) for step in range(STEPS) for time, work in readings]
    base = timeline()
    return RankTimeline(
        rank=rank,
        basis="events",
        has_device=False,
        recordings=make(Recordings, 1, start_ns=starts[0] - 1000, end_ns=starts[-1] + period),
        spans=make(
            Spans,
            STEPS,
            recording=0,
            lane=0,
            kind=COMPUTE,
            name=names.code("backward"),
            step=np.arange(STEPS),
            start_ns=times([begun]),
            end_ns=times([seen.ready[-1]]),
        ),
        collectives=make(
            Collectives,
            0 if drop == "collectives" else STEPS * buckets,
            recording=0,
            step=[] if drop == "collectives" else np.repeat(np.arange(STEPS), buckets),
            group=names.code("0"),
            seq=[] if drop == "collectives" else np.arange(STEPS * buckets),
            op=names.code("all_reduce"),
            dtype=names.code("float32"),
            elements=[] if drop == "collectives" else sizes * STEPS,
            bytes=[] if drop == "collectives" else [4 * each for each in sizes] * STEPS,
            group_size=len(made.late),
            launch_ns=[] if drop == "collectives" else times(seen.launched),
            start_ns=[] if drop == "collectives" else times(seen.launched),
            end_ns=[] if drop == "collectives" else times(seen.done),
        ),
        steps=make(
            Steps,
            STEPS,
            recording=0,
            step=np.arange(STEPS),
            start_ns=times([begun]),
            end_ns=times([seen.end]),
            cut=False,
        ),
        lanes=make(Lanes, 1, kind=HOST, label=names.code("training")),
        annotations=base.annotations,
        gradients=make(
            Gradients,
            0 if drop == "gradients" else STEPS * count,
            step=[] if drop == "gradients" else of_step,
            order=[] if drop == "gradients" else np.tile(np.arange(count), STEPS),
            name=[]
            if drop == "gradients"
            else [names.code(f"layer{each}.weight") for each in range(len(made.ready))] * (STEPS * made.passes),
            elements=[] if drop == "gradients" else list(made.elements) * (STEPS * made.passes),
            dtype=names.code("float32"),
            ready_ns=[] if drop == "gradients" else times(seen.ready),
        ),
        telemetry=make(
            Telemetry,
            len(cpu) if thread_times else 0,
            time_ns=times([time for time, _ in readings]) if thread_times else [],
            step=np.repeat(np.arange(STEPS), len(readings)) if thread_times else [],
            name=names.code("thread_cpu_ns"),
            value=[each for _, each in cpu] if thread_times else [],
        ),
        names=tuple(names.to_list()),
        recorded={
            "ddp": {"bucket_cap_bytes": int(made.cap_mb * 2**20), "gradient_as_bucket_view": True},
            "settings": {"host": f"host{rank}"},
        },
    )
