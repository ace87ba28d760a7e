"""How long bytes take between ranks: latency and bandwidth of the slowest link in a group, with its unsteadiness."""

import math

import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job, Ranks

Reals = npt.NDArray[np.float64]
HICCUP_CHANCE, HICCUP_TIMES = 0.002, 3.0


class Links:
    """The network of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = np.random.default_rng([job.seed, 3])
        self._hosts = job.layout.host_of(np.arange(job.layout.world))
        culprits = np.array(job.fault.culprits, np.int64)
        self._slow_hosts = np.unique(self._hosts[culprits]) if job.fault.link_factor != 1 else culprits[:0]

    def transfer_ns(self, op: str, groups: Ranks, moved: Reals | float) -> Reals:
        """Return how long a call takes in each group (one a row), once all have come; `moved` is the full buffer."""
        size = groups.shape[1]
        hosts = self._hosts[groups]
        across = hosts.min(axis=1) != hosts.max(axis=1)
        gbs = np.where(across, self._job.inter_gbs, self._job.intra_gbs)
        if self._slow_hosts.size:
            gbs = np.where(
                across & np.isin(hosts, self._slow_hosts).any(axis=1), gbs / self._job.fault.link_factor, gbs
            )
        factor = {"all_reduce": 2 * (size - 1) / size, "send_recv": 1.0}.get(op, (size - 1) / size)
        steady = self._job.alpha_ns * math.log2(max(size, 2)) + factor * moved / gbs  # a GB/s is a byte a nanosecond
        noise = np.exp(self._rng.normal(0, self._job.link_jitter, across.size))
        held = self._rng.random(across.size) < HICCUP_CHANCE
        return np.asarray(steady * noise * np.where(held, HICCUP_TIMES, 1.0))
