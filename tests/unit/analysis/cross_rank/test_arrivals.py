"""When the last member came to each call, against what a physical model knows."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.arrivals import arrivals
from overlapscope.timeline.columns import NONE
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.property.synthetic.joined import Clock, named_groups

JOBS = {
    "sends and receives": Job(layout=Layout(pp=3, dp=2), microbatches=4, steps=3),
    "experts": Job(layout=Layout(dp=4, ep=4), moe=True, expert_jitter=0.3, steps=3),
    "even calls": Job(layout=Layout(tp=2, dp=4), steps=3, drift_ppm=5.0),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_the_last_member_is_the_one_of_the_model_and_nobody_waits_longer_than_it_did(job: Job) -> None:
    simulated = simulate(job)
    run = run_of(simulated)
    together = match_and_align(run)
    found = arrivals(run, together)
    groups = {(each.dimension, rank): each.ranks for each in named_groups(job) for rank in each.ranks}
    came: dict[Any, dict[int, float]] = defaultdict(dict)
    calls: dict[int, list[Any]] = defaultdict(list)
    for record in simulated.records:
        for piece in record.pieces:
            call = piece.call
            for row, rank in enumerate(record.ranks.tolist()) if call is not None else ():
                if call.peer is None:
                    key: Any = (groups[call.dimension, rank], call.dimension, call.number)
                else:
                    peer = int(call.peer[row])
                    key = ((rank, peer) if call.op == "send" else (peer, rank), call.number)
                came[key][rank] = float(piece.start[row, 0])
                calls[rank].append(key)
    residual = together.clocks.residual_ns or 0.0
    slack = 3 * residual + 40 * job.end_jitter_ns
    numbers: dict[int, Any] = {}
    for rank, keys in calls.items():
        mine, clock = found[rank], Clock(job, rank)
        assert (mine.call != NONE).all()
        for row, key in enumerate(keys):
            assert numbers.setdefault(int(mine.call[row]), key) == key
            latest = max(came[key].values())
            assert latest - came[key][int(mine.last[row])] < slack
            shown = int(clock.shows(np.array([latest]))[0])
            assert abs(int(mine.arrived_ns[row]) - shown) < slack
            starts, ends = run.ranks[rank].collectives.start_ns, run.ranks[rank].collectives.end_ns
            assert starts[row] <= mine.arrived_ns[row] <= ends[row]
    assert len(numbers) == len(came)


def test_a_call_that_some_member_was_not_recorded_of_has_no_number_of_its_own() -> None:
    """The last of the recorded members is known all the same; the last of all may be another."""
    job = Job(layout=Layout(tp=2, dp=4), steps=3, recorded=(0, 1, 2, 3))
    run = run_of(simulate(job))
    found = arrivals(run, match_and_align(run))
    for rank, mine in found.items():
        dimension = [run.ranks[rank].names[code] for code in run.ranks[rank].collectives.dimension.tolist()]
        whole = np.array([each == "tensor" for each in dimension])
        assert whole.any()
        assert not whole.all()
        assert (mine.call[whole] != NONE).all()
        assert (mine.call[~whole] == NONE).all()
        assert (mine.last[~whole] != NONE).any()
