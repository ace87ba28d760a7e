"""Which groups calls are of whose source names none: found from when they begin and end, or not at all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.timeline.dimensions import fill_group_columns
from overlapscope.timeline.found_groups import FEWEST, MOST_RANKS, with_found_groups
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

US = 1000
DP, TP = ((0, 2), (1, 3)), ((0, 1), (2, 3))
ALL = ((0, 1, 2, 3),)
LISTED = (
    Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3)),
    *(Group(name=f"{at + 1}", description="mesh_dp", size=2, ranks=ranks) for at, ranks in enumerate(DP)),
    *(Group(name=f"{at + 3}", description="mesh_tp", size=2, ranks=ranks) for at, ranks in enumerate(TP)),
)
Division = Sequence[tuple[int, ...]]


def mesh(
    program: Iterable[tuple[str, Division]], *, clock_us: Mapping[int, int] | None = None, seed: int = 3,
    jitter_us: int = 4000, step_of: Callable[[int], int] | None = None, lost: Mapping[int, int] | None = None,
    lane_of: Callable[[Division, int], int] = lambda *_: 1, host: str | None = "node", **more: object,
) -> dict[int, RankTimeline]:  # fmt: skip
    """Return the ranks of a job that calls one after the other, each rank as soon as it can, and names no group.

    Each computes for up to `jitter_us` before a call of 150 us, and sees its end up to 60 us late; `lost` calls at the
    beginning are not recorded.
    """
    random = np.random.default_rng(seed)
    program = list(program)
    members = sorted(rank for group in program[0][1] for rank in group)
    now = dict.fromkeys(members, 0)
    rows: dict[int, list[Row]] = {rank: [] for rank in members}
    for at, (op, groups) in enumerate(program):
        for group in groups:
            begins = {rank: now[rank] + int(random.integers(100, 100 + jitter_us)) for rank in group}
            for rank, begin in begins.items():
                now[rank] = max(begins.values()) + 150 + int(random.integers(60))
                ahead = EPOCH_NS + (clock_us or {}).get(rank, 0) * US
                times = {"start_ns": ahead + begin * US, "end_ns": ahead + now[rank] * US}
                step = None if step_of is None else step_of(at)
                rows[rank].append({**times, "op": op, "step": step, "lane": lane_of(groups, at), **more})
    recorded = {} if host is None else {"host": host}
    return {
        rank: rank_timeline(
            rank, calls=own[(lost or {}).get(rank, 0) :], lanes=({},) * 5, has_device=False, recorded=recorded
        )
        for rank, own in rows.items()
    }


FSDP_X_TP = [*[("all_gather", DP)] * 2, *[("all_reduce", TP)] * 3, ("reduce_scatter", DP)] * 20


def found(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...] = (), *, world_size: int | None = None
) -> dict[str, set[tuple[int, ...]]]:
    """Return the members of the groups of each operation, as far as they were found; all ranks are given by default."""
    timelines, every = with_found_groups(ranks, groups, len(ranks) if world_size is None else world_size)
    members = {group.name: group.ranks for group in every}
    divided: dict[str, set[tuple[int, ...]]] = {}
    for timeline in timelines.values():
        calls = timeline.collectives
        for op, group in set(zip(calls.op.tolist(), calls.group.tolist(), strict=True)):
            if group >= 0:
                divided.setdefault(timeline.names[op], set()).add(members[timeline.names[group]] or ())
    return divided


def analyzed(ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...] = ()) -> CrossRank:
    timelines, every = with_found_groups(ranks, groups, 4)
    return match_and_align(Run(world_size=4, ranks=fill_group_columns(timelines, every, 4), groups=every))


MESH = {"all_gather": set(DP), "all_reduce": set(TP), "reduce_scatter": set(DP)}


@pytest.mark.slow
@pytest.mark.parametrize("clock_us", [{}, {1: 40_000}, {0: -7000, 1: 3000, 2: 900}])
@pytest.mark.parametrize("listed", [(), LISTED])
def test_each_operation_has_the_groups_along_its_dimension(clock_us: dict[int, int], listed: tuple[Group, ...]) -> None:
    for seed in range(8):
        for host in ("node", None):
            assert found(mesh(FSDP_X_TP, clock_us=clock_us, seed=seed, host=host), listed) == MESH


def test_found_groups_are_matched_like_any_other_and_say_how_they_were_found() -> None:
    together = analyzed(mesh(FSDP_X_TP, host="node"), LISTED)
    assert {(block.op, block.ranks) for block in together.matching.blocks} == {
        (op, members) for op, groups in MESH.items() for members in groups
    }
    assert together.matching.unmatched == 0
    assert all(block.whole for block in together.matching.blocks)
    assert together.clocks.offset_ns == dict.fromkeys(range(4), 0.0)
    assert not any(each.early_ends for each in together.splits)
    assert [each for each in together.matching.reasons if "found from when calls begin and end" in each] == [
        "the traces do not say which group a call is of: 4 groups were found from when calls begin and end: ranks "
        "[0, 2] (mesh_dp), [1, 3] (mesh_dp), [0, 1] (mesh_tp), [2, 3] (mesh_tp)"
    ]


def test_the_dimension_is_that_of_the_listed_group_and_else_unknown() -> None:
    for listed, expected in ((LISTED, {"data", "tensor"}), ((), set())):
        timelines, groups = with_found_groups(mesh(FSDP_X_TP), listed, 4)
        first = fill_group_columns(timelines, groups, 4)[0]
        assert {first.name(code) for code in first.collectives.dimension.tolist()} - {None} == expected
        assert set(first.collectives.group_size.tolist()) == {2}


def test_one_group_of_all_ranks_is_not_divided() -> None:
    for seed in range(8):
        assert found(mesh([("all_reduce", ALL)] * 60, seed=seed), LISTED) == {}


def test_groups_of_four_are_not_divided_further() -> None:
    fours = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found(mesh([("all_reduce", fours)] * 60)) == {"all_reduce": set(fours)}


def test_calls_of_two_groups_of_one_operation_are_left_alone_and_not_paired() -> None:
    both = [("all_reduce", TP), ("all_reduce", DP)] * 30
    assert found(mesh(both)) == {}
    with_norm = [*[("all_reduce", TP)] * 3, ("all_reduce", ALL)] * 20
    ranks = mesh(with_norm, lane_of=lambda groups, at: 4 if groups is ALL else at % 2)
    assert found(ranks) == {}
    on_streams = {rank: replace(each, has_device=True) for rank, each in mesh(with_norm).items()}
    assert found(on_streams) == {"all_reduce": set(TP)}
    on_streams = mesh(with_norm, lane_of=lambda groups, _: 4 if groups is ALL else 1)
    assert found({rank: replace(each, has_device=True) for rank, each in on_streams.items()}) == {}
    together = analyzed(ranks)
    assert together.matching.blocks == ()
    assert "they are calls of several groups, or not the same calls" in together.matching.reasons[0]


def test_calls_on_one_host_that_contradict_each_other_are_not_paired_even_if_they_are_few() -> None:
    few = [("all_reduce", TP)] * (FEWEST - 1)
    assert found(mesh(few)) == {}
    assert analyzed(mesh(few, host="node")).matching.blocks == ()
    assert analyzed(mesh([("all_reduce", ALL)] * (FEWEST - 1), host="node")).matching.blocks != ()


def test_members_that_the_sources_do_not_list_are_not_taken() -> None:
    only_tp = tuple(group for group in LISTED if group.description != "mesh_dp")
    assert found(mesh(FSDP_X_TP), only_tp) == {"all_reduce": set(TP)}


def test_members_of_two_listed_groups_are_a_group_of_its_own() -> None:
    twice = (*LISTED, *(Group(name=f"s{at}", size=2, ranks=ranks) for at, ranks in enumerate(DP)))
    timelines, groups = with_found_groups(mesh(FSDP_X_TP), twice, 4)
    assert {group.name for group in groups if group.found} == {"3", "4", "ranks [0, 2]", "ranks [1, 3]"}
    assert all((each.collectives.group >= 0).all() for each in timelines.values())


def test_few_calls_and_many_ranks_show_nothing() -> None:
    assert found(mesh([("all_reduce", TP)] * (FEWEST - 1))) == {}
    assert found(mesh([("all_reduce", TP)] * (2 * FEWEST - 1), host=None)) == {}  # a clock may have been set
    assert found(mesh([("all_reduce", TP)] * (2 * FEWEST - 1))) == {"all_reduce": set(TP)}
    pairs = tuple((at, at + 1) for at in range(0, MOST_RANKS + 2, 2))
    assert found(mesh([("all_reduce", pairs)] * 20)) == {}


def test_a_clock_that_is_set_divides_no_group() -> None:
    ranks = mesh([("all_reduce", ALL)] * 60)
    moved = {}
    for rank, timeline in ranks.items():
        calls = timeline.collectives
        late = np.where(np.arange(60) >= 30, 50_000 * US * (rank > 1), 0)
        moved[rank] = rank_timeline(
            rank,
            calls=[
                {"op": "all_reduce", "start_ns": start, "end_ns": end}
                for start, end in zip((calls.start_ns + late).tolist(), (calls.end_ns + late).tolist(), strict=True)
            ],
        )
    assert found(moved) == {}


def test_of_cut_recordings_the_steps_count_that_all_ranks_recorded_whole() -> None:
    ranks = mesh(FSDP_X_TP, step_of=lambda at: at // 6, lost={1: 8, 2: 3})
    assert found(ranks) == MESH
    assert found(mesh(FSDP_X_TP, lost={1: 8, 2: 3})) == {}


@pytest.mark.parametrize("calls_a_step", [1, 4])
def test_one_group_whose_ranks_recorded_as_many_calls_of_different_steps_is_not_divided(calls_a_step: int) -> None:
    """Ranks 0 and 1 did not record the last call, ranks 2 and 3 not the first."""
    for groups, expected in ((ALL, {}), (TP, {"all_reduce": set(TP)})):
        program, step_of = [("all_reduce", groups)] * 61, lambda at: at // calls_a_step
        early = mesh(program[:-1], step_of=step_of)
        late = mesh(program, step_of=step_of, lost={2: 1, 3: 1})
        ranks = {0: early[0], 1: early[1], 2: late[2], 3: late[3]}
        assert {each.collectives.step.size for each in ranks.values()} == {60}
        assert found(ranks) == found(ranks, LISTED) == expected


def test_groups_are_not_found_where_a_rank_of_the_job_was_not_recorded() -> None:
    """Half of two groups of four would be taken for two groups of two."""
    fours = ((0, 2, 4, 6), (1, 3, 5, 7))
    every = mesh([("all_reduce", fours)] * 60)
    half = {rank: every[rank] for rank in range(4)}
    assert found(every) == {"all_reduce": set(fours)}
    for world_size in (8, 5):
        assert found(half, world_size=world_size) == {}
    assert with_found_groups(half, (), None) == (half, ())
    run = Run(world_size=8, ranks=fill_group_columns(half, (), 8))
    assert not any(block.whole for block in match_and_align(run).matching.blocks)


def test_a_run_directory_of_some_ranks_is_read_without_found_groups(tmp_path: Path) -> None:
    for world_size in (8, None):
        save_run(Run(world_size=world_size, ranks=mesh(FSDP_X_TP)), tmp_path / str(world_size), version="")
        assert load_run(tmp_path / str(world_size)).groups == ()


def test_a_size_that_no_listed_group_has_is_not_taken() -> None:
    for size, expected in ((4, {}), (2, {"all_reduce": set(TP)})):
        nameless = tuple(Group(name=str(at), size=size) for at in range(2))
        assert found(mesh([("all_reduce", TP)] * 60), nameless) == expected


def test_a_recorded_size_excludes_others() -> None:
    assert found(mesh(FSDP_X_TP, group_size=4)) == {}
    assert found(mesh(FSDP_X_TP, group_size=2)) == MESH


def test_a_manifest_that_lists_the_groups_of_one_rank_names_those_and_the_dimension_of_the_others() -> None:
    of_rank_0 = tuple(group for group in LISTED if 0 in (group.ranks or ()))
    _, groups = with_found_groups(mesh(FSDP_X_TP), of_rank_0, 4)
    assert {(group.name, group.description, group.ranks) for group in groups if group.found} == {
        ("1", "mesh_dp", (0, 2)), ("ranks [1, 3]", "mesh_dp", (1, 3)),
        ("3", "mesh_tp", (0, 1)), ("ranks [2, 3]", "mesh_tp", (2, 3)),
    }  # fmt: skip


def test_a_run_directory_whose_calls_name_no_group_is_read_with_those_found(tmp_path: Path) -> None:
    save_run(Run(world_size=4, ranks=mesh(FSDP_X_TP), groups=LISTED), tmp_path / "run", version="")
    run = load_run(tmp_path / "run")
    assert match_and_align(run).matching.unmatched == 0
    first = run.ranks[0]
    assert {first.name(code) for code in first.collectives.dimension.tolist()} == {"data", "tensor"}
    save_run(run, tmp_path / "again", version="")
    assert load_run(tmp_path / "again").groups == run.groups
