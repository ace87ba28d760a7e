"""Hosts of several ranks that share processor cores, by a scheduler that was made: when each one runs and pauses."""

import random
from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.timeline.intervals import Intervals, difference, union

MS: Final = 1_000_000
LENGTH: Final = 400 * MS
Pairs = Sequence[tuple[int, int]]


def intervals(pairs: Pairs) -> Intervals:
    return union((np.array([one for one, _ in pairs], np.int64), np.array([two for _, two in pairs], np.int64)))


def pairs_of(times: Intervals) -> Pairs:
    return list(zip(times.starts.tolist(), times.ends.tolist(), strict=True))


def scheduled(hosts: int, cores: int, seed: int) -> list[Pairs]:
    """Return when each host pauses: a core runs one after the other for 2 to 6 ms, and all hosts want to run."""
    draw = random.Random(seed)
    queue, busy, runs = list(range(hosts)), [(0, -1)] * cores, [[] for _ in range(hosts)]
    while busy:
        at, ran = busy.pop(busy.index(min(busy)))
        queue += [ran] if ran >= 0 else []
        if at < LENGTH:
            rank = queue.pop(0)
            until = at + draw.randint(2 * MS, 6 * MS)
            runs[rank].append((at, until))
            busy.append((until, rank))
    whole = intervals([(0, LENGTH)])
    return [pairs_of(difference(whole, intervals(each))) for each in runs]


def operations_on_cores(
    hosts: int, cores: int, seed: int, *, most_ns: int = 900_000, slowed: float = 1.0, steps: int = 8
) -> list[list[Pairs]]:
    """Return the operations that each host made in each step, by a scheduler that lets it run for 4 ms at a time.

    Each step has the same 300 operations, a twentieth of them up to `most_ns` long, with a wait of 10 ms now and then
    between two. Beside those of other hosts they take `slowed` times as long.
    """
    draw, grain = random.Random(seed), 20_000
    lasts = [draw.uniform(0.5, 1.0) * (most_ns if draw.random() < 0.05 else min(most_ns, 900_000)) for _ in range(300)]
    made: list[list[list[tuple[int, int]]]] = [[[]] for _ in range(hosts)]
    left, begun, until, since = ([0.0] * hosts, [0] * hosts, [0] * hosts, [0] * hosts)
    on_core: list[int] = []
    at = 0
    while min(map(len, made)) <= steps:
        wants = [until[rank] <= at for rank in range(hosts)]
        on_core = [rank for rank in on_core if wants[rank]]
        waiting = [rank for rank in range(hosts) if wants[rank] and rank not in on_core]
        draw.shuffle(waiting)
        for rank in waiting:
            if len(on_core) == cores:
                oldest = min(on_core, key=lambda each: since[each])
                if at - since[oldest] < 4 * MS:
                    break
                on_core.remove(oldest)
            on_core.append(rank)
            since[rank] = at
        for rank in range(hosts):
            if not wants[rank]:
                continue
            if left[rank] <= 0:
                left[rank], begun[rank] = lasts[len(made[rank][-1])], at
            if rank in on_core:
                left[rank] -= grain / (slowed if len(on_core) > 1 else 1.0)
            if left[rank] <= 0:
                made[rank][-1].append((begun[rank], at + grain))
                until[rank] = at + grain + (10 * MS if draw.random() < 0.05 else 0)
                if len(made[rank][-1]) == len(lasts):
                    made[rank].append([])
        at += grain
    return [own[:steps] for own in made]
