"""One rank of a job under torchrun, in which rank 1 is killed: the others see it die, and torchrun ends them.

torchrun --nproc-per-node 2 -m tests.integration.exits.torchrun_job RUN MODE
"""

import os
import signal
import sys

import torch
from torch import distributed as dist

import overlapscope


def main(run: str, mode: str) -> None:
    """Train until rank 1 is gone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    with overlapscope.profile(run, model=model, mode=mode, warmup=1, steps=2, measure_overhead=False) as scope:
        for number in range(9):
            if number == 6 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with scope.step():
                model(torch.ones(4, 64)).mean().backward()


if __name__ == "__main__":
    main(*sys.argv[1:])
