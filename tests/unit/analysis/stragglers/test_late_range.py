"""The range in which a late rank spent what made it late: on its host, else what its device ran that it launched."""

import numpy as np
import pytest

from overlapscope.analysis.stragglers.host_cause import SharedInterval
from overlapscope.analysis.stragglers.late_range import MOST_RANKS, late_range
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import rank_timeline

LEAD_NS = 400


def rank(number: int, *, ranges: dict[str, int], in_last: int) -> RankTimeline:
    """Return a rank whose host launches a kernel of 100 ns in each of its ranges, which take this long; in the last one
    `in_last` such kernels. Its device runs them one after the other."""
    notes, work, at, ended = [], [], 0, 1_000
    for name, took in ranges.items():
        notes.append({"name": name, "start_ns": at, "end_ns": at + took})
        for _ in range(in_last if name == [*ranges][-1] else 1):
            work.append({"kind": COMPUTE, "name": "k", "launch_ns": at + 1, "start_ns": ended, "end_ns": ended + 100})
            ended += 100
        at += took + 10
    return rank_timeline(number, work=work, annotations=notes)


def found(late: RankTimeline, peer: RankTimeline, *, peers: int = 1, on_device: bool = True) -> dict[str, object]:
    ranks = (0, *range(1, peers + 1))
    timelines = {each: late if each == 0 else peer for each in ranks}
    one = np.zeros((len(ranks), 1), np.int64)
    met = SharedInterval(ranks=ranks, begin_ns=one, end_ns=one + 10_000, step=np.zeros(1, np.int64))
    return late_range(0, Run(world_size=None, ranks=timelines, groups=()), [met], LEAD_NS, on_device=on_device)


ROWS = {"forward": 50, "backward": 50}


def test_what_a_device_runs_longer_is_named_by_the_range_that_launched_it_where_no_host_time_is() -> None:
    late, peer = rank(0, ranges=ROWS | {"extra loss": 20}, in_last=5), rank(1, ranges=ROWS, in_last=1)
    assert found(late, peer) == {"range": "extra loss", "range_more_ns": 500, "range_alone": True}
    assert found(late, peer, on_device=False) == {}
    assert found(late, peer, peers=MOST_RANKS) == {}


def test_a_range_that_peers_have_is_not_called_the_late_rank_s_alone() -> None:
    late, peer = rank(0, ranges=ROWS, in_last=6), rank(1, ranges=ROWS, in_last=1)
    assert found(late, peer) == {"range": "backward", "range_more_ns": 500}


@pytest.mark.parametrize("took", [600, 150])
def test_time_of_the_host_goes_first(took: int) -> None:
    late, peer = rank(0, ranges=ROWS | {"writes": took}, in_last=1), rank(1, ranges=ROWS, in_last=1)
    assert found(late, peer) == ({"range": "writes", "range_more_ns": took, "range_alone": True} if took > 500 else {})
