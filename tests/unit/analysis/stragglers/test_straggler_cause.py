"""What a late rank did longer than its peers before its late calls, and what is not known of it."""

import numpy as np
import pytest

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import compared, sum_kernels
from overlapscope.analysis.stragglers.host_cause import SharedInterval
from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.analysis.stragglers.straggler_cause import before_first_launch, find_straggler_cause
from overlapscope.timeline.columns import COMPUTE, Ints
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
BEGIN_NS, LATE_NS = 10 * MS, 40 * MS


def run_of(first_ns: int, *, device: bool) -> Run:
    """Return two ranks that record from BEGIN_NS on; the first span of rank 0 begins there, that of rank 1 at
    `first_ns`, and each computes for 5 ms, for another 5 ms before LATE_NS, and no more."""
    ranks = {}
    for rank, first in ((0, BEGIN_NS), (1, first_ns)):
        times = [(begin, begin + 5 * MS) for begin in (first, LATE_NS - 5 * MS)]
        work = [
            {"kind": COMPUTE, "name": "gemm", "start_ns": start, "end_ns": end, "launch_ns": start}
            for start, end in times
        ]
        recorded = [{"start_ns": BEGIN_NS, "end_ns": LATE_NS}]
        ranks[rank] = rank_timeline(rank, work=work, recordings=recorded, has_device=device)
    return Run(world_size=2, ranks=ranks)


def column(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("first_ns", "device", "idle_ms", "unrecorded_ms", "cause"),
    [
        pytest.param(30 * MS, True, 0, 20, "unknown", id="its first span comes late"),
        pytest.param(BEGIN_NS, True, 20, 0, "host", id="a pause after its first span"),
        pytest.param(30 * MS, False, 20, 0, "host", id="a host is recorded from the begin on"),
    ],
)
def test_a_device_is_not_known_to_idle_before_its_first_recorded_span(
    first_ns: int, idle_ms: int, unrecorded_ms: int, cause: str, *, device: bool
) -> None:
    """Rank 0 comes to the call after 10 ms of compute, at 20 ms; rank 1 20 ms later."""
    run = run_of(first_ns, device=device)
    met = SharedInterval(
        ranks=(0, 1), begin_ns=column(BEGIN_NS, BEGIN_NS)[:, None], end_ns=column(20 * MS, LATE_NS)[:, None],
        step=column(0),
    )  # fmt: skip
    arrival = LateArrivals(
        rank=1, met=met, lead_ns=column(20 * MS), own_ns=column(20 * MS), launched_ns=column(LATE_NS), passed_ns={}
    )
    coverage = {rank: Coverage.of(each.spans) for rank, each in run.ranks.items()}
    # Rank 0 computes until its call, too.
    coverage[0] = Coverage.of_times(np.array([COMPUTE]), column(BEGIN_NS), column(20 * MS))
    found, evidence = find_straggler_cause(
        [arrival], run, coverage, compared({rank: sum_kernels(each) for rank, each in run.ranks.items()}),
        {rank: before_first_launch(each) for rank, each in run.ranks.items()}, {}, {}, {},
    )  # fmt: skip
    assert (evidence["idle_more_ns"], evidence["unrecorded_more_ns"]) == (idle_ms * MS, unrecorded_ms * MS)
    assert evidence["computed_more_ns"] == 0
    assert found == cause
