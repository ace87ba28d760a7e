"""Run directories of simulated jobs of any size, a straggler planted, written rank by rank: `python -m
benchmarks.scale_runs PLACE RANKS`.

The model is that of the tests (`tests.synthetic`), which shares no code with the analysis.
"""

import sys
from pathlib import Path
from typing import Final

from overlapscope.timeline.store import save_job, save_rank
from overlapscope.version import __version__
from tests.synthetic import Job, Layout, plant, simulate
from tests.synthetic.columns import recorded_groups, timelines_of

TENSOR, STAGES = 8, 4
STEPS: Final = 10
CULPRIT: Final = 5
"""It computes more slowly than its peers ..."""
SHARE: Final = 0.2
"""... so that steps take so much longer."""


def job_of(ranks: int) -> Job:
    """Give a job of 20,050 spans a rank, of these 770 collectives: tensor groups of 8, 4 stages, the rest data."""
    layout = Layout(tp=TENSOR, pp=STAGES, dp=ranks // (TENSOR * STAGES))
    job = Job(layout=layout, seed=1, steps=STEPS, layers=4, microbatches=4, kernels_each=6)
    return plant(job, "slow_compute", share=SHARE, culprit=CULPRIT, seed=1)


def write_run(place: Path, ranks: int) -> int:
    """Write the run of so many ranks; give the number of its spans."""
    simulated = simulate(job_of(ranks))
    spans = 0
    for timeline in timelines_of(simulated):
        save_rank(timeline, place)
        spans += timeline.spans.start_ns.size
    save_job(
        place, version=__version__, world_size=ranks, groups=recorded_groups(simulated),
        fingerprint={"backend": "nccl"}, tell_ranks=True,
    )  # fmt: skip
    return spans


if __name__ == "__main__":
    print(write_run(Path(sys.argv[1]), int(sys.argv[2])))
