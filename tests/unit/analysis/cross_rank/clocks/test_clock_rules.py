"""Clocks that drift, clocks that nothing ties, and calls that are paired by how their ends lie: figures by hand."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.clocks.clock_offsets import clock_offsets, join_by_uneven, tied
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.match import drop_disagreeing, match
from overlapscope.analysis.cross_rank.wait_transfer import split_waits
from overlapscope.analysis.exposure.exposed_causes import causes_of
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.overlapping_calls import Met, job

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000


def ends_block(*ends_ms: Any, ranks: tuple[int, ...] | None = None, **more: Any) -> MatchedCalls:
    """Return a block of calls of a millisecond, by the ends on each rank's own clock."""
    ends = EPOCH_NS + np.rint(np.array(ends_ms) * MS).astype(np.int64)
    return MatchedCalls(
        **{
            "group": "g", "op": "all_reduce", "dtype": None, "bytes": 8, "ranks": ranks or tuple(range(len(ends))),
            "rows": np.tile(np.arange(ends.shape[1]), (len(ends), 1)), "start_ns": ends - MS, "end_ns": ends,
            "by_order": False, "whole": True, **more,
        }
    )  # fmt: skip


# --- drift ----------------------------------------------------------------------------------------------------------


def test_what_the_last_rank_did_is_seen_through_its_drifting_clock() -> None:
    # Rank 0 waits from 100 to 200 ms; rank 1 computes in the latter half of it. Its clock gains a thousandth, so that
    # at 150 it shows 150.15, and at 200, 200.2.
    def shown(true_ms: float) -> float:
        return true_ms * 1.001

    run = job(
        {0: [Met(start=100, end=210)], 1: [Met(start=shown(200), end=shown(200) + 10)]}, {"all": (0, 1)}, lasts=300,
        computes={1: [(shown(150), shown(200))]},
    )  # fmt: skip
    for reference_ns, offset_ns in ((EPOCH_NS, 0.0), (EPOCH_NS + 150 * MS, 150 * US)):
        clocks = Clocks(offset_ns={0: 0.0, 1: float(offset_ns)}, drift={1: 0.001}, reference_ns=reference_ns)
        matching = match(run)
        together = CrossRank(matching=matching, clocks=clocks, splits=tuple(split_waits(matching.blocks, clocks)))
        coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
        found = causes_of(run, together, coverage)[0].within((EPOCH_NS, EPOCH_NS + SECOND))
        assert found["peer_compute"] == pytest.approx(50 * MS, abs=US)
        assert found["peer_host"] == pytest.approx(50 * MS, abs=US)


@pytest.mark.parametrize("drift", [0.0, 30e-6])
def test_some_late_ends_are_no_drift(drift: float) -> None:
    # Of the last twenty calls of sixty, a second apart, three end 40 ms late on rank 1: 2 ms a call on average.
    true = np.arange(60) * 1000.0
    ends = true * (1 + drift)
    ends[[45, 50, 58]] += 40
    clocks = clock_offsets([ends_block(true, ends, true)])
    assert clocks.drift.get(1, 0.0) == pytest.approx(drift, abs=1e-9)
    assert clocks.offset_ns[1] == pytest.approx(0, abs=US)
    assert not clocks.drift.get(0)
    assert not clocks.drift.get(2)


# --- pairing by order -----------------------------------------------------------------------------------------------


def by_turns(apart: float) -> dict[int, list[Met]]:
    """Return calls every 10 ms that end, on rank 1, so much earlier and later by turns: no clock explains it."""
    return {
        rank: [Met(start=10.0 * k, end=10 * k + 8 + rank * (apart if k % 2 else -apart)) for k in range(20)]
        for rank in (0, 1)
    }


@pytest.mark.parametrize(
    ("apart", "host", "calls"),
    [(0.3, False, 20), (3.0, False, 0), (3.0, True, 20), (4.9, True, 20), (5.1, True, 0)],
)
def test_calls_paired_by_order_end_within_a_tenth_of_their_distance_and_half_of_it_on_one_clock(
    apart: float, host: bool, calls: int
) -> None:
    run = job(by_turns(apart), {"all": (0, 1)}, lasts=300, hosts={0: "here", 1: "here"} if host else None)
    assert match_and_align(run).matched == calls


def test_only_blocks_on_one_clock_are_allowed_more() -> None:
    block = ends_block(np.arange(5) * 10.0, np.arange(5) * 10.0, by_order=True)
    matching = Matching(blocks=(block,))
    for apart, one_clock, kept in ((MS, False, 1), (2 * MS, False, 0), (5 * MS, True, 1), (6 * MS, True, 0)):
        spread = np.full(5, apart)
        found = drop_disagreeing(matching, lambda _, spread=spread: spread, lambda _, one=one_clock: one)
        assert len(found.blocks) == kept


@pytest.mark.parametrize(
    ("every", "apart", "in_steps", "kept"),
    [
        (150.0, 14, False, 1), (150.0, 16, False, 0), (150.0, 74, True, 1), (150.0, 76, True, 0),
        (5000.0, 49, False, 1), (5000.0, 51, False, 0), (5000.0, 99, True, 1), (5000.0, 101, True, 0),
    ],
)  # fmt: skip
def test_blocks_in_the_same_steps_are_allowed_half_their_distance_up_to_a_limit(
    every: float, apart: int, in_steps: bool, kept: int
) -> None:
    block = ends_block(np.arange(5) * every, np.arange(5) * every, by_order=True)
    found = drop_disagreeing(Matching(blocks=(block,)), lambda _: np.full(5, apart * MS), same_steps=lambda _: in_steps)
    assert len(found.blocks) == kept


@pytest.mark.parametrize("shift", [0, 1])
def test_calls_in_steps_of_the_same_numbers_are_paired_though_their_ends_scatter(shift: int) -> None:
    # Ends scatter by 3 ms of 10, as those of ranks that share a core; in steps of other numbers it may be another call.
    def with_steps(rank: int, timeline: RankTimeline) -> RankTimeline:
        calls = timeline.collectives
        step = (np.arange(20) + rank * shift) // 5
        return replace(timeline, collectives=replace(calls, step=step.astype(calls.step.dtype)))

    run = job(by_turns(3.0), {"all": (0, 1)}, lasts=300)
    run = replace(run, ranks={rank: with_steps(rank, each) for rank, each in run.ranks.items()})
    assert match_and_align(run).matched == (0 if shift else 20)


@pytest.mark.parametrize(
    ("calls", "apart", "kept"), [(1, 49 * MS, 1), (1, 51 * MS, 0), (2, MS, 1), (2, 2 * MS, 0), (3, 2 * MS, 0)]
)
def test_two_calls_have_a_distance_and_one_has_50_ms(calls: int, apart: int, kept: int) -> None:
    block = ends_block(np.arange(calls) * 10.0, np.arange(calls) * 10.0, by_order=True)
    found = drop_disagreeing(Matching(blocks=(block,)), lambda _: np.full(calls, apart))
    assert len(found.blocks) == kept


# --- what ties clocks -----------------------------------------------------------------------------------------------


def test_calls_and_hosts_tie_clocks_and_nothing_else_does() -> None:
    assert tied([(0, 1), (2, 3), (4, 5), (1, 2)], {}) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 4, 5: 4}
    assert tied([(0, 1), (2, 3)], {1: "a", 2: "a", 7: "b", 8: "b"}) == {0: 0, 1: 0, 2: 0, 3: 0, 7: 7, 8: 7}
    assert tied([], {}) == {}


def test_a_host_joins_the_clocks_of_groups_that_share_no_rank() -> None:
    # Ranks 1 and 2 share a host that is 50 ms ahead of rank 0's; rank 3's is 70 ms ahead of theirs.
    true = np.arange(10) * 100.0
    blocks = [ends_block(true, true + 50, ranks=(0, 1)), ends_block(true + 50, true + 120, ranks=(2, 3))]
    clocks = clock_offsets(blocks, {0: "x", 1: "y", 2: "y", 3: "z", 4: "z", 5: "nobody's"})
    assert clocks.offset_ns == pytest.approx({0: -50 * MS, 1: 0, 2: 0, 3: 70 * MS, 4: 70 * MS})
    assert clocks.comparable((0, 1, 2, 3, 4))
    assert not clocks.comparable((0, 5))
    apart = clock_offsets(blocks)
    assert apart.offset_ns == pytest.approx({0: 0, 1: 50 * MS, 2: 0, 3: 70 * MS})
    assert not apart.comparable((1, 2))


def test_a_long_chain_of_hosts_is_as_exact_as_one() -> None:
    # Each group joins a host to the next one, whose clock is 10 ms ahead.
    true = np.arange(10) * 100.0
    blocks = [ends_block(true + 10 * k, true + 10 * k + 10, ranks=(2 * k, 2 * k + 1)) for k in range(30)]
    clocks = clock_offsets(blocks, {rank: f"host{(rank + 1) // 2}" for rank in range(60)})
    offsets = [clocks.offset_ns[rank] - clocks.offset_ns[0] for rank in range(60)]
    assert offsets == pytest.approx([(rank + 1) // 2 * 10 * MS for rank in range(60)], abs=US)


# --- uneven exchanges -----------------------------------------------------------------------------------------------


def exchanges(clock: dict[int, float], *, tensor: bool, ranks: int = 4) -> Run:
    """Return a job of uneven exchanges in which each time some rank is late by 1 ms; clocks are ahead, in ms."""
    calls: dict[int, list[Met]] = {rank: [] for rank in range(ranks)}
    for k in range(20):
        for rank in range(ranks):
            came = 100 * k + (1 if rank == k % ranks else 0)
            received = 500 + 100 * ((rank + k) % ranks)
            calls[rank].append(Met(start=came, end=100 * k + 6, op="all_to_all", group="all", received=received))
            if tensor:
                calls[rank].append(Met(start=100 * k + 20, end=100 * k + 21, group=f"t{rank // 2}"))
    groups = {"all": tuple(range(ranks))} | ({"t0": (0, 1), "t1": (2, 3)} if tensor else {})
    computes = {rank: [(100.0 * k + 30, 100.0 * k + 95) for k in range(20)] for rank in range(ranks)}
    return job(calls, groups, lasts=2000, step=100, computes=computes, clock=clock)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0.0, 30.0, 3000.0, -1000.0])
@pytest.mark.parametrize("tensor", [False, True])
def test_uneven_exchanges_alone_set_the_clocks_that_nothing_else_ties(ahead: float, tensor: bool) -> None:
    clock = {2: ahead, 3: ahead} if tensor else {3: ahead}
    run = exchanges(clock, tensor=tensor)
    found = match_and_align(run)
    assert found.matched == (60 if tensor else 20)
    assert found.clocks.comparable((0, 1, 2, 3))
    assert [float(each) for each in found.uneven[0].lead_ns] == pytest.approx([MS] * 20, abs=10)
    offsets = found.clocks.offset_ns
    assert offsets[3] - offsets[0] == pytest.approx(ahead * MS, abs=US)
    assert 0.0 in offsets.values()
    assert analyze(run).skew.stragglers == []


def test_uneven_exchanges_leave_tied_clocks_as_they_are() -> None:
    true = np.arange(40) * 1000.0
    even = [ends_block(true, true + 5, ranks=(0, 1)), ends_block(true, true + 7, ranks=(2, 3))]
    clocks = clock_offsets(even)
    within = ends_block(true, true + 9, ranks=(0, 1), even=False)  # rank 1 gets more, and ends 4 ms later
    assert join_by_uneven(clocks, [within], {}) is clocks
    between = ends_block(true, true + 300, ranks=(0, 3), even=False)
    # Ranks 0 to 3 are 0, 5, 293 and 300 ahead; of the two in the middle, the lower rank's clock counts.
    found = join_by_uneven(clocks, [within, between], {}).offset_ns
    assert found == pytest.approx({0: -5 * MS, 1: 0, 2: 288 * MS, 3: 295 * MS})


def test_drift_of_sets_of_ranks_is_added_to_that_within_them() -> None:
    # Rank 1 gains 20 us a second on rank 0; the host of ranks 2 and 3 gains 10 us a second on rank 0, and is ahead.
    true = np.arange(60) * 1000.0
    one, other = true * (1 + 20e-6), 800 + true * (1 + 10e-6)
    even = [ends_block(true, true, one, ranks=(0, 4, 1)), ends_block(other, other, ranks=(2, 3))]
    between = ends_block(true[20:], true[20:], other[20:], ranks=(0, 4, 2), even=False)
    clocks = join_by_uneven(clock_offsets(even), [between], {})
    for rank, shows in ((0, true), (1, one), (2, other), (3, other), (4, true)):
        times = EPOCH_NS + np.rint(shows * MS).astype(np.int64)
        common = clocks.aligned(rank, times) - clocks.aligned(0, EPOCH_NS + np.rint(true * MS).astype(np.int64))
        assert np.abs(common).max() < US


@pytest.mark.parametrize("ahead", [0.0, -1000.0])
def test_sends_are_paired_whatever_the_clocks_of_stages_that_nothing_ties(ahead: float) -> None:
    calls: dict[int, list[Met]] = {rank: [] for rank in range(4)}
    for k in range(10):
        for rank in range(4):
            at = 100 * k + 50 * (rank // 2)
            calls[rank].append(Met(start=at, end=at + 5, group=f"t{rank // 2}"))
            op = "send" if rank < 2 else "recv"
            calls[rank].append(Met(start=100 * k + 10, end=100 * k + 12, group=f"p{rank % 2}", op=op))
    groups = {"t0": (0, 1), "t1": (2, 3), "p0": (0, 2), "p1": (1, 3)}
    run = job(calls, groups, lasts=1000, clock={2: ahead, 3: ahead})
    assert match_and_align(run).pairs.matched == 20
    # Were the stages on one host, or tied by a call, the receives would end too early.
    tied_by_host = dict.fromkeys(range(4), "here")
    same = replace(run, ranks=job(calls, groups, lasts=1000, clock={2: ahead, 3: ahead}, hosts=tied_by_host).ranks)
    assert match_and_align(same).pairs.matched == (20 if ahead == 0 else 0)


# --- baselines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "size", "known"), [("all_reduce", 8, True), ("all_reduce", None, False), ("barrier", None, True)]
)
def test_calls_of_unknown_size_have_no_baseline(op: str, size: int | None, known: bool) -> None:
    block = ends_block([100, 200, 300, 400, 500, 600], [100, 200, 300, 400, 500, 600], op=op, bytes=size)
    (split,) = split_waits([block], Clocks(offset_ns={0: 0.0, 1: 0.0}))
    assert split.baseline_ns == (MS if known else None)
