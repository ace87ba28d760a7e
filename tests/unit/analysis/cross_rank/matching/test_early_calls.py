"""Calls launched before the recording: of them only the kernel is known, and the group from its stream."""

from collections.abc import Mapping, Sequence

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Group, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

US, MS = 1_000, 1_000_000
Members = tuple[int, ...]
PAIRS = (Group(name="a", size=2, ranks=(0, 1)), Group(name="b", size=2, ranks=(2, 3)))
WORLD = Group(name="w", size=4, ranks=(0, 1, 2, 3))


def calls(
    begins_ms: Sequence[float], group: str | None, *, early: int, lane: int = 1, op: str = "all_reduce",
    of_early: Sequence[str] = (),
) -> list[Row]:  # fmt: skip
    """Return calls of 1 ms that begin so many ms after the recording, the first `early` of which it knows as kernels;
    `of_early` are the operations of these, where they differ."""
    rows: list[Row] = []
    for at, begin in enumerate(begins_ms):
        start = EPOCH_NS + round(begin * MS)
        row: Row = {"op": op, "lane": lane, "start_ns": start, "end_ns": start + MS}
        if at >= early:
            row = {**row, "group": group, "bytes": 64, "group_size": 2, "launch_ns": start - 10 * US}
        elif of_early:
            row = {**row, "op": of_early[at]}
        rows.append(row)
    return rows


def run_of(rows: Mapping[int, Sequence[Row]], groups: tuple[Group, ...] = (*PAIRS, WORLD), world: int = 4) -> Run:
    ranks = {rank: rank_timeline(rank, calls=own, lanes=({},) * 4) for rank, own in rows.items()}
    return Run(world_size=world, ranks=ranks, groups=groups)


def begins(late_ms: float = 0.0, count: int = 12) -> list[float]:
    return [10 * at + late_ms for at in range(count)]


def two_pairs(early: Mapping[int, int]) -> dict[int, list[Row]]:
    """Return the calls of two pairs, of which the second one makes each of its calls 0.45 ms after the first."""
    return {
        rank: calls(begins(0.45 * (rank // 2)), "ab"[rank // 2], early=early.get(rank, 4)) for rank in range(4)
    }  # fmt: skip


def test_early_calls_are_of_the_group_of_their_stream_and_tie_no_other_ranks() -> None:
    found = match_and_align(run_of(two_pairs({})))
    assert {(each.group, each.ranks, each.calls) for each in found.matching.blocks} == {
        ("a", (0, 1), 8), ("a", (0, 1), 4), ("b", (2, 3), 8), ("b", (2, 3), 4),
    }  # fmt: skip
    assert found.matching.unmatched == 0
    assert not found.clocks.comparable((0, 2))
    assert all(abs(offset) < US for offset in found.clocks.offset_ns.values())


def test_they_are_counted_back_from_the_first_launched_call() -> None:
    rows = two_pairs({})
    rows[1] = rows[1][1:]  # its kernels were recorded from the second one on
    found = match_and_align(run_of(rows))
    (early,) = [each for each in found.matching.blocks if each.group == "a" and each.calls == 3]
    assert early.rows.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert "group a: 1 call was launched before the recording began" in " ".join(found.matching.reasons)
    assert found.matching.unmatched == 1


def test_they_are_not_paired_where_the_first_launched_call_is_another_one() -> None:
    found = match_and_align(run_of(two_pairs({1: 5})))
    assert not any(each.group == "a" and each.bytes is None for each in found.matching.blocks)
    assert any("launched before the recording began" in each for each in found.matching.reasons)


def test_they_are_not_paired_where_operations_differ() -> None:
    rows = two_pairs({})
    rows[1] = calls(begins(), "a", early=4, of_early=["all_gather", *["all_reduce"] * 3])
    assert not any(each.group == "a" and each.bytes is None for each in match_and_align(run_of(rows)).matching.blocks)


def test_a_stream_of_two_groups_says_nothing_of_early_calls() -> None:
    rows = {
        rank: sorted(
            [*calls(begins(), "a", early=4), *calls(begins(5.0), "w", early=0)], key=lambda row: row["start_ns"]
        )
        for rank in (0, 1)
    }
    found = match_and_align(run_of(rows, world=2))
    assert not any(each.group == "a" and each.bytes is None for each in found.matching.blocks)


@pytest.mark.parametrize(("launched", "paired"), [("pairs", False), ("world", True)])
def test_early_calls_of_a_stream_of_their_own_are_of_a_group_that_others_name(launched: str, *, paired: bool) -> None:
    rows = {}
    for rank in range(4):
        group = "w" if launched == "world" else "ab"[rank // 2]
        rows[rank] = [*calls(begins(), None, early=12, lane=2), *calls(begins(200.0), group, early=0)]
    found = match_and_align(run_of(rows))
    assert any(each.group is None for each in found.matching.blocks) == paired
    assert any("no group of the calls launched later has these ranks" in each for each in found.matching.reasons) != (
        paired
    )


def test_unpaired_calls_of_no_known_group_are_said_to_be_launched_before() -> None:
    rows = {
        rank: [*calls(begins(3.0 * rank, count=12 + rank), None, early=20, lane=2), *calls(begins(300), "a", early=0)]
        for rank in (0, 1)
    }
    assert match_and_align(run_of(rows, world=2)).matching.reasons == (
        "calls of an unnamed group: 25 calls were launched before the recording began, so their group is not recorded: "
        "not paired",
    )


def test_exchanges_are_said_to_be_launched_before_where_that_is_why_their_peer_is_not_known() -> None:
    rows = {
        rank: calls(begins(), None, early=1, op="all_to_all", of_early=["send_recv"]) for rank in (0, 1)
    }  # fmt: skip
    pairs = match_and_align(run_of(rows, world=2)).pairs
    assert (pairs.unmatched, pairs.reasons) == (
        2, ("calls of an unnamed group: 2 calls were launched before the recording began, so their group is not "
            "recorded: not paired",),
    )  # fmt: skip


def test_early_calls_are_no_further_group_of_which_members_are_missing() -> None:
    rows = {rank: calls(begins(), "w", early=4) for rank in (0, 1)}
    (finding,) = [each for each in analyze(run_of(rows)).findings if each.id == "few_ranks_recorded"]
    assert finding.title.startswith("only 2 of 4 members of group w were recorded: durations")
    assert finding.evidence["groups"] == 1
