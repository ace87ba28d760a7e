"""Calls on devices that name no group: which ranks made them together, by streams, order and ends.

The oracle is the program that the ranks run here: who is a member of each call is known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.cross_rank.matching.end_noise import as_exact, noise_beside, noises
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import _nothing_shared
from overlapscope.analysis.graph.answers import UNKNOWN_MEMBERS, ranks_of_graph
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

US, MS = 1_000, 1_000_000
Members = tuple[int, ...]
Call = tuple[int, int, Members, float]
"""Stream, bytes, members, and milliseconds of compute before it on each of them."""
PAIRS: tuple[Members, ...] = ((0, 1), (2, 3), (4, 5), (6, 7))
ALL: Members = tuple(range(8))


def made(
    program: Iterable[Call], *, clock_us: Mapping[int, float] | None = None, seed: int = 1, jitter: float = 0.5,
    lost: Mapping[int, tuple[int, int]] | None = None, lane: Callable[[int, int], int] = lambda _, stream: stream,
    clock: Callable[[int, int], int] = lambda _, time: time, **more: Any,
) -> tuple[Run, set[tuple[tuple[int, int], ...]]]:  # fmt: skip
    """Return a run of ranks that make calls of 5 ms in this order, each as soon as it can, and which rows are one call.

    Compute takes up to `jitter` times longer, now and then; ends are seen up to 10 us late. `lost` are numbers of calls
    at the begin and at the end of a rank that were not recorded; `clock` makes a true time the one that a rank shows.
    """
    random = np.random.default_rng(seed)
    program = list(program)
    now = dict.fromkeys(sorted({rank for _, _, members, _ in program for rank in members}), 0)
    rows: dict[int, list[Row]] = {rank: [] for rank in now}
    together: list[list[tuple[int, int]]] = []
    for stream, volume, members, compute in program:
        begins = {rank: now[rank] + round(compute * (1 + jitter * random.random()) * MS) for rank in members}
        together.append([(rank, len(rows[rank])) for rank in members])
        for rank, begin in begins.items():
            now[rank] = max(begins.values()) + 5 * MS + int(random.integers(10)) * US
            ahead = EPOCH_NS + round((clock_us or {}).get(rank, 0) * US)
            times = {"start_ns": ahead + clock(rank, begin), "end_ns": ahead + clock(rank, now[rank])}
            rows[rank].append({"op": "all_reduce", **times, "bytes": volume, "lane": lane(rank, stream), **more})
    cut = {rank: (lost or {}).get(rank, (0, 0)) for rank in rows}
    kept = {rank: (cut[rank][0], len(own) - cut[rank][1]) for rank, own in rows.items()}
    ranks = {
        rank: rank_timeline(rank, calls=own[slice(*kept[rank])], lanes=({},) * 20, has_device=True)
        for rank, own in rows.items()
    }
    left = (
        tuple((rank, row - kept[rank][0]) for rank, row in each if kept[rank][0] <= row < kept[rank][1])
        for each in together
    )
    return Run(world_size=len(now), ranks=ranks), {each for each in left if len(each) > 1}


def paired(found: CrossRank) -> set[tuple[tuple[int, int], ...]]:
    return {
        tuple(zip(block.ranks, column, strict=True))
        for block in found.matching.blocks
        for column in block.rows.T.tolist()
    }


def said(found: CrossRank) -> list[str]:
    """Return the reasons for calls that were not paired."""
    return [each for each in found.matching.reasons if each.startswith("calls of an unnamed group")]


def pipeline(steps: int = 6, *, stage_ms: float = 9.0, norm: bool = True, tensors: int = 6) -> Iterable[Call]:
    """Four stages of two data-parallel ranks: the end stages reduce one tensor more, the first one last, the last one
    first; then all ranks reduce a number."""
    sizes = [(at % 3 + 1) * 1000 for at in range(tensors)]
    for _ in range(steps):
        for stage, members in enumerate(PAIRS):
            own = [*sizes, 9000] if stage == 0 else [9000, *sizes] if stage == 3 else sizes
            for at, volume in enumerate(own):
                yield 1, volume, members, stage_ms * (4 - stage) if at == 0 else 1.0
        if norm:
            yield 2, 4, ALL, 1.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clock_us", [{}, {4: 15.0, 5: 15.0, 6: -40_000.0}])
def test_stages_of_a_pipeline_are_not_paired_with_each_other(seed: int, clock_us: dict[int, float]) -> None:
    run, together = made(pipeline(), seed=seed, clock_us=clock_us, lane=lambda rank, stream: stream + rank)
    found = match_and_align(run)
    assert paired(found) == together
    assert found.matching.unmatched == 0
    assert said(found) == []
    assert all(block.whole for block in found.matching.blocks)
    assert not any(each.early_ends for each in found.splits)
    expected = {rank: clock_us.get(rank, 0.0) for rank in ALL}
    assert {rank: offset / US for rank, offset in found.clocks.offset_ns.items()} == pytest.approx(expected, abs=15)


def test_each_call_has_the_size_of_its_own_group() -> None:
    rows = analyze(made(pipeline())[0]).collectives
    assert {(row.bytes, row.group_size) for row in rows} == {(4, 8), *((size * 1000, 2) for size in (1, 2, 3, 9))}


def test_stages_that_nothing_else_connects_are_told_by_their_ends() -> None:
    run, together = made(pipeline(norm=False))
    found = match_and_align(run)
    assert paired(found) == together
    assert not found.clocks.comparable((0, 2))


def test_stages_that_keep_one_distance_are_told_by_the_clocks_of_another_group() -> None:
    """Without one, two hosts whose clocks are that far apart would look the same."""
    step: list[Call] = [(1, 1000, (0, 1), 2.0), (1, 1000, (2, 3), 12.0), (2, 4, (0, 1, 2, 3), 1.0)]
    run, together = made(step * 12, jitter=0.0)
    assert paired(match_and_align(run)) == together


def test_where_it_is_not_clear_which_ranks_belong_together_none_are_paired() -> None:
    """That ranks 0 and 2 are apart, and 1 and 3, leaves two divisions."""
    random = np.random.default_rng(1)
    step: list[Call] = [(1, 1000, (0, 1), 2.0), (1, 1000, (2, 3), 12.0)]
    steps = [[*step, (2, 4, (0, 2), 1.0), (2, 4, (1, 3), 1.0 + 5.0 * float(random.random()))] for _ in range(12)]
    run, together = made([call for each in steps for call in each], jitter=0.0)
    found = match_and_align(run)
    assert paired(found) < together
    assert {block.bytes for block in found.matching.blocks} == {4}
    assert found.matching.unmatched == 4 * 12
    assert "no other rank made the 48 calls of rank 0, 1, 2, 3 in the same order" in found.matching.reasons[0]


def data_parallel(steps: int = 8) -> Iterable[Call]:
    """Four ranks that reduce on one stream, the same sizes in each step, and a number on another."""
    for _ in range(steps):
        for volume in (1000, 2000, 3000):
            yield 1, volume, (0, 1, 2, 3), 4.0
        yield 2, 4, (0, 1, 2, 3), 1.0


@pytest.mark.parametrize("lost", [(9, 0), (0, 9), (5, 6)])
def test_each_stream_of_a_cut_recording_is_placed_where_its_ends_say(lost: tuple[int, int]) -> None:
    run, together = made(data_parallel(), lost={2: lost}, clock_us={2: 700.0})
    found = match_and_align(run)
    assert paired(found) == together
    assert found.matching.unmatched == 0
    assert all("cut or lossy recordings, or launched before them" in each for each in said(found))
    assert found.clocks.offset_ns[2] == pytest.approx(700 * US, abs=15 * US)


def test_two_recordings_that_are_cut_alike_are_placed_together() -> None:
    run, together = made(data_parallel(), lost={1: (6, 3), 3: (6, 3)})
    assert paired(match_and_align(run)) == together


@pytest.mark.parametrize(
    "clock",
    [
        lambda rank, time: round(time * (1 + 3e-5 * rank)),
        lambda rank, time: time + (3 * MS if rank == 1 and time > 1000 * MS else 0),
    ],
    ids=["drift", "set"],
)
def test_clocks_that_drift_or_are_set_do_not_divide_a_group(clock: Callable[[int, int], int]) -> None:
    run, together = made(data_parallel(40), clock=clock)
    found = match_and_align(run)
    several = {tuple(each for each in call if each[0] != 1) for call in together}
    assert paired(found) <= together | several
    assert {rank for call in paired(found) for rank, _ in call} == {0, 1, 2, 3}
    assert found.clocks.residual_ns is not None
    assert found.clocks.residual_ns < 20 * US


def test_two_streams_with_the_same_calls_are_not_mixed_up() -> None:
    def twins() -> Iterable[Call]:
        for _ in range(8):
            yield 1, 1000, (0, 1, 2, 3), 9.0
            yield 2, 1000, (0, 1, 2, 3), 1.0

    run, together = made(twins(), clock_us={3: -900.0}, lane=lambda rank, stream: 3 - stream if rank == 2 else stream)
    assert paired(match_and_align(run)) == together


def test_ranks_that_make_the_same_calls_at_other_times_are_not_paired_where_all_are_of_one_group() -> None:
    """As ranks of two jobs that were put into one folder, each alone in it."""
    run = made([(1, 1000, (0, 1), 9.0)] * 20, seed=1)[0]
    other = made([(1, 1000, (0, 1), 9.0)] * 20, seed=2)[0]
    found = match_and_align(replace(run, ranks={0: run.ranks[0], 1: other.ranks[1]}))
    assert (found.matched, found.matching.unmatched) == (0, 40)
    assert dict(found.clocks.offset_ns) == {}
    assert found.matching.reasons == (
        "calls of an unnamed group: no other rank made the 40 calls of rank 0, 1 in the same order and at the same "
        "times: they are of other groups, or the recordings are sampled or cut, and are not paired by order",
    )


def test_more_ranks_than_a_group_has_members_are_not_paired() -> None:
    run, _ = made(data_parallel(), group_size=2)
    found = match_and_align(run)
    assert (found.matched, found.matching.unmatched) == (0, 4 * 32)
    assert "4 ranks made these calls, in groups of 2: which ranks are in which group" in found.matching.reasons[0]


def in_phase(rounds: int = 40) -> Iterable[Call]:
    """Groups of two in the same phase of a step, whose ends are far closer to each other than TOGETHER_NS."""
    for _ in range(rounds):
        for members in ((0, 1), (2, 3)):
            yield 1, 1000, members, 0.5
        yield 2, 4, (0, 1, 2, 3), 1.0


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1, 2), (1, 2, 3)])
def test_ranks_that_end_ten_times_less_exactly_together_than_others_are_of_another_group(
    ranks: tuple[int, ...],
) -> None:
    run, together = made(in_phase(), clock_us={3: 40.0})
    of_these = {tuple(each for each in call if each[0] in ranks) for call in together}
    assert paired(match_and_align(some(run, ranks))) == {call for call in of_these if len(call) > 1}


def test_groups_of_many_ranks_are_divided_as_those_of_few() -> None:
    random, everyone = np.random.default_rng(1), tuple(range(136))
    groups = [everyone[first : first + 8] for first in everyone[::8]]
    program: list[Call] = []
    for _ in range(20):
        program += [(1, 1000, each, 0.5 + 0.3 * random.random()) for each in groups]
        program.append((2, 4, everyone, 1.0))
    run, together = made(program, jitter=0.0)
    assert paired(match_and_align(run)) == together


def test_ranks_of_several_groups_are_divided_by_who_keeps_as_exact_as_on_another_stream() -> None:
    """Of a set of six, two and two and two end together as exactly as in other calls, where all do."""
    random = np.random.default_rng(1)
    common, ends = (np.cumsum(random.integers(9 * MS, 10 * MS, size=40)) for _ in range(2))
    others = common + random.integers(2 * US, size=(6, 40))
    here = ends + np.repeat(random.integers(150 * US, size=(3, 40)), 2, axis=0) + random.integers(2 * US, size=(6, 40))
    assert as_exact(here, others, 0.0).tolist() == [0, 0, 1, 1, 2, 2]
    assert as_exact(others, here, 0.0).tolist() == [0] * 6
    assert as_exact(here, others, MS).tolist() == [0] * 6


def test_ranks_whose_peers_were_not_recorded_are_not_paired_where_others_end_ten_times_more_exactly() -> None:
    """Of three groups in the same phase, one was recorded whole, and one rank of each of the others."""
    groups: tuple[Members, ...] = ((0, 1), (2, 4), (3, 5))
    run, together = made([(1, 1000, members, 0.5) for _ in range(40) for members in groups], clock_us={3: 40.0})
    found = match_and_align(some(run, (0, 1, 2, 3)))
    assert paired(found) == {each for each in together if {rank for rank, _ in each} == {0, 1}}
    assert "no other rank made the 80 calls of rank 2, 3 in the same order" in found.matching.reasons[0]


def pairs_of_which_one_is_exact(groups: Sequence[Members], compute_ms: float) -> tuple[Run, set[Any]]:
    """The ends of the second rank of all pairs but the first are seen about 80 us early or late."""
    noise_ns = np.random.default_rng(1).normal(0, 80 * US, size=1009).astype(np.int64)
    loose = {second for _, second in groups[1:]}
    program: list[Call] = [(1, 1000, members, compute_ms) for _ in range(40) for members in groups]
    return made(program, clock=lambda rank, time: time + int(noise_ns[(time + rank) % 1009]) * (rank in loose))


@pytest.mark.parametrize(
    ("groups", "compute_ms", "world", "exact_alone"),
    [
        pytest.param(PAIRS[:2], 0.5, 4, False, id="all ranks: the others have no other peers"),
        pytest.param(PAIRS[:3], 0.5, 6, True, id="all ranks: the others may be of these groups or of those"),
        pytest.param(PAIRS[:2], 0.5, 8, True, id="some ranks, in one phase"),
        pytest.param(PAIRS[:2], 0.5, None, True, id="of unknown number, in one phase"),
        pytest.param(PAIRS[:2], 9.0, 8, False, id="some ranks, each pair far more exact than both"),
        pytest.param(PAIRS[:3], 9.0, None, False, id="of unknown number, each pair far more exact than both"),
    ],
)
def test_a_pair_that_is_far_less_exact_than_another_one_is_one_where_it_can_be_nothing_else(
    groups: Sequence[Members], compute_ms: float, world: int | None, *, exact_alone: bool
) -> None:
    run, together = pairs_of_which_one_is_exact(groups, compute_ms)
    of_these = {each for each in together if not exact_alone or {rank for rank, _ in each} == {0, 1}}
    assert paired(match_and_align(replace(run, world_size=world))) == of_these


def test_a_call_of_all_ranks_in_each_of_a_few_steps_shows_how_exactly_they_end_together() -> None:
    random = np.random.default_rng(1)
    apart = random.integers(150 * US, size=(2, 40))
    calls, few = np.cumsum(random.integers(9 * MS, 10 * MS, size=40)) + apart, np.arange(4) * 90 * MS
    assert as_exact(calls, np.array([few, few]), 0.0).tolist() == [0, 1]
    assert as_exact(calls, np.array([few, few])[:, :3], 0.0).tolist() == [0, 0]
    assert as_exact(calls[:, :7], np.array([few, few]), 0.0).tolist() == [0, 0]


def test_ranks_of_one_group_that_end_a_few_times_less_exactly_together_are_not_divided() -> None:
    random = np.random.default_rng(1)
    late = random.integers(0, 9, size=400) * 9 * US
    run, together = made(data_parallel(40), clock=lambda rank, time: time + int(late[time % 400]) * (rank == 3))
    assert paired(match_and_align(run)) == together


def test_how_exactly_two_ranks_end_together_on_one_stream_is_asked_of_their_other_streams() -> None:
    """Ranks 0 and 1 are in one group on the first stream, and in two on the second, whose others were not recorded."""
    step: list[Call] = [(1, 1000, (0, 1), 1.0), (2, 4, (0, 2), 0.5), (2, 4, (1, 3), 0.5)]
    run, _ = made(step * 40)
    found = match_and_align(some(run, (0, 1)))
    assert {(block.bytes, block.ranks) for block in found.matching.blocks} == {(1000, (0, 1))}
    assert "no other rank made the 80 calls of rank 0, 1 in the same order" in found.matching.reasons[0]


def test_numbered_calls_of_more_ranks_than_a_group_has_members_are_divided_by_their_ends() -> None:
    run, together = made(pipeline(norm=False), group_size=2)
    ranks = {
        rank: replace(own, collectives=replace(own.collectives, seq=np.arange(own.collectives.op.size)))
        for rank, own in run.ranks.items()
    }
    assert paired(match_and_align(replace(run, ranks=ranks))) == together


def test_a_member_may_be_missing_where_a_rank_was_not_recorded_or_its_calls_found_no_place() -> None:
    run, _ = made(data_parallel())
    assert all(block.whole for block in match_and_align(run).matching.blocks)
    less = replace(run, ranks={rank: run.ranks[rank] for rank in (0, 1, 2)})
    assert not any(block.whole for block in match_and_align(less).matching.blocks)
    short, _ = made(data_parallel(), lost={3: (0, 29)})  # three calls are too few to be placed
    found = match_and_align(short)
    assert {block.ranks for block in found.matching.blocks} == {(0, 1, 2)}
    assert not any(block.whole for block in found.matching.blocks)
    assert "the calls of rank 3 could not be placed among them" in found.matching.reasons[0]


def test_without_a_number_of_ranks_it_is_said_that_members_may_be_missing_where_no_path_crosses_ranks() -> None:
    run = replace(made(data_parallel())[0], world_size=None)
    found = match_and_align(run)
    assert found.matched == 32
    assert ranks_of_graph(run, found) == ([], UNKNOWN_MEMBERS)


def test_a_call_of_no_named_operation_among_others_is_not_said_to_be_why_nothing_is_paired() -> None:
    run, _ = made([(1, 1000, (0,), 1.0)] * 3)
    one = run.ranks[0]
    names = (*one.names, "unknown")
    op = one.collectives.op.copy()
    for unnamed, said in ((1, "ranks share no call that all members of a group make"), (2, "which operation 2 of 3 ")):
        op[:unnamed] = len(names) - 1
        known = replace(one, names=names, collectives=replace(one.collectives, op=op))
        assert said in _nothing_shared(replace(run, ranks={0: known}))


Short = tuple[int, Members, float, float]
"""Stream, members, microseconds of compute before the call, and of its transfer."""


def exact(program: Iterable[Short]) -> Run:
    """Return four ranks that make these calls, which end within a microsecond; compute takes up to 2 us longer."""
    random = np.random.default_rng(1)
    now, rows = dict.fromkeys(range(4), 0), {rank: list[Row]() for rank in range(4)}
    for stream, members, compute, transfer in program:
        begins = {rank: now[rank] + round((compute + 2 * random.random()) * US) for rank in members}
        for rank, begin in begins.items():
            now[rank] = max(begins.values()) + round(transfer * US) + int(random.integers(US))
            times = {"start_ns": EPOCH_NS + begin, "end_ns": EPOCH_NS + now[rank]}
            rows[rank].append({"op": "all_reduce", "lane": stream, **times})
    ranks = {rank: rank_timeline(rank, calls=own, lanes=({},) * 4, has_device=True) for rank, own in rows.items()}
    return Run(world_size=4, ranks=ranks)


def grid(reductions: int) -> Iterable[Short]:
    """Pairs that make 30 calls at once, then other pairs that make one, every second of which is twice as large; all
    calls of rank 0 take longer."""
    for at in range(reductions):
        yield from [(1, pair, 300.0, 70.0 - 15 * sum(pair[:1])) for _ in range(30) for pair in ((0, 1), (2, 3))]
        yield from [(2, (0, 2), 50.0, 340.0 * (1 + at % 2)), (2, (1, 3), 50.0, 170.0 * (1 + at % 2))]


@pytest.mark.parametrize("reductions", [7, 3])
def test_calls_that_take_longer_each_time_are_not_joined_and_few_calls_are_divided_into_exact_parts(
    reductions: int,
) -> None:
    found = match_and_align(exact(grid(reductions)))
    assert {block.ranks: block.calls for block in found.matching.blocks} == {
        (0, 1): 30 * reductions, (2, 3): 30 * reductions, (0, 2): reductions, (1, 3): reductions,
    }  # fmt: skip
    assert max(map(abs, found.clocks.offset_ns.values())) < 5 * US


@pytest.mark.parametrize(("gains_ns", "noise_ns"), [(30_000, 29_800), (-30_000, 29_800), (120, 0), (-120, 0)])
def test_a_distance_that_grows_faster_than_clocks_drift_apart_is_noise(gains_ns: int, noise_ns: int) -> None:
    """From call to call, 400 us each, a clock gains 200 ns at most."""
    ends = np.array([np.arange(40) * 400 * US, np.arange(40) * (400 * US + gains_ns)])
    ranks = np.array([0, 1])
    assert noise_beside(ends, 0, ranks).tolist() == [np.inf, noise_ns]
    assert noises(ends, ranks)[0, 1] == noise_ns


def test_few_calls_are_not_divided_where_clocks_were_set_once() -> None:
    """Ranks 2 and 3 are on a host whose clock is set by 100 us after the first of three calls."""
    run = exact([(1, (0, 1, 2, 3), 900.0, 50.0)] * 3)
    ranks = dict(run.ranks)
    for rank in (2, 3):
        calls = ranks[rank].collectives
        later = np.array([0, 100 * US, 100 * US])
        ranks[rank] = replace(
            ranks[rank], collectives=replace(calls, start_ns=calls.start_ns + later, end_ns=calls.end_ns + later)
        )
    assert {block.ranks for block in match_and_align(replace(run, ranks=ranks)).matching.blocks} == {(0, 1, 2, 3)}


def test_three_calls_of_all_ranks_that_end_within_a_microsecond_show_whose_clocks_are_apart() -> None:
    """Pairs that keep one distance in many calls are of two groups, if few calls of all show that clocks agree."""
    step: list[Short] = (
        [(1, (0, 1), 40.0, 20.0)] * 20 + [(1, (2, 3), 40.0, 20.0)] * 20 + [(2, (0, 1, 2, 3), 900.0, 30.0)]
    )
    first: list[Short] = [(3, (2, 3), 400.0, 20.0)]  # the second pair is late by as much in each step
    run = exact([call for _ in range(3) for call in (*first, *step)])
    found = [(block.ranks, block.calls) for block in match_and_align(run).matching.blocks]
    assert sorted(found) == [((0, 1), 60), ((0, 1, 2, 3), 3), ((2, 3), 3), ((2, 3), 60)]


def test_ranks_that_leave_before_others_begin_are_left_out_before_the_others_are_paired() -> None:
    """Two pairs whose ends are not far less exact between them than in each, but some of which cannot be one call."""
    random = np.random.default_rng(1)
    begin = np.cumsum(random.integers(3 * MS, 4 * MS, size=80))
    apart = random.integers(-150 * US, 150 * US, size=80) + np.where(np.arange(80) % 16, 0, MS)
    ranks = {}
    for rank in range(4):
        ends = begin + 50 * US + random.integers(40 * US, size=80) + (rank > 1) * apart
        rows: list[Row] = [
            {"op": "all_reduce", "lane": 1, "start_ns": EPOCH_NS + end - 50 * US, "end_ns": EPOCH_NS + end}
            for end in ends.tolist()
        ]
        ranks[rank] = rank_timeline(rank, calls=rows, lanes=({},) * 2, has_device=True)
    found = match_and_align(Run(world_size=4, ranks=ranks))
    assert {block.ranks: block.calls for block in found.matching.blocks} == {(0, 1): 80, (2, 3): 80}


@pytest.mark.parametrize(("steps", "cut"), [([0, 0, 1], True), ([0, 0, 0], False)])
def test_ranks_that_recorded_the_same_steps_are_not_said_to_be_cut(steps: Sequence[int], *, cut: bool) -> None:
    """Ranks 0 and 1 make three calls in the same steps as ranks 2 and 3 many, which are of other groups."""
    rows: dict[int, list[Row]] = {
        rank: [
            {"op": "all_reduce", "lane": 1, "start_ns": EPOCH_NS + at * MS + rank * 300 * US * (at % 2), "step": step,
             "end_ns": EPOCH_NS + at * MS + rank * 300 * US * (at % 2) + 20 * US}
            for at, step in enumerate(steps if rank < 2 else [0] * 40)
        ]
        for rank in range(4)
    }  # fmt: skip
    ranks = {rank: rank_timeline(rank, calls=own, lanes=({},) * 2, has_device=True) for rank, own in rows.items()}
    reasons = " ".join(match_and_align(Run(world_size=4, ranks=ranks)).matching.reasons)
    assert ("sampled or cut" in reasons) == cut


# --- calls whose operation is not known, as RCCL's generic kernel names none -----------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_calls_of_no_named_operation_are_paired_where_they_end_together(seed: int) -> None:
    clock_us = {4: 15.0, 6: -40_000.0}
    run, together = made(pipeline(), seed=seed, clock_us=clock_us, op="unknown", bytes=NONE)
    found = match_and_align(run)
    assert paired(found) == together
    assert all(block.whole for block in found.matching.blocks)
    expected = {rank: clock_us.get(rank, 0.0) for rank in ALL}
    assert {rank: offset / US for rank, offset in found.clocks.offset_ns.items()} == pytest.approx(expected, abs=15)


def test_calls_of_no_named_operation_stand_beside_named_ones() -> None:
    run, together = made(data_parallel())
    ranks = {}
    for rank, timeline in run.ranks.items():
        op = timeline.collectives.op.copy()
        op[::3] = len(timeline.names)
        calls = replace(timeline.collectives, op=op)
        ranks[rank] = replace(timeline, names=(*timeline.names, "unknown"), collectives=calls)
    found = match_and_align(replace(run, ranks=ranks))
    assert paired(found) == together
    assert sum(block.calls for block in found.matching.blocks if block.op == "unknown") == 11


def left_early(run: Run) -> Run:
    """Return the run with calls that rank 0 leaves once it has sent, as the root of broadcasts does."""
    root = run.ranks[0]
    calls = replace(root.collectives, end_ns=root.collectives.start_ns + MS)
    return replace(run, ranks={**run.ranks, 0: replace(root, collectives=calls)})


NOT_NAMED = (
    "the sources do not say which operation {} calls are, so it is not known which of them all members of a group "
    "must reach before they end: they are not paired"
)


def test_calls_of_no_named_operation_are_not_paired_where_one_rank_leaves_them_early() -> None:
    """As the root of broadcasts: the others end together, and wait for nobody but it."""
    found = match_and_align(left_early(made(data_parallel(), op="unknown", bytes=NONE)[0]))
    assert found.matching.blocks == ()
    assert found.matching.reasons == (NOT_NAMED.format(128),)


def test_of_calls_of_no_named_operation_those_are_left_out_that_one_rank_leaves_early_once() -> None:
    run, together = made(data_parallel(), op="unknown", bytes=NONE)
    calls = run.ranks[0].collectives
    end_ns = calls.end_ns.copy()
    end_ns[5] = calls.start_ns[5] + MS
    root = replace(run.ranks[0], collectives=replace(calls, end_ns=end_ns))
    found = match_and_align(replace(run, ranks={**run.ranks, 0: root}))
    assert paired(found) == {each for each in together if (0, 5) not in each}


def test_calls_of_no_named_operation_that_do_not_end_together_are_not_paired_beside_others() -> None:
    pair, _ = made([(1, 1000, (0, 1), 5.0)] * 32, op="unknown", bytes=NONE)
    assert match_and_align(left_early(pair)).matching.reasons == (NOT_NAMED.format(64),)
    named, together = made([(1, 1000, (0, 1), 5.0), (2, 4, (0, 1), 1.0)] * 32)
    ranks = {}
    for rank, timeline in named.ranks.items():
        op, end_ns = timeline.collectives.op.copy(), timeline.collectives.end_ns.copy()
        op[::2], end_ns[::2] = len(timeline.names), end_ns[::2] - (rank == 0) * 3 * MS * (np.arange(32) % 2)
        calls = replace(timeline.collectives, op=op, end_ns=end_ns)
        ranks[rank] = replace(timeline, names=(*timeline.names, "unknown"), collectives=calls)
    found = match_and_align(replace(named, ranks=ranks))
    assert paired(found) == {each for each in together if each[0][1] % 2}
    assert (found.matching.unmatched, found.matching.reasons) == (64, (NOT_NAMED.format(64),))


# --- calls whose streams are not known ------------------------------------------------------------------------------


def without_streams(run: Run) -> Run:
    """Return the run without its kernels."""
    ranks = {
        rank: rank_timeline(
            rank, spans=(), recordings=[{"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + 10**11}],
            collectives=[
                {"op": "all_reduce", "bytes": int(volume), "start_ns": int(start), "end_ns": int(end)}
                for volume, start, end in zip(
                    own.collectives.bytes, own.collectives.start_ns, own.collectives.end_ns, strict=True
                )
            ],
        )
        for rank, own in run.ranks.items()
    }  # fmt: skip
    return replace(run, ranks=ranks)


def some(run: Run, ranks: Sequence[int]) -> Run:
    return replace(run, ranks={rank: run.ranks[rank] for rank in ranks})


def test_no_clock_is_aligned_by_calls_that_would_be_impossible() -> None:
    first: list[Call] = [(1, 1000 * at, (0, 1), 40.0 + 12.0 * (at == 4)) for at in (1, 2, 3, 4)]
    other: list[Call] = [(1, 1000 * at, (2, 3), 40.0 + 12.0 * (at == 1)) for at in (1, 2, 3, 4)]
    run, _ = made([*first, *other, (2, 4, (0, 1, 2, 3), 1.0)] * 12, jitter=0.01)
    found = match_and_align(without_streams(run))
    assert found.matched == 0
    assert dict(found.clocks.offset_ns) == {}
    assert found.clocks.residual_ns is None
    assert found.waits == {}
    (reason,) = found.matching.reasons
    assert reason.startswith(
        "calls of an unnamed group: 60 calls on ranks 0, 1, 2, 3 are not paired by order: 24 of them would end on one "
        "rank before another has begun, by up to "
    )


@pytest.mark.parametrize(("group", "device", "matched"), [(None, True, 0), (None, False, 40), ("g", True, 40)])
def test_ends_that_are_milliseconds_apart_on_devices_align_no_clock(
    group: str | None, matched: int, *, device: bool
) -> None:
    calls = {
        rank: [
            {"op": "all_reduce", "bytes": 8, "group": group, "start_ns": begin, "end_ns": begin + (20 + 6 * late) * MS}
            for at in range(40)
            for begin, late in [(EPOCH_NS + at * 100 * MS, rank * (at % 2))]
        ]
        for rank in (0, 1)
    }
    ranks = {rank: rank_timeline(rank, spans=(), collectives=own, has_device=device) for rank, own in calls.items()}
    found = match_and_align(Run(world_size=2, ranks=ranks, groups=(Group(name="g", size=2, ranks=(0, 1)),)))
    assert found.matched == matched
    assert any("ends are 1.5 ms apart" in each for each in found.matching.reasons) == (not matched)


def test_ranks_of_unlike_calls_are_not_said_to_be_cut() -> None:
    other = match_and_align(without_streams(some(made(pipeline())[0], (0, 2))))
    why = "the ranks made different calls (they are of other groups, or the recordings are sampled or cut)"
    assert why in other.matching.reasons[0]
    short = made(data_parallel(), lost=dict.fromkeys((1, 2, 3), (0, 30)))[0]
    cut = match_and_align(without_streams(short)).matching.reasons[0]
    assert "the recordings are sampled or cut, and the calls of rank 1, 2, 3 could not be placed" in cut


# --- whether members are missing ------------------------------------------------------------------------------------


def test_members_are_said_to_be_missing_only_where_ranks_are() -> None:
    run, _ = made(pipeline(), lost={3: (0, 40)})

    def titles(run: Run) -> list[str]:
        return [each.title for each in analyze(run).findings if each.id == "few_ranks_recorded"]

    assert titles(run) == []
    assert titles(without_streams(some(run, (0, 1)))) == titles(some(run, (0, 1)))
    (title,) = titles(some(run, (0, 1)))
    assert title.startswith("only 2 of 8 ranks were recorded, perhaps not all members of an unnamed group: durations")


@pytest.mark.parametrize("early", [1, 3])
def test_calls_launched_before_a_recording_divide_no_group(early: int) -> None:
    """Of the first ones of ranks 1 and 2 only the kernel is known; the group is all ranks of the job by its size."""
    run, _ = made([(1, 4000, (0, 1, 2, 3), 1)] * 12, group_size=4)
    ranks = dict(run.ranks)
    for rank in (1, 2):
        calls = ranks[rank].collectives
        size, volume = calls.group_size.copy(), calls.bytes.copy()
        size[:early] = volume[:early] = NONE
        ranks[rank] = replace(ranks[rank], collectives=replace(calls, group_size=size, bytes=volume))
    found = match_and_align(replace(run, ranks=ranks, world_size=4))
    assert {block.ranks for block in found.matching.blocks if block.calls == 12 - early} == {(0, 1, 2, 3)}
    assert any(
        f"{2 * early} calls of which neither size nor number is known came before" in each
        for each in found.matching.reasons
    )


# --- ranks that recorded other steps --------------------------------------------------------------------------------


def in_windows(windows: Mapping[int, tuple[int, int]], *, a_step: int = 4, apart: int = 0) -> Run:
    """Return four ranks of one group, which recorded the steps from one number to before another; the calls of a step
    have each another size. Ranks 2 and 3 number theirs `apart` higher."""
    steps = max(until for _, until in windows.values())
    run, _ = made(
        [(1, 1000 * (at + 1), (0, 1, 2, 3), 1.0 + 7 * (at == 0)) for _ in range(steps) for at in range(a_step)]
    )
    ranks = {}
    for rank, (first, until) in windows.items():
        own = run.ranks[rank].collectives
        rows = [
            {"op": "all_reduce", "bytes": int(own.bytes[at]), "start_ns": int(own.start_ns[at]), "lane": 1,
             "end_ns": int(own.end_ns[at]), "step": at // a_step + apart * (rank > 1)}
            for at in range(first * a_step, until * a_step)
        ]  # fmt: skip
        ranks[rank] = rank_timeline(rank, calls=rows, lanes=({},) * 3, has_device=True)
    return Run(world_size=4, ranks=ranks)


EARLIER, LATER = (0, 6), (1, 7)


def ranks_paired(run: Run) -> dict[tuple[int, ...], int]:
    """Return how many calls were paired on each set of ranks."""
    found: dict[tuple[int, ...], int] = {}
    for block in match_and_align(run).matching.blocks:
        found[block.ranks] = found.get(block.ranks, 0) + block.calls
    return found


def test_ranks_that_recorded_other_steps_are_paired_in_those_they_share() -> None:
    run = in_windows({0: EARLIER, 1: EARLIER, 2: LATER, 3: LATER})
    assert ranks_paired(run) == {(0, 1, 2, 3): 20, (0, 1): 4, (2, 3): 4}
    (title,) = [each.title for each in analyze(replace(run, world_size=8)).findings if each.id == "few_ranks_recorded"]
    assert title.startswith("only 4 of 8 ranks were recorded, perhaps not all members of an unnamed group: durations")


@pytest.mark.parametrize(
    ("windows", "apart"),
    [
        ({0: EARLIER, 1: EARLIER, 2: LATER, 3: LATER}, 1),  # the same numbers are other steps
        ({0: EARLIER, 1: EARLIER, 2: (5, 11), 3: (5, 11)}, 0),  # one step alone is shared
    ],
)
def test_other_steps_are_not_paired_without_evidence(windows: Mapping[int, tuple[int, int]], apart: int) -> None:
    assert (0, 1, 2, 3) not in ranks_paired(in_windows(windows, apart=apart))
