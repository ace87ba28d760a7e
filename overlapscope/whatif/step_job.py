"""The job of a step under any settings: DistributedDataParallel's, or a step that it does not make."""

from overlapscope.whatif.ddp_step import Settings, ddp_job
from overlapscope.whatif.priority_step import priority_job
from overlapscope.whatif.replay import Job
from overlapscope.whatif.sharded_step import sharded_job
from overlapscope.whatif.workload import Workload


def step_job(workload: Workload, settings: Settings) -> Job:
    """Give the job of one optimizer step. Raises KeyError where the workload has no curve for what is needed."""
    if settings.sharding is not None:
        return sharded_job(workload, settings)
    return priority_job(workload, settings) if settings.priority else ddp_job(workload, settings)
