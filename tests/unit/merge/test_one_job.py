"""Recordings of two jobs read together: contradictions are reported; those of one job give no message."""

from pathlib import Path

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.merge.assemble import assemble
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.run import Group, Run, Source
from tests.support.builders import EPOCH_NS
from tests.support.call_logs import Call as Logged
from tests.support.call_logs import trace
from tests.support.writers.kineto import MS
from tests.unit.analysis.cross_rank.matching.test_matching import Call, job
from tests.unit.analysis.cross_rank.test_across_ranks import moved

DAY = 24 * 3600 * 10**9


def reading(rank: int, groups: dict[str, tuple[int, ...]], start_ns: int = EPOCH_NS) -> tuple[Path, Reading]:
    path = Path(f"rank{rank}-{start_ns}.json")
    return path, Reading(
        source=Source(path=str(path), format="kineto"),
        timelines=(trace([Logged("all_reduce", 100)], rank=rank, source=str(path), start_ns=start_ns),),
        world_size=8,
        groups=tuple(Group(name=name, size=len(ranks), ranks=ranks) for name, ranks in groups.items()),
    )


def doubts(*readings: tuple[Path, Reading]) -> list[str]:
    run = assemble(list(readings), {})
    return [warning for source in run.sources for warning in source.warnings if "one job" in warning]


def test_a_group_of_which_a_member_says_otherwise_is_asked_about():
    (doubt,) = doubts(reading(2, {"8": (2, 3)}), reading(3, {"8": (1, 3, 5, 7)}))
    assert "group 8 is of ranks 2, 3 in " in doubt
    assert "of ranks 1, 3, 5, 7 in " in doubt
    assert "rank 3 is in both" in doubt


def test_groups_of_one_name_beside_each_other_are_of_one_job():
    assert not doubts(reading(0, {"8": (0, 1)}), reading(2, {"8": (2, 3)}))
    assert not doubts(reading(0, {"8": (0, 1), "9": (0, 2)}), reading(2, {"9": (0, 2), "7": (2, 3)}))


def test_recordings_of_one_rank_days_apart_are_asked_about():
    (doubt,) = doubts(reading(0, {}), reading(0, {}, EPOCH_NS + 3 * DAY), reading(1, {}))
    assert "rank 0 was recorded in " in doubt
    assert " 3.0 days later: are they of one job?" in doubt
    assert not doubts(reading(0, {}), reading(0, {}, EPOCH_NS + DAY // 24), reading(1, {}, EPOCH_NS + 9 * DAY))


def of_four(others: list[Call]) -> Run:
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=4, seq=k) for k in range(5)]
    four = Group(name="g", size=4, ranks=(0, 1, 2, 3))
    return job({0: calls, 1: calls, 2: calls, 3: others}, (four,))


def test_a_rank_that_was_recorded_at_another_time_and_shares_no_call_is_asked_about():
    stranger = of_four([Call(op="all_reduce", group="h", start=k * 10 * MS, size=1) for k in range(5)])
    assert not any("same job" in reason for reason in match_and_align(stranger).matching.reasons)
    far = match_and_align(moved(stranger, 3, 2 * DAY))
    assert far.matched == 5
    assert any(reason.startswith("rank 3 shares no matched call") for reason in far.matching.reasons)
    assert any(
        " 2.0 days apart from all others: does it belong to the same job" in each for each in far.matching.reasons
    )


def test_a_clock_that_is_days_off_is_no_other_job_where_the_calls_match():
    calls = [Call(op="all_reduce", start=k * 10 * MS, size=4, seq=k) for k in range(5)]
    found = match_and_align(moved(of_four(calls), 3, 2 * DAY))
    assert found.matched == 5
    assert found.matching.reasons == ()


@pytest.mark.parametrize("op", ["broadcast", "send"])
def test_where_nothing_was_paired_there_is_a_reason(op):
    calls = [Call(op=op, peer=5, start=k * 10 * MS, size=2) for k in range(5)]
    skew = analyze(job({0: calls, 1: calls})).skew
    assert (skew.matched, skew.pairs) == (0, 0)
    assert skew.reasons
