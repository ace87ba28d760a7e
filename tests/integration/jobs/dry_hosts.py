"""One rank of an example of `examples/dryrun` as a real training over gloo, started by torchrun.

    python -m torch.distributed.run ... -m tests.integration.jobs.dry_hosts FILE RUN

An example whose framework owns the loop records itself; of the others some steps are recorded into RUN.
"""

import importlib.util
import sys

import torch
from torch import distributed as dist

import overlapscope
from overlapscope.dry_run.hosts import AccelerateHost

STEPS = 6


def main() -> None:
    file, run = sys.argv[1:]
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    AccelerateHost(setattr)  # on a CPU, Accelerate shards only when it is told so
    step = example.build(torch.device("cpu"))
    if hasattr(example, "overlapscope"):
        step()
    else:
        with overlapscope.profile(run, mode="events", warmup=2, events_every=1, measure_overhead=False) as scope:
            for _ in range(STEPS):
                with scope.step():
                    step()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
