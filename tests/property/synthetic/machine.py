"""Time moves forward: hosts launch, lanes run, collectives start when each comes and end when the last has come.

All ranks of a pipeline stage run one program, so they are one vector; stages meet in sends, receives and the calls of
groups that span them, and each runs until it would need what another has not come to yet.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from tests.property.synthetic.job import Job
from tests.property.synthetic.links import Links
from tests.property.synthetic.record import Record
from tests.property.synthetic.stage import Shared, Stage

Reals = npt.NDArray[np.float64]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ran: what its recorded ranks saw, in true time."""

    job: Job
    records: tuple[Record, ...]
    step_ns: float
    """Mean length of a step, but for the first."""
    compute_ns: Reals
    """What each rank computed a step."""
    host_ns: Reals
    """What launching cost each rank's host a step."""


def simulate(job: Job, *, keep: bool = True) -> Simulated:
    """Run a job; without `keep` only its summary is wanted."""
    shared = Shared(links=Links(job))
    stages = [Stage(job, index, shared, keep=keep) for index in range(job.layout.pp)]
    waiting = list(stages)
    while waiting:
        moved = [stage.run() for stage in waiting]
        waiting = [stage for stage in waiting if not stage.finished]
        if waiting and not any(moved):
            raise RuntimeError("stages wait for each other")
    ends = np.max([stage.step_ends for stage in stages], axis=0)
    return Simulated(
        job=job,
        records=tuple(stage.record for stage in stages),
        step_ns=float(np.mean(np.diff(ends))) if job.steps > 1 else float(ends[0]),
        compute_ns=np.concatenate([stage.computed for stage in stages]) / job.steps,
        host_ns=np.concatenate([stage.launched for stage in stages]) / job.steps,
    )
