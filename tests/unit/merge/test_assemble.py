"""The readings of one job become one run: ranks, groups, facts, and warnings about contradictions."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.ingest.merge.assemble import assemble
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import size
from overlapscope.timeline.run import UNKNOWN_RANK, Group, RankTimeline, Run
from tests.support.call_logs import Call, calls_in, communicator_groups, log, members_facts, reading, trace

MAIN = "0x5d01"
WORLD = Group(name="0", description="default_pg", size=2, ranks=(0, 1))
CALLS = [Call("broadcast", 10), *(Call("all_reduce", 1000 + at) for at in range(3))]


def lines(calls: Sequence[Call] = CALLS) -> list[Call]:
    return [replace(c, group=MAIN, seq=at, algorithm="RING", protocol="LL", channels=4) for at, c in enumerate(calls)]


def nccl(*timelines: RankTimeline, path: str = "nccl.log") -> Reading:
    communicators = {MAIN: (0, 1)}
    return reading(path, *timelines, facts=members_facts(communicators), groups=communicator_groups(communicators))


def run_of(*readings: Reading, **given: int) -> Run:
    return assemble([(Path(each.source.path), each) for each in readings], given)


def warnings(run: Run) -> list[str]:
    return [warning for source in run.sources for warning in source.warnings]


def test_traces_and_the_log_of_all_ranks_become_one_run() -> None:
    traces = [reading(f"rank{rank}.json", trace(CALLS, rank=rank), groups=(WORLD,)) for rank in (0, 1)]
    run = run_of(*traces, nccl(log(lines(), rank=0), log(lines(), rank=1)))
    assert sorted(run.ranks) == [0, 1]
    for timeline in run.ranks.values():
        assert [call.algorithm for call in calls_in(timeline)] == ["RING"] * 4
        assert [call.seq for call in calls_in(timeline)] == [0, 1, 2, 3]
    assert run.groups == (WORLD,)
    assert {run.facts.name(code) for code in run.facts.members.group.tolist()} == {"0"}
    assert [source.ranks for source in run.sources] == [(0,), (1,), (0, 1)]
    assert warnings(run) == []
    assert run.world_size is None  # no source says it; a log's communicators may not be the world
    assert {row.algorithm for row in analyze(run).collectives} == {"RING"}


def test_ranks_with_a_log_alone_join_the_traced_ones() -> None:
    run = run_of(
        replace(reading("rank0.json", trace(CALLS, rank=0), groups=(WORLD,)), world_size=2),
        nccl(log(lines(), rank=0), log(lines(), rank=1)),
    )
    assert {rank: timeline.basis for rank, timeline in run.ranks.items()} == {0: "trace", 1: "log"}
    assert run.missing_ranks == ()
    analysis = analyze(run)
    assert [rank.whole.window_ns is None for rank in analysis.ranks] == [False, True]
    rows = {(row.op, row.bytes): (row.count, row.algorithm) for row in analysis.collectives}
    assert rows["all_reduce", 4000] == (1, "RING")  # a call that both members made counts once


def test_what_could_not_be_merged_is_a_warning_of_the_first_source() -> None:
    run = run_of(
        reading("rank0.json", trace([Call("reduce", 77)], rank=0), groups=(WORLD,)), nccl(log(lines(), rank=0))
    )
    (warning,) = run.sources[0].warnings
    assert warning.startswith(
        "rank 0, group '0': not joined with its log: its 1 calls are not a contiguous part of the log's 4"
    )


def test_a_log_whose_rank_is_in_its_name_is_joined_to_that_rank() -> None:
    run = run_of(
        reading("rank0.json", trace(CALLS, rank=0), groups=(WORLD,)),
        nccl(replace(log(lines()), rank=UNKNOWN_RANK), path="nccl.rank_0.log"),
    )
    assert sorted(run.ranks) == [0]
    assert [call.algorithm for call in calls_in(run.ranks[0])] == ["RING"] * 4


def test_a_log_that_does_not_say_its_rank_is_left_out_until_it_is_given() -> None:
    files = (
        reading("rank0.json", trace(CALLS, rank=0), groups=(WORLD,)),
        nccl(replace(log(lines()), rank=UNKNOWN_RANK), path="nccl.log"),
    )
    left_out = run_of(*files)
    assert {call.algorithm for call in calls_in(left_out.ranks[0])} == {None}
    assert any("use --rank nccl.log=N" in warning for warning in warnings(left_out))
    assert size(left_out.facts.members) == 2
    run = run_of(*files, **{"nccl.log": 0})
    assert {call.algorithm for call in calls_in(run.ranks[0])} == {"RING"}


def test_subgroups_of_one_name_and_different_ranks_are_merged_apart() -> None:
    """torch names the groups of a mesh alike on ranks of different groups."""
    groups = [Group(name="1", size=2, ranks=ranks) for ranks in ((0, 1), (2, 3))]
    calls = [replace(call, group="1") for call in CALLS]
    communicators = {"0xa": (0, 1), "0xb": (2, 3)}
    traces = [reading(f"t{rank}", trace(calls, rank=rank), groups=(groups[rank // 2],)) for rank in (0, 2)]
    logs = [
        log([replace(line, group=name, algorithm=algorithm) for line in lines()], rank=rank)
        for rank, name, algorithm in ((0, "0xa", "RING"), (2, "0xb", "TREE"))
    ]
    facts = members_facts(communicators)
    run = run_of(*traces, reading("nccl.log", *logs, facts=facts, groups=communicator_groups(communicators)))
    assert [group.name for group in run.groups] == ["1 [0, 1]", "1 [2, 3]"]
    assert {call.algorithm for call in calls_in(run.ranks[0])} == {"RING"}
    assert {call.algorithm for call in calls_in(run.ranks[2])} == {"TREE"}
    assert warnings(run) == []


def test_sources_of_different_worlds_are_doubted() -> None:
    files = [replace(reading(f"{n}.json", trace(CALLS, rank=n)), world_size=n + 2) for n in (0, 1)]
    assert any("different world sizes (2, 3)" in warning for warning in warnings(run_of(*files)))
