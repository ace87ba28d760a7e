"""Ends of calls laid out at once give the medians that one takes call by call and rank by rank."""

from statistics import median

import numpy as np
import pytest

from overlapscope.analysis.cross_rank.clocks.call_ends import CallEnds, RankSet

SETS = {(0, 1, 2, 3): 7, (4, 5, 6, 7): 7, (0, 4): 9, (1, 5): 9, (2, 3, 6): 4, (8, 9): 1, tuple(range(9)): 5}
HOSTS = {0: "a", 1: "a", 4: "b", 5: "b"}


@pytest.fixture
def sets() -> list[RankSet]:
    rng = np.random.default_rng(3)
    return [RankSet(ranks=ranks, ends=rng.normal(0, 1e6, (len(ranks), calls))) for ranks, calls in SETS.items()]


def by_hand(sets: list[RankSet], offset: list[float], drift: list[float]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for each in sets:
        for call in range(each.ends.shape[1]):
            ends = [
                each.ends[row, call] - offset[rank] - drift[rank] * each.ends[row, call]
                for row, rank in enumerate(each.ranks)
            ]
            for rank, end in zip(each.ranks, ends, strict=True):
                found.setdefault(rank, []).append(end - median(ends))
    return found


def test_distances_and_medians_are_those_of_each_rank_by_hand(sets: list[RankSet]) -> None:
    calls = CallEnds.of(sets, HOSTS)
    rng = np.random.default_rng(5)
    offset, drift = rng.normal(0, 1e5, 10), rng.normal(0, 1e-5, 10)
    expected = by_hand(sets, offset.tolist(), drift.tolist())
    behind = calls.behind(offset, drift)
    assert calls.ranks == tuple(range(10))
    for rank, own in zip(calls.ranks, calls.of_rank, strict=True):
        assert behind[own].tolist() == expected[rank]
    middles = calls.middles(behind)
    for rank in calls.ranks:
        mates = [each for each in HOSTS if rank in HOSTS and HOSTS[each] == HOSTS[rank]] or [rank]
        assert middles[rank] == median([each for mate in mates for each in expected[mate]])


def test_ranks_of_a_host_share_the_middle_of_their_values(sets: list[RankSet]) -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 10.0, 30.0, 7.0, 8.0, 9.0, 11.0])
    found = CallEnds.of(sets, HOSTS).middle_of_clock(values)
    assert found.tolist() == [1.5, 1.5, 3.0, 4.0, 20.0, 20.0, 7.0, 8.0, 9.0, 11.0]


def test_times_stand_where_each_rank_finds_its_own(sets: list[RankSet]) -> None:
    calls = CallEnds.of(sets, {})
    for rank, own in zip(calls.ranks, calls.of_rank, strict=True):
        expected = [each.ends[each.ranks.index(rank)] for each in sets if rank in each.ranks]
        assert calls.times[own].tolist() == np.concatenate(expected).tolist()
