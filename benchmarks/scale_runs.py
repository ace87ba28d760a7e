"""Simulated jobs of any size with a straggler planted, as run directories or as trace files.

    python -m benchmarks.scale_runs run PLACE RANKS STEPS
    python -m benchmarks.scale_runs hosts PLACE RANKS STEPS    # with host events, 210 spans a rank and step
    python -m benchmarks.scale_runs traces PLACE RANKS STEPS   # of the first ranks of a larger job

The model is that of the tests (`tests.property.synthetic`), which shares no code with the analysis.
"""

import sys
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.store.rank_writer import save_job, save_rank
from overlapscope.version import __version__
from tests.property.synthetic import Job, Layout, plant, simulate, write_kineto
from tests.property.synthetic.columns import recorded_groups, timelines_of

TENSOR, STAGES = 8, 4
SEED: Final = 1
CULPRIT, HELD_BY = 5, "slower_compute"
"""It computes more slowly than its peers ..."""
SHARE: Final = 0.2
"""... so that steps take so much longer."""


def healthy(ranks: int, steps: int) -> Job:
    """Return a job of 2,000 spans a rank and step, 77 of them collectives: groups of 8, 4 stages, the rest data."""
    layout = Layout(tp=TENSOR, pp=STAGES, dp=ranks // (TENSOR * STAGES))
    return Job(layout=layout, seed=SEED, steps=steps, layers=4, microbatches=4, kernels_each=6)


def offsets_ns(ranks: int, steps: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what each rank's clock was set to."""
    return healthy(ranks, steps).clocks()[0]


def _job(ranks: int, steps: int, *, small: bool = False) -> Job:
    job = healthy(ranks, steps)
    job = replace(job, layers=2, kernels_each=1) if small else job
    return plant(job, "slow_compute", share=SHARE, culprit=CULPRIT, seed=SEED)


def write_run(place: Path, ranks: int, steps: int, *, host_events: bool = False) -> int:
    """Write the run directory of so many ranks, rank by rank; give the number of its spans.

    With host events its steps are a tenth as long: each span then has a launch and an operation beside it.
    """
    simulated = simulate(_job(ranks, steps, small=host_events))
    spans = 0
    for timeline in timelines_of(simulated, host_events=host_events):
        save_rank(timeline, place)
        spans += timeline.num_spans
    save_job(
        place, version=__version__, world_size=ranks, groups=recorded_groups(simulated),
        fingerprint={"backend": "nccl"}, tell_ranks=True,
    )  # fmt: skip
    return spans


def write_traces(place: Path, ranks: int, steps: int) -> int:
    """Write the trace files of the first ranks of the smallest job that has so many; give their number."""
    whole = TENSOR * STAGES
    job = replace(_job(-(-ranks // whole) * whole, steps), recorded=tuple(range(ranks)))
    return len(write_kineto(simulate(job), place))


if __name__ == "__main__":
    form, place, ranks, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if form == "traces":
        print(write_traces(place, ranks, steps))
    else:
        print(write_run(place, ranks, steps, host_events=form == "hosts"))
