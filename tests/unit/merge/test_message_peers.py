"""Which ranks of the job the peers of messages are, by what all recorded ranks say together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from overlapscope.ingest.merge.message_peers import with_checked_places, with_ranks_of_peers
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, RankTimeline, Source
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
STAGES = Group(name="9", size=4, ranks=(0, 2, 4, 6))
Said = Sequence[tuple[str, int]]
"""Operation and peer of each call."""


def stated(rank: int, calls: Said, *, others: str = "c") -> RankTimeline:
    """Return a rank whose calls of one communicator name these peers."""
    rows: list[Row] = [
        {"op": op, "group": others, "start_ns": at * MS, "end_ns": at * MS + 9, "peer": None if peer == NONE else peer}
        for at, (op, peer) in enumerate(calls)
    ]
    return rank_timeline(rank, calls=rows)


def peers(each: Mapping[int, Said], size: int | None = None, *, in_groups: bool = True) -> dict[int, list[int]]:
    """Return the peers of each rank's calls, read from one file each."""
    groups = (Group(name="c", size=size),) if size else ()
    readings = [
        (
            Path(f"{rank}.sqlite"),
            Reading(
                source=Source(path=f"{rank}.sqlite"), timelines=(stated(rank, calls),), groups=groups,
                peers_in_groups=in_groups,
            ),
        )
        for rank, calls in each.items()
    ]  # fmt: skip
    found = with_ranks_of_peers(readings)
    return {one.rank: one.collectives.peer.tolist() for _, reading in found for one in reading.timelines}


CHAIN: Mapping[int, Said] = {2: [("send", 1)], 5: [("recv", 0), ("send", 2)], 7: [("recv", 1)]}
"""Members 0, 1 and 2 of a communicator are ranks 2, 5 and 7 of the job."""


@pytest.mark.parametrize("size", [None, 3])
def test_members_are_the_recorded_ranks_in_order_where_both_ends_of_each_message_say_so(size: int | None) -> None:
    assert peers(CHAIN, size) == {2: [5], 5: [2, 7], 7: [5]}
    both: dict[int, Said] = {2: [("send_recv", 1)], 5: [("send_recv", 0)]}
    assert peers(both) == {2: [5], 5: [2]}


def test_peers_that_a_source_states_as_ranks_of_the_job_stay() -> None:
    assert peers({2: [("send", 5)], 5: [("recv", 2)]}, in_groups=False) == {2: [5], 5: [2]}


@pytest.mark.parametrize(
    ("said", "size"),
    [
        pytest.param(CHAIN, 4, id="a member was not recorded"),
        pytest.param({2: [("send", 1)], 5: [("recv", 0), ("send", 2)]}, None, id="a place beyond those recorded"),
        pytest.param({2: [("send", 1)], 5: [("send", 0)]}, None, id="no rank receives"),
        pytest.param({2: [("send", 1)], 5: [("send_recv", 0)]}, None, id="another operation"),
        pytest.param({2: [("send", 0), ("recv", 0)], 5: [("all_reduce", NONE)]}, None, id="to itself"),
        pytest.param({2: [("send", 2)], 5: [("recv", 1)], 7: [("all_reduce", NONE)]}, None, id="the first was not"),
    ],
)
def test_peers_are_unknown_where_members_are_not_certain(said: Mapping[int, Said], size: int | None) -> None:
    assert {peer for own in peers(said, size).values() for peer in own} == {NONE}


def in_ranges(rank: int, names: Sequence[str], peer: Sequence[int]) -> RankTimeline:
    """Return a rank of STAGES that sends and receives in ranges of these names, read as places."""
    calls: list[Row] = [
        {
            "op": name.split(":")[1].split()[0], "group": "9", "launch_ns": at * MS, "start_ns": at * MS + 9,
            "end_ns": at * MS + 99, **({} if one == NONE else {"peer": one}),
        }
        for at, (name, one) in enumerate(zip(names, peer, strict=True))
    ]  # fmt: skip
    notes = [{"name": name, "start_ns": at * MS - 9, "end_ns": at * MS + 9} for at, name in enumerate(names)]
    return rank_timeline(rank, calls=calls, annotations=notes)


def checked(*ranks: RankTimeline, groups: Sequence[Group] = (STAGES,)) -> dict[int, list[int]]:
    found = with_checked_places({each.rank: each for each in ranks}, groups)
    return {rank: each.collectives.peer.tolist() for rank, each in found.items()}


FIRST = in_ranges(0, ["nccl:send 0->2", "nccl:recv 0<-2"], [4, 4])
"""Places 0 and 2, or ranks 0 and 2."""


def test_places_that_agree_with_the_group_stay() -> None:
    third = in_ranges(4, ["nccl:recv 2<-0", "nccl:send 2->0"], [0, 0])
    assert checked(FIRST, third) == {0: [4, 4], 4: [0, 0]}
    assert checked(FIRST) == {0: [4, 4]}, "torch writes places"


def test_ends_that_contradict_their_places_on_one_rank_are_ranks_of_the_job_on_all() -> None:
    third = in_ranges(4, ["nccl:recv 4<-2", "nccl:send 4->6"], [4, NONE])
    assert checked(FIRST, third) == {0: [2, 2], 4: [2, 6]}
    ring = in_ranges(0, ["nccl:send 0->2", "nccl:recv 0<-6"], [4, NONE])
    assert checked(ring) == {0: [2, 6]}, "a place beyond the group, on one rank alone"


def test_ends_that_are_neither_places_nor_ranks_leave_peers_unknown() -> None:
    neither = in_ranges(4, ["nccl:send 1->2"], [4])
    assert checked(FIRST, neither) == {0: [NONE, NONE], 4: [NONE]}
    strangers = in_ranges(4, ["nccl:send 4->5"], [NONE])
    assert checked(FIRST, strangers) == {0: [NONE, NONE], 4: [NONE]}


def test_a_peer_that_the_call_itself_states_stays_whatever_its_range_says() -> None:
    other = in_ranges(4, ["nccl:send 1->2"], [6])
    assert checked(other) == {4: [6]}
    assert checked(in_ranges(0, ["nccl:send 1->2"], [4]), other) == {0: [4], 4: [6]}, "nor that of its like"


def test_where_members_are_not_known_or_ranges_are_missing_nothing_changes() -> None:
    third = in_ranges(4, ["nccl:recv 4<-2"], [4])
    assert checked(third, groups=[Group(name="9", size=4)]) == {4: [4]}
    assert checked(stated(4, [("send", 6)], others="9")) == {4: [6]}
