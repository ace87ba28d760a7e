"""Ranks that come last together: named where the same ones do at most calls, and others wait for them for most."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.late_together import LateTogether, came_last_together
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.report.sheet.waiting import cross_rank_sentences
from overlapscope.report.text.cross_rank import lines
from tests.unit.analysis.cross_rank.test_start_delays import recorded

CALL_MS, CALLS = 100, 6
Arrivals = list[list[int]]


def arrivals(late: list[list[int]], ranks: int = 6) -> Arrivals:
    """Return when ranks come to each call, in ms: the late ones 10 ms after the others, each up to 1 ms apart."""
    rng = np.random.default_rng(0)
    return [
        [at * CALL_MS + 10 * (rank in own) + int(rng.integers(0, 2)) for rank in range(ranks)]
        for at, own in enumerate(late)
    ]


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ([[1, 4]] * CALLS, [1, 4]),
        ([[0, 1, 2]] * CALLS, [0, 1, 2]),
        ([[1, 4]] * 5 + [[]], [1, 4]),
        ([[1]] * CALLS, None),
        ([[0, 1, 2, 3]] * CALLS, None),
        ([[1, 4], [0, 2], [3, 5]] * 2, None),
        ([[1, 4]] * 3 + [[0, 3]] * 3, None),
        ([[1, 4]] * 2, None),
        ([[]] * CALLS, None),
    ],
    ids=["two", "half", "all but one", "one alone", "most", "in turn", "now these, now those", "two calls", "nobody"],
)
def test_ranks_that_come_last_together_at_most_calls_are_named(late: list[list[int]], named: list[int] | None) -> None:
    found = analyze(recorded([0] * 6, arrivals(late))).skew.late_together
    assert (found.ranks if found else None) == named
    if found and named:
        assert found.others == [rank for rank in range(6) if rank not in named]
        together = sum(each == named for each in late)
        assert found.calls == together
        assert found.waited_ns / 1e6 == pytest.approx(10 * together, abs=together)


def split(ranks: tuple[int, ...], waits: list[list[int]]) -> Split:
    """Return calls in which ranks (rows) wait for so long, then transfer for 1 ms."""
    waited = np.array(waits, np.int64) * 1_000_000
    start = waited.max(axis=0) - waited
    taken = np.full(waited.shape[1], 1_000_000)
    block = MatchedCalls(
        op="all_reduce", group="g", bytes=8, dtype="float32", ranks=ranks, rows=np.zeros(waited.shape, np.int64),
        by_order=False, whole=True, start_ns=start, end_ns=start + waited + taken,
    )  # fmt: skip
    return Split(block=block, transfer_ns=taken, last=start.argmax(axis=0), lead_ns=np.zeros(taken.size), early_ends=0)


def test_of_sets_of_ranks_that_one_counts_where_most_was_waited_and_little_of_all_is_nobody() -> None:
    small = split((0, 1, 2, 3), [[0] * 4, [0] * 4, [2] * 4, [3] * 4])
    large = split((4, 5, 6, 7), [[9] * 4, [0] * 4, [0] * 4, [8] * 4])
    found = came_last_together([small, large], 50_000.0)
    assert found == LateTogether(ranks=[5, 6], others=[4, 7], waited_ns=34_000_000, calls=4, of_calls=4)
    nobody = split((8, 9), [[0, 30] * 2, [30, 0] * 2])
    assert came_last_together([small, nobody], 50_000.0) is None


@pytest.mark.parametrize(
    ("computed_ms", "times"),
    [([100, 150, 100, 100, 150, 100], "1.50"), ([201, 150, 100, 100, 150, 100], ""), ([100] * 6, "")],
    ids=["longer", "one of the others longest", "alike"],
)
def test_it_is_said_who_they_are_and_how_many_times_as_long_they_computed(computed_ms: list[int], times: str) -> None:
    kernels = {rank: [(0, each)] for rank, each in enumerate(computed_ms)}
    analysis = analyze(recorded([0] * 6, arrivals([[1, 4]] * CALLS), kernels=kernels))
    analysis = replace(analysis, skew=replace(analysis.skew, stragglers=[]))
    text = " ".join(lines(analysis, all_rows=False).split())
    said = "Ranks 1, 4 came last together at 6 of 6 calls: each of 4 other ranks waited "
    assert said in text
    assert (f" for them, and they computed {times} times as long." in text) is bool(times)
    shown = cross_rank_sentences(analysis)
    assert any(each.startswith(said) for each in shown)
    assert not any(each.startswith("No straggler") for each in shown)
