"""Clocks that drift or jump: whose it is, how much, and that nobody is blamed for it.

Jobs are of pairs that meet often and of rows that meet seldom, so that both ranks of a pair could be taken for the one
with the wrong clock. All calls start together but where a test has one late; ends scatter by microseconds.
"""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, Run
from tests.conftest import shared_file
from tests.support.builders import EPOCH_NS
from tests.support.writers.kineto import MS, US
from tests.unit.analysis.cross_rank.matching.test_matching import Call, job

SETS = {"p0": (0, 1), "p1": (2, 3), "p2": (4, 5), "p3": (6, 7), "r0": (0, 2, 4, 6), "r1": (1, 3, 5, 7)}
GROUPS = tuple(Group(name=name, size=len(ranks), ranks=ranks) for name, ranks in SETS.items())


def pairs_and_rows(steps: int = 12, late: dict[int, int] | None = None) -> Run:
    """Return a job of steps: four calls in each pair, one in each row; some ranks come late to each row's call."""
    random = np.random.default_rng(3)
    calls: dict[int, list[Call]] = {rank: [] for rank in range(8)}
    for step in range(steps):
        for at, (name, ranks) in enumerate(SETS.items()):
            for k in range(1 if name.startswith("r") else 4):
                begin = step * 10 * MS + k * 2 * MS + (MS if name.startswith("r") else 0) + at * 10 * US
                arrive = {rank: begin + (late or {}).get(rank, 0) * name.startswith("r") for rank in ranks}
                end = max(arrive.values()) + 300 * US
                for rank in ranks:
                    took = end + int(random.integers(0, 3 * US)) - arrive[rank]
                    seq = step * 4 + k
                    calls[rank].append(
                        Call(op="all_reduce", group=name, size=len(ranks), start=arrive[rank], length=took, seq=seq)
                    )
    return job(calls, GROUPS)


Shown = Callable[[np.ndarray], np.ndarray]


def with_clock(run: Run, rank: int, shown: Shown) -> Run:
    """Return the run with what a rank's clock shows as `shown` makes it of nanoseconds since the job began."""
    calls = run.ranks[rank].collectives

    def of(times: np.ndarray) -> np.ndarray:
        return np.where(times == NONE, NONE, shown(times - EPOCH_NS) + EPOCH_NS)

    changed = replace(calls, start_ns=of(calls.start_ns), end_ns=of(calls.end_ns))
    return replace(run, ranks={**run.ranks, rank: replace(run.ranks[rank], collectives=changed)})


@pytest.mark.parametrize("rank", range(8))
def test_a_clock_that_runs_fast_is_that_rank_s_alone(rank):
    before = match_and_align(pairs_and_rows(late={6: 500 * US}))
    found = match_and_align(with_clock(pairs_and_rows(late={6: 500 * US}), rank, lambda at: at + at // 1000))
    for each in range(8):
        assert found.clocks.drift[each] == pytest.approx(1e-3 if each == rank else 0, abs=2e-5)
        assert abs(found.clocks.offset_ns[each]) < 5 * US
        assert found.waits[each].blame_ns == pytest.approx(before.waits[each].blame_ns, abs=240 * 3 * US)
    assert max(found.clocks.spread_ns(block).max() for block in found.matching.blocks) < 10 * US


def jumping(*jumps: tuple[int, int]) -> Shown:
    """Return a clock that is set: at a time, by so much."""
    return lambda at: at + sum((at >= when).astype(np.int64) * by for when, by in jumps)


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("by", [5 * MS, -5 * MS, 700 * US])
def test_nobody_is_blamed_for_a_clock_that_was_set_and_the_reason_names_it(rank, by):
    late = {6: 500 * US}
    before = match_and_align(pairs_and_rows(late=late))
    found = match_and_align(with_clock(pairs_and_rows(late=late), rank, jumping((75 * MS, by))))
    others = ("began to record apart", "matched calls went on for")  # these wait for the rank that is not compared, too
    (said,) = (each for each in found.matching.reasons if not any(words in each for words in others))
    assert f"the clock of rank {rank} was stepped by {by / 1e6:+.1f} ms" in said
    assert 70 < float(said.split(" about ")[1].split(" ms")[0]) < 80
    for each in range(8):
        assert abs(found.clocks.offset_ns[each]) < 5 * US
        blame = before.waits[each].blame_ns
        assert found.waits[each].blame_ns <= blame + 240 * 3 * US
        assert found.waits[each].blame_ns > blame * (0.5 if rank in (0, 2, 4, 6) else 0.9) - 240 * 3 * US
    for block in found.matching.blocks:
        assert found.clocks.spread_ns(block).max() < 20 * US
        if rank in block.ranks:
            assert (block.end_ns[block.ranks.index(rank)] < EPOCH_NS + 75 * MS).all()
    kept = sum(block.rows.size for block in found.matching.blocks)
    assert kept + found.matching.unmatched == sum(block.rows.size for block in before.matching.blocks)


def test_a_clock_that_was_set_by_more_than_the_recording_is_long_costs_both_that_it_may_be():
    found = match_and_align(with_clock(pairs_and_rows(late={6: 500 * US}), 3, jumping((75 * MS, 3_600_000 * MS))))
    (said,) = found.matching.reasons
    assert "the clocks of ranks 2, 3 moved apart by 3600000.0 ms while they were recorded" in said
    assert {rank for block in found.matching.blocks for rank in block.ranks} == {0, 1, 4, 5, 6, 7}
    assert found.waits[6].blame_ns > 5 * MS
    assert all(each.blame_ns < MS for rank, each in found.waits.items() if rank != 6)


def test_a_clock_that_was_set_and_set_back_is_left_out_in_between():
    run = with_clock(pairs_and_rows(steps=40), 3, jumping((150 * MS, 4 * MS), (253 * MS, -4 * MS)))
    found = match_and_align(run)
    assert [reason[:39] for reason in found.matching.reasons] == [
        "the clock of rank 3 was stepped by +4.0",
        "the clock of rank 3 was stepped by -4.0",
    ]
    (pair,) = (each for each in found.matching.blocks if each.ranks == (2, 3))
    at = pair.end_ns[0] - EPOCH_NS
    assert {*range(14), *range(27, 40)} <= set((at // (10 * MS)).tolist())
    assert not ((at > 150 * MS) & (at < 250 * MS)).any()
    assert all(each.blame_ns < 3 * MS for each in found.waits.values())


def test_a_group_that_fell_silent_before_a_clock_elsewhere_was_set_stays_as_it_is():
    run = with_clock(pairs_and_rows(), 3, jumping((75 * MS, 5 * MS)))
    short = [Call(op="all_reduce", group="short", size=2, start=at * MS, length=MS, seq=at) for at in (1, 3, 5)]
    beside = job({8: short, 9: short}, (Group(name="short", size=2, ranks=(8, 9)),))
    found = match_and_align(replace(run, ranks={**run.ranks, **beside.ranks}, groups=(*run.groups, *beside.groups)))
    assert [reason[:36] for reason in found.matching.reasons] == ["the clock of rank 3 was stepped by +"]
    (pair,) = (each for each in found.matching.blocks if each.ranks == (8, 9))
    assert pair.calls == len(short)


def test_of_two_clocks_it_is_unknown_which_was_set():
    two = {
        rank: [Call(op="all_reduce", start=k * 10 * MS + 3 * rank * US * (k % 3), size=2, seq=k) for k in range(40)]
        for rank in (0, 1)
    }
    run = job(two, (Group(name="g", size=2, ranks=(0, 1)),))
    found = match_and_align(with_clock(run, 0, jumping((95 * MS, 5 * MS))))
    assert "the clocks of ranks 0, 1 moved apart by 5.0 ms" in found.matching.reasons[0]
    assert {block.calls for block in found.matching.blocks} == {29}
    assert sum(each.blame_ns for each in found.waits.values()) < MS


def test_what_wanders_drifts_or_scatters_is_no_clock_that_was_set():
    random = np.random.default_rng(5)
    scatter = random.standard_t(2, 200) * MS
    walk = np.cumsum(random.normal(size=200)) * MS
    for late in (scatter, walk, np.where(random.random(200) < 0.1, 9 * MS, 0), np.arange(200) * 50 * US):
        calls = {
            rank: [
                Call(
                    op="all_reduce", start=k * 100 * MS, length=MS + int(late[k] * (rank == 1)) + 30 * MS, size=3, seq=k
                )
                for k in range(200)
            ]
            for rank in range(3)
        }
        found = match_and_align(job(calls, (Group(name="g", size=3, ranks=(0, 1, 2)),)))
        assert found.matched == 200
        assert not any("clock of" in reason for reason in found.matching.reasons)


def test_a_call_that_ends_before_its_last_member_came_is_a_reason():
    """Too few calls for a clock that was set to be seen."""
    run = with_clock(pairs_and_rows(steps=3), 3, jumping((15 * MS, 5 * MS)))
    (said,) = match_and_align(run).matching.reasons
    assert "matched calls ended on one rank before another had started" in said
    assert "rank 3" in said
    assert match_and_align(pairs_and_rows(steps=3)).matching.reasons == ()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 3, 6])
def test_a_clock_that_was_set_in_a_real_recording_costs_no_more_than_a_rank_that_is_missing(rank):
    run = read_inputs([shared_file("kineto/megatron_tp8")])
    ends = np.sort(run.ranks[rank].collectives.end_ns) - EPOCH_NS
    before = match_and_align(run)
    found = match_and_align(with_clock(run, rank, jumping((int(ends[41]) + 1, 5 * MS))))
    others = ("began to record apart", "matched calls went on for")  # these wait for the rank that is not compared, too
    (said,) = (each for each in found.matching.reasons if not any(words in each for words in others))
    assert f"the clock of rank {rank} was stepped by +5.0 ms" in said
    assert found.matched == 84
    missing = match_and_align(replace(run, ranks={each: run.ranks[each] for each in run.ranks if each != rank}))
    for each in set(range(8)) - {rank}:
        blame = (before.waits[each].blame_ns, missing.waits[each].blame_ns)
        assert 0.99 * min(blame) - MS / 10 <= found.waits[each].blame_ns <= 1.01 * max(blame) + MS / 10
