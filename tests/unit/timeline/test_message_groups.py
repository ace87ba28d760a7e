"""Which groups sends and receives are of whose source names none."""

from collections.abc import Mapping, Sequence

import pytest

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matching.point_to_point import match_pairs
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.message_groups import with_message_groups
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
WORLD = Group(name="0", description="default_pg", size=8, ranks=tuple(range(8)))
STAGES = Group(name="1", description="PIPELINE_MODEL_PARALLEL_GROUP", size=4, ranks=(0, 2, 4, 6))
REPLICAS = Group(name="5", description="DATA_PARALLEL_GROUP", size=2, ranks=(2, 3))
RING = Group(name="7", description="CONTEXT_PARALLEL_GROUP", size=4, ranks=(0, 2, 4, 6))


def rank(
    number: int, ranges: Sequence[str] = (), peers: Sequence[int] = (), *, exchanges: int = 0, group: str | None = None
) -> RankTimeline:
    """Return a rank that sends and receives: in ranges of these names, or with these peers."""
    calls: list[Row] = [
        {"op": name.split(":")[1].split()[0], "launch_ns": at * MS, "start_ns": at * MS + 9, "end_ns": at * MS + 99}
        for at, name in enumerate(ranges)
    ]
    calls += [{"op": "send", "peer": each, "start_ns": at * MS, "end_ns": at * MS + 9} for at, each in enumerate(peers)]
    calls += [{"op": "send_recv", "start_ns": 99 * MS + at, "end_ns": 99 * MS + at + 1} for at in range(exchanges)]
    notes = [{"name": name, "start_ns": at * MS - 9, "end_ns": at * MS + 9} for at, name in enumerate(ranges)]
    return rank_timeline(number, calls=[{"group": group, **each} for each in calls], annotations=notes)


def named(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int = 8
) -> dict[int, list[tuple[str | None, int]]]:
    """Return group and peer of each rank's calls."""
    found, every = with_message_groups(ranks, groups, world_size)
    known = {None, *(group.name for group in every)}
    rows = {
        number: [
            (each.name(code), peer)
            for code, peer in zip(each.collectives.group.tolist(), each.collectives.peer.tolist(), strict=True)
        ]
        for number, each in found.items()
    }
    assert {name for own in rows.values() for name, _ in own} <= known
    return rows


def test_of_several_listed_groups_that_hold_both_ranks_it_is_the_pipeline() -> None:
    ranges = ["nccl:recv 1<-0", "nccl:send 1->2", "nccl:recv 1<-2", "nccl:send 1->0"]
    found = named({2: rank(2, ranges, exchanges=1)}, (WORLD, STAGES, REPLICAS))
    assert found == {2: [("1", 0), ("1", 4), ("1", 4), ("1", 0), ("1", NONE)]}


def test_known_peers_say_the_group_too_and_stay() -> None:
    assert named({2: rank(2, peers=[0, 4])}, (WORLD, STAGES)) == {2: [("1", 0), ("1", 4)]}
    assert named({2: rank(2, peers=[3, 3])}, (WORLD, STAGES)) == {2: [("0", 3)] * 2}, "rank 3 is no stage of these"


@pytest.mark.parametrize(
    ("ranges", "groups", "group"),
    [
        pytest.param(["nccl:send 1->2"], (STAGES,), "1", id="one group"),
        pytest.param(["nccl:send 1->2"], (RING,), "7", id="one group, a ring"),
        pytest.param(["nccl:send 2->3"], (WORLD, STAGES), "0", id="at its place in all ranks"),
        pytest.param(["nccl:send 1->5"], (STAGES,), None, id="a place that the group lacks"),
        pytest.param(["nccl:send 1->2"], (STAGES, RING), None, id="a ring of the same ranks"),
        pytest.param(["nccl:send 1->2"], (), None, id="nothing listed"),
    ],
)
def test_a_group_holds_both_places_and_is_the_only_one_meant(
    ranges: list[str], groups: tuple[Group, ...], group: str | None
) -> None:
    assert [name for name, _ in named({2: rank(2, ranges)}, groups)[2]] == [group]


def test_messages_with_a_group_and_exchanges_alone_stay_as_they_are() -> None:
    ranks = {2: rank(2, peers=[4], group="x"), 4: rank(4, exchanges=3)}
    assert with_message_groups(ranks, (STAGES,), 8) == (ranks, (STAGES,))


def test_of_two_ranks_without_a_listed_group_it_is_of_both() -> None:
    found = named({0: rank(0, ["nccl:send 0->1"]), 1: rank(1, ["nccl:recv 1<-0"])}, (), 2)
    assert found == {0: [("ranks [0, 1]", 1)], 1: [("ranks [0, 1]", 0)]}


def mirrored(*pairs: tuple[int, int]) -> dict[int, list[str]]:
    """Return the ranges of ranks that send to each other, where their places are their numbers."""
    found: dict[int, list[str]] = {}
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        found.setdefault(one, []).extend([f"nccl:send {one}->{other}", f"nccl:recv {one}<-{other}"])
    return found


def test_where_no_group_is_listed_places_are_ranks_of_the_job_if_all_say_so() -> None:
    ranges = mirrored((0, 4), (1, 5))
    found = named({number: rank(number, own) for number, own in ranges.items()}, (), 6)
    assert found == {0: [("ranks 0 to 5", 4)] * 2, 1: [("ranks 0 to 5", 5)] * 2,
                     4: [("ranks 0 to 5", 0)] * 2, 5: [("ranks 0 to 5", 1)] * 2}  # fmt: skip
    star = {number: own for number, own in mirrored((0, 1), (0, 2), (0, 3)).items() if number != 1}
    served = named({number: rank(number, own) for number, own in star.items()}, (), 4)
    assert served[3] == [("ranks 0 to 3", 0)] * 2, "rank 1 was not recorded, but is before the last one"


@pytest.mark.parametrize(
    ("world_size", "group"),
    [
        (6, Group(name="ranks 0 to 5", size=6, ranks=(0, 1, 2, 3, 4, 5))),
        (8, Group(name="ranks 0 to 5 or more")),
        (None, Group(name="ranks 0 to 5 or more")),
    ],
)
def test_the_members_of_a_group_that_may_have_more_ranks_are_not_known(world_size: int | None, group: Group) -> None:
    ranks = {number: rank(number, own) for number, own in mirrored((0, 4), (1, 5)).items()}
    found, groups = with_message_groups(ranks, (), world_size)
    assert (groups, found[5].collectives.peer.tolist()) == ((group,), [1, 1])


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param({2: ["nccl:send 0->1"], 4: ["nccl:recv 1<-0"]}, id="places that are not the ranks"),
        pytest.param({0: ["nccl:send 0->1"]}, id="a rank alone, at the first place of any group"),
        pytest.param({0: ["nccl:send 0->1"], 1: ["nccl:send 1->0"]}, id="messages that the other side does not state"),
        pytest.param(
            {0: ["nccl:send 0->1", "nccl:send 0->2"], 1: ["nccl:recv 1<-0"]}, id="a place beyond the last rank"
        ),
        pytest.param({**mirrored((0, 1)), 2: ["nccl:send 0->1"]}, id="another group besides"),
        pytest.param({**mirrored((0, 1)), 2: ["nccl:send 2->0", "nccl:send 3->4"]}, id="two places of one rank"),
    ],
)
def test_where_places_may_be_of_a_smaller_group_no_message_is_named(ranges: Mapping[int, list[str]]) -> None:
    found = named({number: rank(number, own) for number, own in ranges.items()}, ())
    assert {each for own in found.values() for each in own} == {(None, NONE)}
    reasons = match_pairs(
        Run(world_size=8, ranks={number: rank(number, own) for number, own in ranges.items()}), Clocks()
    ).reasons
    assert "ranges say at which place of their group the peers of send calls are, but nothing says which" in reasons[0]


def test_where_a_member_may_mean_another_group_no_message_of_the_group_is_named() -> None:
    ranks = {2: rank(2, peers=[0, 4]), 4: rank(4, peers=[2, 5])}
    assert named(ranks, (STAGES,)) == {2: [(None, 0), (None, 4)], 4: [(None, 2), (None, 5)]}
    both = {2: rank(2, peers=[0, 4]), 4: rank(4, peers=[2, 6])}
    assert named(both, (STAGES,)) == {2: [("1", 0), ("1", 4)], 4: [("1", 2), ("1", 6)]}
