"""What launching costs the hosts of a stage, and when they pause."""

import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job, Ranks

Reals = npt.NDArray[np.float64]
LEAST_NS = 1_500.0
"""No launch costs less."""


class Hosts:
    """The host threads of a stage's ranks."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job = job
        self._rng = np.random.default_rng([job.seed, 2, int(ranks[0])])
        self.guilty = np.isin(ranks, job.fault.culprits)
        steady = np.exp(self._rng.normal(0, job.host_rank_jitter, ranks.size))
        self._factor = steady * np.where(self.guilty, job.fault.host_factor, 1.0)

    def launches(self, count: int) -> Reals:
        """Return what each of so many launches costs each rank's host: [rank, launch]."""
        job, shape = self._job, (self._factor.size, count)
        cost = job.launch_ns * self._factor[:, None] * np.exp(self._rng.normal(0, job.host_jitter, shape))
        held = self._rng.random(shape) < job.hiccup_chance
        if held.any():
            pauses = self._rng.exponential(job.hiccup_ns, int(held.sum()))
            cost[held] += pauses if job.hiccup_cap_ns is None else np.minimum(pauses, job.hiccup_cap_ns)
        return np.maximum(cost, LEAST_NS)

    def loading(self) -> Reals:
        """Return how long each rank's host gets its next batch."""
        usual = self._job.load_ns * np.exp(self._rng.normal(0, self._job.host_jitter, self._factor.size))
        return np.asarray(usual + np.where(self.guilty, self._job.fault.load_ns, 0.0))

    def stall(self, step: int, place: int, places: int) -> Reals | None:
        """Return each rank's pause before the `place`-th of so many parts of a step; None without."""
        fault = self._job.fault
        if not fault.stall_ns or step % fault.stall_every:
            return None
        at = fault.stall_at
        if at < 0:
            at = float(np.random.default_rng([self._job.seed, 4, step]).random())
        return np.where(self.guilty, fault.stall_ns, 0.0) if place == int(at * places) else None
