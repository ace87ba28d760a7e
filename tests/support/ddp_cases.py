"""A recording of DDP made from a known workload by a simulation of its own: time goes in ticks of 20 us.

One step after the other does the same. Nothing here is shared with the replay that is tested: no events, no rates that
change at events, but what happens in each tick.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from overlapscope.timeline.columns import HOST
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

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


MB = 2**18
"""Elements of a MiB of float32."""
IN_PAIRS = Made(
    ready=(600, 800, 1000, 1200, 1400, 1600, 1800, 2000),
    elements=(MB,) * 8,
    buckets=((0, 1), (2, 3), (4, 5), (6, 7)),
    ticks_per_mb=200,
)
"""Eight gradients of a MiB."""
IN_ONE = replace(IN_PAIRS, buckets=(tuple(range(8)),), ticks_per_mb=120)


class _Seen(msgspec.Struct):
    ready: list[int]
    launched: list[int]
    done: list[int]
    computed: list[tuple[int, float]]
    """(tick, work done by then)."""
    end: int = 0


def simulate(made: Made) -> list[_Seen]:
    """Run one step tick by tick, and return what each rank saw."""
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
    period = (max(seen.end, 1) + 50) * TICK_NS
    sizes = [sum(made.elements[each] for each in bucket) for bucket in made.buckets]
    readings = [*seen.computed[:: max(len(seen.computed) // 400, 1)], seen.computed[-1]]
    names = ("spans", "collectives", "gradients", "telemetry", "steps")
    tables: dict[str, list[Row]] = {name: [] for name in names}
    for step in range(STEPS):

        def at(tick: int, start: int = EPOCH_NS + shift + step * period) -> int:
            return start + tick * TICK_NS

        begun = {"step": step, "start_ns": at(made.late[rank])}
        tables["steps"].append({**begun, "end_ns": at(seen.end)})
        tables["spans"].append({**begun, "end_ns": at(seen.ready[-1]), "name": "backward", "lane": 0})
        tables["collectives"] += [
            {
                "step": step, "seq": step * len(sizes) + bucket, "op": "all_reduce", "group": "0", "dtype": "float32",
                "elements": size, "bytes": 4 * size, "group_size": len(made.late), "launch_ns": at(launched),
                "start_ns": at(launched), "end_ns": at(done),
            }
            for bucket, (size, launched, done) in enumerate(zip(sizes, seen.launched, seen.done, strict=True))
        ]  # fmt: skip
        tables["gradients"] += [
            {
                "step": step, "order": order, "name": f"layer{order % len(made.ready)}.weight", "dtype": "float32",
                "elements": made.elements[order % len(made.ready)], "ready_ns": at(tick),
            }
            for order, tick in enumerate(seen.ready)
        ]  # fmt: skip
        tables["telemetry"] += [
            {
                "step": step, "time_ns": at(tick), "name": "thread_cpu_ns",
                "value": (step * made.all_ready[-1] + work) * TICK_NS,
            }
            for tick, work in readings if thread_times
        ]  # fmt: skip
    if drop:
        tables[drop] = []
    first = EPOCH_NS + shift
    return rank_timeline(
        rank,
        basis="events",
        has_device=False,
        **tables,
        recordings=[{"start_ns": first - 1000, "end_ns": first + STEPS * period}],
        lanes=[{"kind": HOST, "label": "training"}],
        recorded={
            "ddp": {"bucket_cap_bytes": int(made.cap_mb * 2**20), "gradient_as_bucket_view": True},
            "settings": {"host": f"host{rank}"},
        },
    )
