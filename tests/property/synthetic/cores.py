"""Cores that the hosts of a machine share: when each of them runs."""

import heapq
from collections import deque

import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job, Ranks

Reals = npt.NDArray[np.float64]
VARIES = (0.5, 1.5)
"""A slice is so many times the usual one."""


class Cores:
    """Wall time of a stage's hosts for the time that they ran; a host that waits for its device spins, and so runs.

    A machine runs as many hosts as it has cores, at all times; one whose slice is over goes behind those that wait.
    """

    def __init__(self, job: Job, ranks: Ranks) -> None:
        hosts = job.layout.host_of(np.arange(job.layout.world))
        machines = {
            int(host): _Machine(job, int(host), np.flatnonzero(hosts == host)) for host in set(hosts[ranks].tolist())
        }
        self._of = [(machines[hosts[rank].item()], int(rank)) for rank in ranks]

    def wall(self, ran: Reals) -> Reals:
        """Return when each host has run for so long: [rank, any]."""
        return np.array([machine.wall(rank, own) for (machine, rank), own in zip(self._of, ran, strict=True)])

    def ran(self, at: Reals) -> Reals:
        """Return how long each host has run by a time of its own: [rank]."""
        return np.array([machine.ran(rank, when) for (machine, rank), when in zip(self._of, at.tolist(), strict=True)])

    def running(self, at: float) -> int:
        """Return how many hosts of the first rank's machine run at a time."""
        machine, _ = self._of[0]
        return sum(machine.runs(rank, at) for rank in machine.ranks)


class _Machine:
    """Slices of each host of one machine, drawn as far as they are asked for."""

    def __init__(self, job: Job, host: int, ranks: Ranks) -> None:
        self.ranks: list[int] = ranks.tolist()
        self._rng = np.random.default_rng([job.seed, 13, host])
        self._slice_ns = job.fault.slice_ns
        self._waiting = deque(self._rng.permutation(self.ranks).tolist())
        self._busy: list[tuple[float, int]] = []
        self._begins: dict[int, list[float]] = {rank: [] for rank in self.ranks}
        self._ran: dict[int, list[float]] = {rank: [0.0] for rank in self.ranks}
        for _ in range(min(job.fault.cores, len(self.ranks))):
            self._give(0.0)

    def _give(self, at: float) -> None:
        rank = self._waiting.popleft()
        length = self._slice_ns * float(self._rng.uniform(*VARIES))
        self._begins[rank].append(at)
        self._ran[rank].append(self._ran[rank][-1] + length)
        heapq.heappush(self._busy, (at + length, rank))

    def _next(self) -> None:
        at, rank = heapq.heappop(self._busy)
        self._waiting.append(rank)
        self._give(at)

    def wall(self, rank: int, ran: Reals) -> Reals:
        while self._ran[rank][-1] <= ran.max():
            self._next()
        before = np.array(self._ran[rank])
        at = np.searchsorted(before, ran, side="right") - 1
        return np.asarray(np.array(self._begins[rank])[at] + ran - before[at])

    def ran(self, rank: int, at: float) -> float:
        self._until(at)
        begins = self._begins[rank]
        place = int(np.searchsorted(begins, at, side="right")) - 1
        if place < 0:
            return 0.0
        return min(self._ran[rank][place] + at - begins[place], self._ran[rank][place + 1])

    def runs(self, rank: int, at: float) -> bool:
        """Return whether a host has a core."""
        self._until(at)
        place = int(np.searchsorted(self._begins[rank], at, side="right")) - 1
        return place >= 0 and at < self._begins[rank][place] + self._ran[rank][place + 1] - self._ran[rank][place]

    def _until(self, at: float) -> None:
        while self._busy[0][0] <= at:
            self._next()
