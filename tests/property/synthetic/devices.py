"""How long kernels take on each rank: the work that comes to it, its device, and its unsteadiness."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job, Ranks
from tests.property.synthetic.program import DEVICE_BLOCKS, FIXED, SQUARE, Kernel

Reals = npt.NDArray[np.float64]
LEAST_NS = 1_000.0
"""No kernel is shorter."""


class Devices:
    """The devices of a stage's ranks."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        self._job = job
        self._rng = np.random.default_rng([job.seed, 5, int(ranks[0])])
        self._guilty = np.isin(ranks, job.fault.culprits)
        self._speed = np.exp(self._rng.normal(0, job.rank_jitter, ranks.size))
        self._slower = np.ones(ranks.size)
        self._batch = ranks // job.layout.tp % job.layout.dp
        self._expert = self._batch % job.layout.ep
        self.tokens = np.ones(ranks.size)
        """Tokens in each rank's batch, 1 being the usual."""
        self.routed = np.ones(ranks.size)
        """Tokens that come to each rank's experts, 1 being an even share."""

    def next_batch(self, step: int) -> None:
        """Draw the sizes of the step's batches; ranks of a tensor group, and stages, see the same."""
        fault = self._job.fault
        self._slower = np.where(self._guilty & (step >= fault.since), fault.compute_factor, 1.0)
        drawn = np.random.default_rng([self._job.seed, 6, step])
        varied = np.exp(drawn.normal(0, self._job.batch_jitter, self._job.layout.dp))
        self.tokens = varied[self._batch] * np.where(self._guilty, self._job.fault.work_factor, 1.0)

    def route(self) -> None:
        """Draw where the tokens of a layer go."""
        ep, fault = self._job.layout.ep, self._job.fault
        share = np.exp(self._rng.normal(0, self._job.expert_jitter, ep))
        if fault.expert_share != 1:
            share[np.unique(self._expert[self._guilty])] *= fault.expert_share
        self.routed = (share / share.mean())[self._expert]

    def kernels(self, kernels: Sequence[Kernel], scale: float) -> tuple[Reals, Reals]:
        """Return duration and grid of each kernel on each rank: [rank, kernel]."""
        ones = np.ones(self.tokens.size)
        grown = np.array([ones, self.tokens, self.tokens**2, self.tokens * self.routed])
        work = grown[[each.grows for each in kernels]].T
        usual = np.array([each.share for each in kernels]) * self._job.layer_ns * scale
        noise = np.exp(self._rng.normal(0, self._job.kernel_jitter, work.shape))
        fixed = np.array([each.blocks == DEVICE_BLOCKS or each.grows == FIXED for each in kernels])
        tokens = np.where(np.array([each.grows == SQUARE for each in kernels]), self.tokens[:, None], work)
        blocks = np.array([each.blocks for each in kernels]) * np.where(fixed, 1.0, tokens)
        return np.maximum(usual * work * (self._speed * self._slower)[:, None] * noise, LEAST_NS), np.ceil(blocks)
