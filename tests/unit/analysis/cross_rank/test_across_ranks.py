"""What several ranks show together: matched calls, aligned clocks, wait time apart from transfer time, blame.

The oracle is plain Python over the raw rows of the tables: calls by their place in the group, least duration, leads.
"""

from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, Run
from tests.conftest import ROOT, shared_file
from tests.unit.analysis.cross_rank.matching.test_matching import Call, job

MS = 1_000_000
TIMES = ("start_ns", "end_ns", "launch_ns", "time_ns", "ready_ns", "last_launch_ns", "lost_launch_ns")


def moved(run: Run, rank: int, offset_ns: int, drift: float = 0.0) -> Run:
    """Return the run with one rank's clock set otherwise, and running otherwise."""
    timeline = run.ranks[rank]
    first = int(timeline.recordings.start_ns[0])

    def shown(times: Any) -> Any:
        shifted = times + offset_ns + np.rint((times - first) * drift).astype(np.int64)
        return np.where(times == NONE, NONE, shifted)

    tables = {}
    for name in ("recordings", "spans", "collectives", "steps", "annotations", "gradients", "telemetry"):
        table = getattr(timeline, name)
        columns = {each: getattr(table, each) for each in table.__struct_fields__ if each in TIMES}
        tables[name] = replace(table, **{each: shown(column) for each, column in columns.items()})
    return replace(run, ranks={**run.ranks, rank: replace(timeline, **tables)})


def by_hand(run: Run, *, in_turns: bool = False) -> dict[int, tuple[int, int, float]]:
    """Return (duration, waiting, blame) by rank, by loops over rows; blame with clocks set by the median end alone.

    Ranks `in_turns` share a clock, and transfer between the last begin and the first end.
    Each call is looked at twice: as recorded, and as if all ranks had begun to record together. Where waits differ by
    more than 50 us nobody is blamed.
    """
    calls: dict[tuple[Any, ...], dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, timeline in run.ranks.items():
        table = timeline.collectives
        seen: dict[Any, int] = defaultdict(int)
        for row in sorted(range(len(table.op)), key=lambda row: int(table.start_ns[row])):
            kind = (int(table.group[row]), timeline.names[table.op[row]], int(table.bytes[row]))
            named = (timeline.names[kind[0]] if kind[0] >= 0 else None, *kind[1:])
            calls[(*named, seen[named])][rank] = (int(table.start_ns[row]), int(table.end_ns[row]))
            seen[named] += 1
    ranks = sorted(run.ranks)
    hosts = {timeline.recorded.get("settings", {}).get("host", rank) for rank, timeline in run.ranks.items()}
    offset = {
        rank: median(each[rank][1] - each[ranks[0]][1] for each in calls.values())
        if len(hosts) > 1 and not in_turns
        else 0
        for rank in ranks
    }
    sums = {rank: [0, 0, 0.0] for rank in ranks}
    begun = {
        rank: min(
            [*own.steps.start_ns.tolist(), *([] if own.steps.start_ns.size else own.recordings.start_ns.tolist())]
        )
        - offset[rank]
        for rank, own in run.ranks.items()
    }
    delay = {rank: begun[rank] - min(begun.values()) for rank in ranks}
    for each in sorted(calls.values(), key=lambda each: max(start - offset[rank] for rank, (start, _) in each.items())):
        assert sorted(each) == ranks
        transfer = min(end - start for start, end in each.values())
        if in_turns:
            transfer = max(0, min(end for _, end in each.values()) - max(start for start, _ in each.values()))
        arrived = sorted((start - offset[rank], rank) for rank, (start, _) in each.items())
        for rank, (start, end) in each.items():
            sums[rank][0] += end - start
            sums[rank][1] += end - start - transfer
        together = {rank: start - delay[rank] for start, rank in arrived}
        apart = max((arrived[-1][0] - start) - (max(together.values()) - together[rank]) for start, rank in arrived)
        delay = dict.fromkeys(ranks, arrived[-1][0] - max(together.values()))
        if apart <= 50_000:
            sums[arrived[-1][1]][2] += arrived[-1][0] - arrived[-2][0]
    return {rank: (duration, wait, blame) for rank, (duration, wait, blame) in sums.items()}


@pytest.fixture(scope="module")
def megatron() -> Run:
    return read_inputs([shared_file("kineto/megatron_tp8")])


def test_eight_ranks_of_megatron_wait_for_two_but_for_the_call_before_all_recorded(megatron: Run) -> None:
    analysis = analyze(megatron)
    skew = {each.rank: each for each in analysis.skew.ranks}
    assert analysis.skew.matched == 84
    assert analysis.skew.unmatched == 0
    assert skew[0].wait_fraction == pytest.approx(0.792, abs=0.001)
    assert skew[4].wait_fraction == pytest.approx(0.899, abs=0.001)
    blame = {rank: each.blame_ns / MS for rank, each in skew.items()}
    assert blame[0] == pytest.approx(153.6, rel=0.01)
    assert max(each.start_of_recording_ns for each in skew.values()) == pytest.approx(17.4 * MS, rel=0.01)
    assert "1 of 84 matched calls came before the ranks" in analysis.skew.reasons[0]
    assert blame[6] == pytest.approx(135, rel=0.01)
    assert blame[2] == pytest.approx(22, rel=0.01)
    assert all(blame[rank] < 2 for rank in (1, 3, 4, 5, 7))
    assert all(abs(each) < 10_000 for each in analysis.skew.clock_offset_ns.values())
    large = next(row for row in analysis.collectives if row.bytes == 64 << 20)
    assert large.estimate == "matched"
    assert large.busbw_gbs == pytest.approx(195, abs=1)


@pytest.mark.parametrize(
    "source", ["kineto/megatron_tp8", "gloo_torch2.13", ROOT / "traces/baseline", ROOT / "traces/regressed"]
)
def test_matching_minimum_and_blame_agree_with_plain_loops(source: Any) -> None:
    run = overlapscope.load(shared_file(source) if isinstance(source, str) else source).run
    found = match_and_align(run)
    expected = by_hand(run, in_turns=source == "gloo_torch2.13")
    for rank, (duration, wait, blame) in expected.items():
        mine = found.waits[rank]
        assert mine.collective_ns == duration
        assert mine.wait_ns == wait
        slack = 2 * (found.clocks.residual_ns or 0) * found.matched
        assert mine.blame_ns == pytest.approx(blame, rel=0.02, abs=slack)


@pytest.mark.parametrize("drift", [0.0, 30e-6])
def test_another_clock_on_one_rank_changes_no_verdict(megatron: Run, drift: float) -> None:
    before = match_and_align(megatron)
    after = match_and_align(moved(megatron, 3, 200 * MS, drift))
    assert after.matched == before.matched
    assert after.clocks.offset_ns[3] - before.clocks.offset_ns[3] == pytest.approx(200 * MS, abs=40_000)
    for rank, was in before.waits.items():
        now = after.waits[rank]
        assert now.wait_ns == pytest.approx(was.wait_ns, rel=1e-4)
        assert now.blame_ns == pytest.approx(was.blame_ns, rel=0.01, abs=MS / 2)
    for was, now in zip(before.splits, after.splits, strict=True):
        np.testing.assert_allclose(now.transfer_ns, was.transfer_ns, rtol=1e-4)


def test_a_drift_over_minutes_is_taken_out() -> None:
    own = calls(*((second * 1000 * MS, 5 * MS) for second in range(300)))
    found = match_and_align(moved(job(dict.fromkeys(range(3), own), THREE), 1, 0, 30e-6))
    assert found.clocks.drift[1] - found.clocks.drift[0] == pytest.approx(30e-6, rel=0.01)
    assert found.clocks.residual_ns is not None
    assert found.clocks.residual_ns < 1000
    assert all(each.blame_ns < MS for each in found.waits.values())


def test_sampled_recordings_are_not_paired_by_order() -> None:
    analysis = analyze(read_inputs([shared_file("kineto/sampled_pair")]))
    assert analysis.skew.matched == 0
    assert analysis.skew.unmatched == 20
    assert "the recording is sampled" in analysis.skew.reasons[0]
    assert all(row.estimate == "upper_bound" for row in analysis.collectives)


PAIR = (Group(name="g", size=2, ranks=(0, 1)),)
THREE = (Group(name="g", size=3, ranks=(0, 1, 2)),)


def calls(*times: tuple[int, int], op: str = "all_reduce", **more: int) -> list[Call]:
    """Return calls of (start, duration)."""
    return [Call(op=op, start=start, length=length, **more) for start, length in times]


def test_the_last_to_come_waits_for_nobody_and_is_blamed_for_its_lead() -> None:
    both = {rank: calls((at, 30 * MS - at), (100 * MS, 10 * MS)) for rank, at in ((0, 0), (1, 20 * MS))}
    waits = match_and_align(job(both, PAIR)).waits
    assert (waits[0].wait_ns, waits[1].wait_ns) == (20 * MS, 0)
    assert (waits[0].blame_ns, waits[1].blame_ns) == (0, 20 * MS)
    assert (waits[0].times_last, waits[1].times_last) == (0, 1)


def test_numbers_pair_what_order_would_not() -> None:
    both = {rank: [Call(op="all_reduce", start=at * MS, length=10 * MS, seq=at // 10) for at in starts]
            for rank, starts in ((0, (0, 50)), (1, (50, 90)))}  # fmt: skip
    found = match_and_align(job(both, PAIR))
    assert found.matched == 1
    assert found.matching.unmatched == 2
    assert found.clocks.offset_ns == {0: 0.0, 1: 0.0}


def test_calls_of_one_number_and_different_size_are_not_paired() -> None:
    found = match_and_align(job({rank: calls((0, MS), seq=1, volume=1000 * (rank + 1)) for rank in (0, 1)}, PAIR))
    assert found.matched == 0
    assert "differ" in found.matching.reasons[0]


def test_a_member_without_recording_leaves_a_bound() -> None:
    analysis = analyze(job({0: calls((0, 30 * MS)), 1: calls((20 * MS, 10 * MS))}, THREE, world_size=3))
    assert analysis.skew.matched == 1
    assert [row.estimate for row in analysis.collectives] == ["upper_bound"]


def test_rooted_calls_are_not_split_and_one_rank_alone_has_nothing_to_match() -> None:
    rooted = {rank: calls((at, 30 * MS - at), op="broadcast") for rank, at in ((0, 0), (1, 20 * MS))}
    found = match_and_align(job(rooted, PAIR))
    assert (found.matched, found.not_split) == (0, 1)
    assert analyze(job({0: calls((0, MS))}, PAIR)).skew.ranks == []
