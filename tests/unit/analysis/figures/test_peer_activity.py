"""How long others did a thing in windows of a rank's time: as if each other rank were moved whole onto its clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.peer_activity import PeerQuery, peer_activity
from overlapscope.timeline.intervals import BusyTime, Intervals, WindowSets, intersection, length, union
from tests.support.builders import EPOCH_NS

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=12)
CLOCKS = st.lists(
    st.tuples(st.integers(-(10**12), 10**12), st.sampled_from([0.0, 1e-4, -3e-5, 0.01])), min_size=3, max_size=3
)


def covered(pairs: list[tuple[int, int]], begin: int) -> Intervals:
    starts = np.array([start for start, _ in pairs], np.int64) + begin
    return union((starts, starts + np.array([length for _, length in pairs], np.int64)))


def moved(times: Intervals, apart: float, drift: float) -> Intervals:
    starts, ends = (at + np.rint(apart + drift * (at - EPOCH_NS)).astype(np.int64) for at in times)
    return union((starts, ends))


@given(
    times=st.lists(SPANS, min_size=3, max_size=3),
    cuts=st.lists(SPANS, min_size=2, max_size=2),
    clocks=CLOCKS,
    asked=st.lists(st.integers(0, 2)),
)
def test_windows_are_looked_up_as_if_each_rank_were_moved_whole(
    times: list[list[tuple[int, int]]],
    cuts: list[list[tuple[int, int]]],
    clocks: list[tuple[int, float]],
    asked: list[int],
) -> None:
    offsets, drifts = zip(*clocks, strict=True)
    known = Clocks(offset_ns=dict(enumerate(offsets)), drift=dict(enumerate(drifts)), reference_ns=EPOCH_NS)
    theirs = {rank: covered(pairs, EPOCH_NS + offsets[rank]) for rank, pairs in enumerate(times)}
    questions = {}
    for rank, cut in zip((0, 2), cuts, strict=True):
        starts = np.array([start for start, _ in cut], np.int64) + EPOCH_NS + offsets[rank]
        windows = Intervals(starts, starts + np.array([length for _, length in cut], np.int64))
        others = np.array([asked[at % len(asked)] if asked else 1 for at in range(starts.size)], np.int64)
        questions[rank] = PeerQuery(windows=windows, others=others)
    found = peer_activity(questions, {"did": lambda rank: BusyTime(theirs[rank])}, known)
    for rank, question in questions.items():
        for its, start, end, other in zip(
            found[rank]["did"].tolist(), *question.windows, question.others.tolist(), strict=True
        ):
            whole = moved(theirs[other], offsets[rank] - offsets[other], drifts[rank] - drifts[other])
            window = Intervals(np.array([start]), np.array([end]))
            assert its == pytest.approx(length(intersection(whole, window)), abs=2 + len(times[other]))


def test_no_windows_and_no_times_give_nothing() -> None:
    window = Intervals(np.array([5], np.int64), np.array([9], np.int64))
    questions = {
        0: PeerQuery(windows=window, others=np.array([1])),
        1: PeerQuery(windows=union(), others=np.array([], np.int64)),
    }
    nothing = peer_activity(questions, {"did": lambda _: BusyTime(union())}, Clocks())
    assert {rank: its["did"].tolist() for rank, its in nothing.items()} == {0: [0], 1: []}
    assert peer_activity({}, {"did": lambda _: BusyTime(union())}, Clocks()) == {}


def test_sets_of_windows_may_be_empty() -> None:
    assert WindowSets.of([(), [(1, 3), (7, 8)], ()]).lengths == [0, 3, 0]
    assert WindowSets.of([]).lengths == []
