"""Which groups calls are of that state a size and no name: those that the sources list, where one choice is left."""

from collections.abc import Mapping, Sequence

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.configured_groups import with_configured_groups
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

US, MS = 1_000, 1_000_000
WORLD = Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3))
CP = tuple(
    Group(name=f"{at + 1}", description="CONTEXT_PARALLEL_GROUP", size=2, ranks=ranks)
    for at, ranks in enumerate(((0, 1), (2, 3)))
)
BESIDE = tuple(
    Group(name=f"{at + 3}", description="DATA_PARALLEL_GROUP", size=2, ranks=ranks)
    for at, ranks in enumerate(((0, 2), (1, 3)))
)
AGAIN = (Group(name="7", description="MODEL_PARALLEL_GROUP", size=2, ranks=(0, 1)),)


def job(
    ranks: Sequence[int] = (0, 1, 2, 3), *, size: int | None = 2, named: str | None = None, streams: int = 1
) -> dict[int, RankTimeline]:
    """Return ranks of which all make the same calls at about the same times, without a group's name."""
    found = {}
    for rank in ranks:
        rows: list[Row] = [
            {
                "start_ns": EPOCH_NS + at * 10 * MS + rank * 10 * US, "end_ns": EPOCH_NS + at * 10 * MS + 2 * MS,
                "op": "all_reduce", "bytes": 4096, "group_size": size, "lane": 1 + at % streams,
                "group": named if at == 0 else None,
            }
            for at in range(12)
        ]  # fmt: skip
        found[rank] = rank_timeline(rank, calls=rows, lanes=({},) * 4)
    return found


def members(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], *, world_size: int = 4
) -> dict[int, str | None]:
    """Return the group of each rank's last call."""
    timelines, _ = with_configured_groups(ranks, groups, world_size)
    return {rank: each.name(int(each.collectives.group[-1])) for rank, each in timelines.items()}


def run_of(ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int = 4) -> Run:
    timelines, every = with_configured_groups(ranks, groups, world_size)
    return Run(world_size=world_size, ranks=timelines, groups=every)


def test_calls_are_of_the_only_listed_group_of_their_size() -> None:
    assert members(job(), (WORLD, *CP)) == {0: "1", 1: "1", 2: "2", 3: "2"}
    matching = match_and_align(run_of(job(), (WORLD, *CP))).matching
    assert {block.ranks for block in matching.blocks} == {(0, 1), (2, 3)}
    assert matching.unmatched == 0


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        pytest.param(job(), (WORLD, *CP, *BESIDE), id="two groups of one size"),
        pytest.param(job(size=None), (WORLD, *CP), id="no size"),
        pytest.param(job(size=3), (WORLD, *CP), id="a size that is not listed"),
        pytest.param(job(size=4), (WORLD,), id="all ranks"),
        pytest.param(job(), (), id="nothing listed"),
        pytest.param(job(), tuple(Group(name=each.name, size=2) for each in CP), id="groups without members"),
    ],
)
def test_where_no_one_choice_is_left_calls_stay_without_a_group(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...]
) -> None:
    assert set(members(ranks, groups).values()) == {None}


def test_a_group_that_other_calls_name_takes_none_without_a_name() -> None:
    assert members(job(named="1"), (WORLD, *CP)) == {0: None, 1: None, 2: "2", 3: "2"}


def test_groups_of_the_same_members_are_one_where_each_rank_calls_on_one_stream() -> None:
    found = members(job(), (WORLD, *CP, *AGAIN))
    assert found == {0: "ranks [0, 1]", 1: "ranks [0, 1]", 2: "2", 3: "2"}
    assert members(job(streams=2), (WORLD, *CP, *AGAIN)) == {0: None, 1: None, 2: "2", 3: "2"}


def test_ranks_of_two_groups_are_not_paired_however_alike_their_calls() -> None:
    run = run_of(job((0, 3)), (WORLD, *CP))
    found = match_and_align(run)
    assert (found.matched, found.matching.unmatched) == (0, 24)
    (title,) = [each.title for each in analyze(run).findings if each.id == "few_ranks_recorded"]
    assert title.startswith("only 1 of 2 members of group 1 and some of 1 more groups were recorded: ")


@pytest.mark.parametrize(("ranks", "paired"), [((0, 3), False), ((0, 1), True), ((0, 2), True)])
def test_ranks_that_no_listed_group_of_the_size_holds_together_are_not_paired_by_order(
    ranks: Sequence[int], *, paired: bool
) -> None:
    """Ranks 0 and 3 are each in two groups of two, but in none of them together."""
    run = run_of(job(ranks), (WORLD, *CP, *BESIDE))
    found = match_and_align(run).matching
    assert bool(found.blocks) == paired
    said = any("no group that the sources list has these ranks" in reason for reason in found.reasons)
    assert said != paired


def test_ranks_of_calls_without_a_size_may_be_of_any_listed_group() -> None:
    assert match_and_align(run_of(job((0, 3), size=None), (WORLD, *CP))).matching.blocks
