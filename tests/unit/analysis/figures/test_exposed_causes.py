"""One cause for every exposed nanosecond: against a raster that looks at each nanosecond, and constructed truth."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import (
    CAUSES,
    EXPOSED_WAIT,
    IDLE_CAUSES,
    WAITS_FOR_ANOTHER_RANK,
    WAITS_FOR_LATE_RANK,
)
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align, with_begins
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matching.match import match
from overlapscope.analysis.cross_rank.matching.point_to_point import match_pairs
from overlapscope.analysis.cross_rank.unseen_members import waited_for_unseen
from overlapscope.analysis.cross_rank.wait_transfer import split_waits
from overlapscope.analysis.exposure.core_waiting import core_waiting
from overlapscope.analysis.exposure.exposed_causes import causes_of, each_causes
from overlapscope.analysis.exposure.own_parts import own_parts
from overlapscope.analysis.graph.answers import UNSEEN_MEMBERS, ranks_of_graph
from overlapscope.analysis.graph.exposed import EXPOSED_CAUSES
from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.analysis.graph.own_causes import own_causes
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats.json import schema
from overlapscope.report.text.analysis import render
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, NONE, Telemetry
from overlapscope.timeline.intervals import union
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.conftest import ROOT, shared_file
from tests.support.cpu_runs.in_operations import MS, in_operations
from tests.support.rank_rows import rank_timeline

LANES, US = 4, 1_000


def rank_of(
    rank: int,
    calls: list[tuple[int, int, int | None]],
    computes: list[tuple[int, int, str]],
    *,
    op: str = "all_reduce",
    has_device: bool = False,
    dimension: str | None = None,
    elsewhere: Sequence[tuple[int, int]] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> RankTimeline:
    """Return a rank whose calls have (start, end, launch), its compute (start, end, name); one step holds them all.

    `elsewhere` it communicates in no known call; it `copies` on another stream.
    """
    own = [
        {
            "op": op, "group": "0", "seq": at, "dtype": "float32", "bytes": 1000, "group_size": 2, "step": 0,
            "start_ns": start, "end_ns": end, "launch_ns": launch, "dimension": dimension, "lane": at % LANES,
        }
        for at, (start, end, launch) in enumerate(calls)
    ]  # fmt: skip
    work = [
        {"start_ns": start, "end_ns": end, "launch_ns": max(0, start - 1), "step": 0, "name": name, "lane": LANES}
        for start, end, name in computes
    ]
    work += [
        {"start_ns": start, "end_ns": end, "kind": COMM, "name": op, "lane": LANES - 1} for start, end in elsewhere
    ]
    work += [
        {"start_ns": start, "end_ns": end, "kind": COPY, "name": "Memcpy HtoD", "lane": LANES} for start, end in copies
    ]
    whole = {"step": 0, "start_ns": 0, "end_ns": max([1, *(each["end_ns"] for each in (*own, *work))])}
    return rank_timeline(
        rank, calls=own, work=work, has_device=has_device, recordings=[whole], steps=[whole], lanes=({},) * (LANES + 1)
    )


def together(
    *ranks: RankTimeline,
    clocks: Clocks | None = None,
    members: tuple[int, ...] = (0, 1),
    groups: tuple[Group, ...] = (),
    hosts: Mapping[int, str] | None = None,
    began_ns: Mapping[int, float] | None = None,
) -> tuple[Run, CrossRank]:
    run = Run(
        world_size=len(members),
        ranks={each.rank: each for each in ranks},
        groups=(Group(name="0", size=len(members), ranks=members), *groups),
    )
    matching = match(run)
    known = clocks or Clocks(tied={0: 0, 1: 0}, offset_ns={0: 0.0, 1: 0.0})
    return run, CrossRank(
        matching=matching,
        clocks=known,
        splits=with_begins(run, split_waits(matching.blocks, known), hosts or {}),
        uneven=tuple(split_waits(matching.uneven, known)),
        pairs=match_pairs(run, known),
        began_ns=began_ns or {},
    )


def explained(*ranks: RankTimeline, **known: Any) -> tuple[Run, dict[int, dict[str, int]]]:
    """Return the run of these ranks, `known` as `together` takes it, and the causes of each rank."""
    run, cross_rank = together(*ranks, **known)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    found = causes_of(run, cross_rank, coverage)
    return run, {rank: each.within((0, 10**9)) for rank, each in found.items()}


def covers(pairs: list[tuple[int, int]], moment: int) -> bool:
    return any(start <= moment < end for start, end in pairs)


def by_raster(run: Run, baseline: int | None) -> dict[int, dict[str, int]]:
    """Look at every nanosecond of a two-rank CPU run whose calls are numbered and whose clocks agree."""
    found: dict[int, dict[str, int]] = {}
    calls, computes = {}, {}
    for rank, timeline in run.ranks.items():
        table, spans = timeline.collectives, timeline.spans
        calls[rank] = list(zip(table.start_ns.tolist(), table.end_ns.tolist(), table.launch_ns.tolist(), strict=True))
        names = [timeline.names[code] for code in spans.name.tolist()]
        rows = zip(spans.start_ns.tolist(), spans.end_ns.tolist(), names, spans.kind.tolist(), strict=True)
        computes[rank] = [(start, end, name) for start, end, name, kind in rows if kind == COMPUTE]
    for rank in run.ranks:
        mine, sums = calls[rank], dict.fromkeys(CAUSES, 0)
        busy = [each[:2] for each in computes[rank]]
        optimizes = any(name == "optimizer" for _, _, name in computes[rank])
        waited: dict[int, list[int]] = {}
        for moment in range(max((end for _, end, _ in mine), default=0)):
            flying = [row for row, (start, end, _) in enumerate(mine) if start <= moment < end]
            if not flying or covers(busy, moment):
                continue
            row = max(flying, key=lambda each: (mine[each][1], -mine[each][0], -each))
            start, end, _ = mine[row]
            transfer = min(calls[other][row][1] - calls[other][row][0] for other in calls)
            last = max(calls, key=lambda other: (calls[other][row][0], -other))
            at = end - transfer
            alone = end - max([at, *(until for begun, until, _ in mine if begun < start)])
            slow = at + (max(0, alone - baseline) if baseline is not None else 0)
            if moment < at:
                waited.setdefault(row, []).append(moment)
            elif moment < slow:
                sums["slow_transfer"] += 1
            elif not optimizes:
                sums["unknown"] += 1
            else:
                sums["dependency" if is_awaited(computes[rank], start, end) else "tail"] += 1
        for row, moments in waited.items():
            start, end, launch = mine[row]
            at = end - min(calls[other][row][1] - calls[other][row][0] for other in calls)
            last = max(calls, key=lambda other: (calls[other][row][0], -other))
            came = min(start, launch)
            ends = [until for begun, until, _ in mine if until <= came and not computes_on(busy, begun, until)]
            met = min(came, max(ends) if ends else min(begin for begin, *_ in (*mine, *computes[rank])))
            its, own = did(calls, computes, last, met, at), did(calls, computes, rank, met, came)
            longer = [max(theirs - ours, 0) for theirs, ours in zip(its, own, strict=True)]
            cuts = [sum(longer[:upto]) / max(sum(longer), 1) for upto in (1, 2)]
            for run_of in runs_of(moments):
                first, second = (round(run_of * cut) for cut in cuts)
                parts = (first, second - first, run_of - second)
                for cause, part in zip(("peer_compute", "peer_comm", "peer_host"), parts, strict=True):
                    sums[cause] += part
        found[rank] = {cause: total for cause, total in sums.items() if total}
    return found


def is_awaited(computes: list[tuple[int, int, str]], start: int, end: int) -> bool:
    """Return whether other compute than the optimizer's follows a call, and not behind the optimizer, or, where it
    comes after some of that, any: at its end, as all is within a millisecond, unless compute runs beside that."""
    optimizes = [begin for begin, _, name in computes if name == "optimizer" and begin >= end]
    until = max(optimizes, default=None)
    after = {name for begin, _, name in computes if begin >= end and (until is None or begin <= until)}
    before = max(((begin, row) for row, (begin, *_) in enumerate(computes) if begin < start), default=None)
    updated = before is not None and computes[before[1]][2] == "optimizer"
    return bool(after - {"optimizer"}) or (
        bool(after) and updated and not computes_on([each[:2] for each in computes], start, end)
    )


def computes_on(busy: list[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether a rank computes for more than half of a call, all of which is less than a millisecond."""
    return 2 * sum(covers(busy, moment) for moment in range(start, end)) > end - start


def did(calls: Any, computes: Any, rank: int, since: int, until: int) -> tuple[int, int, int]:
    """Count for how long a rank computed, communicated without computing, and did neither."""
    counts = [0, 0, 0]
    for moment in range(since, until):
        computing = covers([each[:2] for each in computes[rank]], moment)
        counts[0 if computing else 1 if covers([each[:2] for each in calls[rank]], moment) else 2] += 1
    return counts[0], counts[1], counts[2]


def runs_of(moments: list[int]) -> list[int]:
    """Return the lengths of runs of consecutive moments."""
    begins = [at for at, moment in enumerate(moments) if not at or moment != moments[at - 1] + 1]
    return [until - begin for begin, until in pairwise([*begins, len(moments)])]


pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=7)
work = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 20), st.sampled_from(["gemm", "optimizer"])), max_size=5)


@pytest.mark.slow
@given(data=st.data(), number=st.integers(1, 7))
def test_causes_are_those_of_every_single_nanosecond(data: st.DataObject, number: int) -> None:
    ranks = []
    for rank in range(2):
        calls = data.draw(st.lists(pieces.map(lambda each: each[0]), min_size=number, max_size=number))
        timed = [(start + lag, start + lag + length, start) for start, length, lag in calls]
        computes = [(start, start + length, name) for start, length, name in data.draw(work)]
        ranks.append(rank_of(rank, timed, computes))
    run, found = explained(*ranks)
    transfers = [
        min(int(t.collectives.end_ns[row] - t.collectives.start_ns[row]) for t in ranks) for row in range(number)
    ]
    baseline = round(float(np.quantile(transfers, 0.1))) if number >= 5 else None
    assert found == by_raster(run, baseline)


@pytest.mark.parametrize(
    "source",
    [
        "kineto/megatron_tp8",
        "kineto/sampled_pair",
        "kineto/a100_ddp_rank0of2_collective_args.json.gz",
        "kineto/a100_rank3of8_six_steps.json.gz",
        "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
        "kineto/tracelens_b200_eager.json.gz",
        "kineto/v100_rank1of2_2020_allreduces.json.gz",
        "gloo_torch2.13",
        ROOT / "traces/baseline",
        ROOT / "traces/regressed",
    ],
    ids=str,
)
def test_causes_add_up_to_exposed_time_in_every_window(source: Any) -> None:
    analysis = analyze(read_inputs([shared_file(source) if isinstance(source, str) else source]))
    windows = [each for rank in analysis.ranks for each in (rank.whole, *rank.steps) if each.window_ns is not None]
    assert windows
    for each in windows:
        assert sum(each.causes.values()) == each.exposed_comm_ns
        assert set(each.causes) <= set(CAUSES)
        assert sum(each.idle_causes.values()) == each.idle_ns
        assert set(each.idle_causes) <= set(IDLE_CAUSES)
        if each.hidden_wait_ns is not None and each.hidden_transfer_ns is not None:
            assert each.hidden_wait_ns + each.hidden_transfer_ns == each.overlapped_ns


@pytest.mark.slow
def test_megatrons_ranks_wait_for_hosts() -> None:
    analysis = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    for rank in analysis.ranks:
        assert max(rank.whole.causes, key=rank.whole.causes.__getitem__) == "peer_host"


CALL = (10, 40, 10)
LATE = (30, 40, 30)


def test_waiting_for_a_rank_that_communicates_elsewhere() -> None:
    _, found = explained(rank_of(0, [CALL], []), rank_of(1, [LATE], [], elsewhere=[(5, 30)]))
    assert found[0]["peer_comm"] == 20


def test_waiting_for_a_rank_that_copies_while_nothing_else_runs_there() -> None:
    computes = [(5, 9, "gemm")]
    _, found = explained(
        rank_of(0, [CALL], computes), rank_of(1, [LATE], computes, elsewhere=[(27, 30)], copies=[(6, 29)])
    )
    assert (found[0]["peer_copy"], found[0]["peer_comm"]) == (19, 1)  # 20 and 1 of 20 that it is late


def test_what_a_rank_copies_beside_a_call_makes_another_that_copies_as_long_no_later() -> None:
    """Both copy for 10 ns between their kernels, the one that waits beside communication; the other computes longer."""
    more = {"copies": [(20, 30)], "has_device": True}
    waits = rank_of(0, [(50, 100, 50)], [(0, 20, "gemm"), (30, 50, "gemm")], elsewhere=[(20, 30)], **more)  # type: ignore[arg-type]
    _, found = explained(waits, rank_of(1, [(90, 100, 90)], [(0, 20, "gemm"), (30, 90, "gemm")], **more))  # type: ignore[arg-type]
    assert {cause: ns for cause, ns in found[0].items() if cause.startswith("peer")} == {"peer_compute": 40}


def test_gaps_between_kernels_beside_a_wait_are_no_gaps_less_than_the_late_rank_has() -> None:
    """Both have a gap of 10 ns before their last kernel, which the waiting rank runs beside the call."""
    waits = rank_of(0, [(50, 100, 50)], [(0, 50, "gemm"), (60, 70, "gemm")], has_device=True)
    late = rank_of(1, [(90, 100, 90)], [(0, 50, "gemm"), (60, 90, "gemm")], has_device=True)
    _, found = explained(waits, late)
    assert {cause: ns for cause, ns in found[0].items() if cause.startswith("peer")} == {"peer_compute": 30}


def test_a_gap_between_kernels_is_no_wait_for_a_late_rank() -> None:
    early = rank_of(0, [(10, 40, 5)], [(0, 20, "gemm"), (24, 30, "gemm"), (46, 50, "gemm")], has_device=True)
    late = rank_of(1, [(35, 40, 35)], [(0, 34, "gemm"), (46, 50, "gemm")], has_device=True)
    run, cross_rank = together(early, late)
    gap = {"behind_compute": union((np.array([20]), np.array([24])))}
    parts = {0: own_parts(early, OwnCauses(idle={}, exposed=gap)), 1: own_parts(late, OwnCauses())}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    found = dict(each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run)))[0].within((0, 100))
    assert found["behind_compute"] == 4
    assert sum(ns for cause, ns in found.items() if cause.startswith("peer")) == 5, "from 30 to 35"


def test_a_rank_that_computes_as_long_but_began_later_is_late_by_its_host() -> None:
    met, late = (0, 10, 0), rank_of(1, [(0, 10, 0), (60, 70, 60)], [(40, 60, "gemm")])
    _, found = explained(rank_of(0, [met, (30, 70, 30)], [(10, 30, "gemm")]), late)
    assert found[0]["peer_host"] == 30
    assert "peer_compute" not in found[0], "it computes while it is waited for, but no longer than the other did"
    slower = rank_of(1, [met, (60, 70, 60)], [(20, 60, "gemm")])
    _, found = explained(rank_of(0, [met, (30, 70, 30)], [(10, 30, "gemm")]), slower)
    assert (found[0]["peer_compute"], found[0]["peer_host"]) == (20, 10)


def test_before_a_late_rank_was_recorded_it_did_not_idle_until_the_ranks_have_met() -> None:
    """It still computes at the end of the first call, as its recording began later: they meet in the second one."""
    waits = rank_of(0, [(20, 60, 20), (80, 110, 80), (120, 150, 120)], [(0, 60, "gemm"), (60, 80, "gemm")],
                    has_device=True)  # fmt: skip
    late = rank_of(1, [(50, 60, 50), (105, 110, 105), (145, 150, 145)], [(25, 60, "gemm"), (60, 105, "gemm")],
                   has_device=True)  # fmt: skip
    _, found = explained(waits, late)
    idled = found[0]["peer_host"]
    _, apart = explained(waits, late, began_ns={0: 0.0, 1: 25.0})
    assert apart[0]["start_of_recording"] == 25
    assert apart[0]["peer_host"] == idled - 25, "what came after they met is the late host's"
    assert "start_of_recording" not in explained(waits, late, began_ns={0: 0.0, 1: 0.0})[1][0]


def test_a_device_that_was_busy_before_its_first_recorded_span_did_not_idle_until_then() -> None:
    """Both ranks began to record at 0; the first span of the late one begins at 25 ms."""
    waits = rank_of(0, [(30 * MS, 60 * MS, 0)], [(0, 30 * MS, "gemm")], has_device=True)
    late = rank_of(1, [(55 * MS, 60 * MS, 0)], [(25 * MS, 55 * MS, "gemm")], has_device=True)
    _, at_once = explained(waits, late)
    assert at_once[0]["peer_host"] == 25 * MS, "its kernel began as it was launched"
    queued = replace(late, spans=replace(late.spans, launch_ns=np.zeros_like(late.spans.launch_ns)))
    _, behind = explained(waits, queued)
    assert behind[0]["start_of_recording"] == 25 * MS
    assert "peer_host" not in behind[0]


def test_a_pause_of_the_late_rank_that_the_other_spent_in_a_call_made_it_no_later() -> None:
    """Between their kernels the late rank idles for 10 ns, and the other one is in a call: neither computes then."""
    waits = rank_of(0, [(50, 100, 50)], [(0, 20, "gemm"), (30, 50, "gemm")], elsewhere=[(20, 30)], has_device=True)
    late = rank_of(1, [(90, 100, 90)], [(0, 20, "gemm"), (30, 90, "gemm")], has_device=True)
    _, found = explained(waits, late)
    assert {cause: ns for cause, ns in found[0].items() if cause.startswith("peer")} == {"peer_compute": 40}
    idles = rank_of(1, [(90, 100, 90)], [(0, 20, "gemm"), (60, 90, "gemm")], has_device=True)
    _, found = explained(waits, idles)
    # 10 ns more compute, and 40 of 30 + 10 idle ones, less the 10 in which the other was in a call.
    assert found[0]["peer_host"] == 30
    assert found[0]["peer_compute"] == 10


def test_ranks_meet_in_each_group_that_holds_both() -> None:
    # A call of the world just before: what a rank did longer before it made nobody wait in the call after it.
    def rank(number: int, second: int, computes: list[tuple[int, int, str]]) -> RankTimeline:
        timeline = rank_of(number, [(0, 10, 0), (40, 50, 40), (second, 90, second)], computes)
        return replace(
            timeline,
            names=(*timeline.names, "world"),
            collectives=replace(
                timeline.collectives,
                group=np.where(timeline.collectives.seq == 1, len(timeline.names), timeline.collectives.group),
            ),
        )

    _, found = explained(rank(0, 60, []), rank(1, 80, [(10, 40, "gemm"), (70, 80, "gemm")]))
    assert found[0]["peer_compute"] == 20
    assert "peer_host" not in found[0]
    own = Group(name="world", size=2, ranks=(0, 1))
    _, found = explained(rank(0, 60, []), rank(1, 80, [(10, 40, "gemm"), (70, 80, "gemm")]), groups=(own,))
    assert (found[0]["peer_compute"], found[0]["peer_host"]) == (10, 10)


def test_what_was_called_before_the_last_meeting_was_not_late_since_then() -> None:
    """Rank 1 loads data until 40, then computes for 10 to each of two calls, which rank 0 made at 10 and 20."""
    first = rank_of(0, [(10, 55, 10), (55, 65, 20)], [(0, 20, "gemm")])
    late = rank_of(1, [(50, 55, 50), (60, 65, 60)], [(40, 60, "gemm")])
    _, found = explained(first, late)
    assert (found[0]["peer_host"], found[0].get("peer_compute", 0)) == (35, 0)


def test_another_clock_of_the_last_rank_is_taken_into_account() -> None:
    late = rank_of(1, [(1030, 1040, 1030)], [(1000, 1030, "gemm")])
    _, found = explained(rank_of(0, [CALL], []), late, clocks=Clocks(tied={0: 0, 1: 0}, offset_ns={0: 0.0, 1: 1000.0}))
    assert found[0]["peer_compute"] == 20


ONE_HOST = {0: "node", 1: "node"}
WAITS = [(10, 60, 10)]
"""Rank 0 begins to wait at 10, ..."""
CAME = [(30, 50, 30)]
"""... the last rank at 30, where the call takes 20 and ends 10 earlier."""


@pytest.mark.parametrize(
    ("hosts", "has_device", "late_end"),
    [
        pytest.param(ONE_HOST, False, 10, id="one clock"),
        pytest.param({}, False, 0, id="clocks that are only aligned"),
        pytest.param({0: "node", 1: "other"}, False, 0, id="two hosts"),
        pytest.param({0: "node"}, False, 0, id="one of two known"),
        pytest.param(ONE_HOST, True, 0, id="times of devices"),
    ],
)
def test_nobody_is_waited_for_after_the_last_member_has_begun(
    hosts: dict[int, str], has_device: bool, late_end: int
) -> None:
    """The wait of rank 0 is 50 - 20 = 30, of which 20 until the last rank came."""
    first, late = (
        rank_of(rank, calls, [(0, came, "gemm")], has_device=has_device)
        for rank, (calls, came) in enumerate([(WAITS, 10), (CAME, 30)])
    )
    _, found = explained(first, late, hosts=hosts)
    assert found[0].get("late_end", 0) == late_end
    assert sum(found[0].get(cause, 0) for cause in EXPOSED_WAIT) == 30, "the wait is that of the definition"
    assert sum(found[0].values()) == 50
    assert sum(found[0].get(cause, 0) for cause in WAITS_FOR_LATE_RANK) == 30 - late_end
    if late_end:
        assert found[0]["peer_compute"] == 20, "what it computed longer; it communicated no longer until it came"


def test_the_rank_that_came_last_waited_for_nobody_though_its_call_ended_later() -> None:
    _, found = explained(rank_of(0, [(10, 30, 10)], []), rank_of(1, [(12, 40, 12)], []), hosts=ONE_HOST)
    assert found[1]["late_end"] == 8
    assert not any(found[1].get(cause) for cause in WAITS_FOR_LATE_RANK)


def test_ranks_that_capture_recorded_on_one_host_share_its_clock() -> None:
    calls = [(at, at + 20, at) for at in range(0, 1000, 100)]
    ranks = {rank: rank_of(rank, calls, []) for rank in (0, 1)}
    run = Run(world_size=2, ranks=ranks, groups=(Group(name="0", size=2, ranks=(0, 1)),))
    assert [each.began_ns for each in match_and_align(run).splits] == [None]
    of_host = {rank: replace(each, recorded={"settings": {"host": "node"}}) for rank, each in ranks.items()}
    (split,) = match_and_align(replace(run, ranks=of_host)).splits
    assert split.began_ns is not None
    assert split.began_ns.tolist() == [at for at, *_ in calls]


def waiting_for_cores(timeline: RankTimeline, *readings: tuple[int, ...]) -> RankTimeline:
    """Return the rank with readings (time, ns[, ns]) of how long its thread had waited for a core, and run on one."""
    names = NameTable(timeline.names)
    rows = [
        {"name": name, "time_ns": at, "step": 0, "value": float(value)}
        for at, *values in readings
        for name, value in zip(("thread_queue_ns", "thread_cpu_ns"), values, strict=False)
    ]
    return replace(
        timeline, telemetry=fact_table(Telemetry, rows, names), names=tuple(names.to_list()),
        recorded={"settings": {"environment": {"OMP_NUM_THREADS": "1"}}},
    )  # fmt: skip


FIRST, LAST = [(0, 10, "gemm")], [(0, 30, "gemm")]


@pytest.mark.parametrize(
    ("last", "waits", "causes"),
    [
        pytest.param(LAST, [(0, 0), (30, 20)], {"peer_core": 20}, id="all that it seemed to compute longer"),
        pytest.param(LAST, [(0, 0), (30, 5)], {"peer_compute": 15, "peer_core": 5}, id="a part of it"),
        pytest.param(LAST, [(0, 0), (20, 0), (30, 5)], {"peer_compute": 15, "peer_core": 5}, id="at its end"),
        pytest.param(LAST, [(0, 0), (30, 0), (40, 10)], {"peer_compute": 20}, id="while it communicated"),
        pytest.param(LAST, [(0, 90), (15, 0), (30, 5)], {"peer_compute": 15, "peer_core": 5}, id="two threads"),
        pytest.param(LAST, [(0, 0), (15, 0), (30, 900)], {"peer_compute": 20}, id="two threads, the second far higher"),
        pytest.param([(0, 10, "gemm")], [(0, 0), (10, 0), (30, 20)], {"peer_core": 20}, id="while it seemed idle"),
        pytest.param(
            [(0, 10, "gemm")], [(0, 0), (10, 0), (30, 5)], {"peer_core": 5, "peer_host": 15}, id="some of its idle time"
        ),
        pytest.param([(0, 10, "gemm")], [(0, 0), (30, 30)], {"peer_compute": 0, "peer_core": 20}, id="all the time"),
        pytest.param(LAST, [(30, 20)], {"peer_compute": 20}, id="one reading tells nothing"),
        pytest.param(LAST, [(0, 0, 0), (30, 0, 10)], {"peer_host": 20}, id="it slept while it seemed to compute"),
        pytest.param(
            LAST, [(0, 0, 0), (30, 5, 15)], {"peer_compute": 5, "peer_core": 5, "peer_host": 10}, id="some of each"
        ),
        pytest.param(LAST, [(0, 0, 0), (30, 0, 90)], {"peer_compute": 20}, id="it cannot have run for longer"),
        pytest.param(LAST, [(0, 0, 50), (30, 0, 0)], {"peer_compute": 20}, id="another thread had run for longer"),
        pytest.param(LAST, [(0, 0, 0), (30, 0, 30), (60, 0, 30)], {"peer_compute": 20}, id="asleep in the call"),
        # It lost its core between the clock and the account: 10 of waiting stand in the reading at 15 already.
        pytest.param(
            LAST, [(0, 0, 0), (15, 10, 15), (30, 10, 20)], {"peer_compute": 10, "peer_core": 10}, id="booked before"
        ),
    ],
)
def test_what_the_late_rank_waited_for_a_core_or_slept_it_did_not_compute(
    last: list[tuple[int, int, str]], waits: list[tuple[int, ...]], causes: dict[str, int]
) -> None:
    late = waiting_for_cores(rank_of(1, [LATE], last), *waits)
    early = waiting_for_cores(rank_of(0, [CALL], FIRST), (0, 0, 0), (10, 0, 10))
    _, found = explained(early, late)
    of_late_rank = {cause: found[0].get(cause, 0) for cause in WAITS_FOR_LATE_RANK}
    assert of_late_rank == dict.fromkeys(WAITS_FOR_LATE_RANK, 0) | causes


@pytest.mark.parametrize("has_device", [False, True])
def test_ranks_meet_in_calls_that_they_wait_for_not_in_those_beside_backward(has_device: bool) -> None:
    """Rank 1 loads data for 30 ns, and both compute as long; the first call ends beside the compute of both."""
    first = rank_of(0, [(20, 40, 20), (60, 100, 60)], [(0, 60, "gemm")], has_device=has_device)
    late = rank_of(1, [(50, 55, 50), (90, 100, 90)], [(30, 90, "gemm")], has_device=has_device)
    _, found = explained(first, late)
    assert {cause: ns for cause, ns in found[0].items() if cause.startswith("peer")} == {"peer_host": 30}


def test_a_device_that_still_computes_at_the_end_of_a_call_has_not_met_those_that_were_done() -> None:
    """Rank 1 loads data for 30 us, and both compute for 50; the first call ends when rank 1 has done half of it."""
    first = rank_of(0, in_us([(25, 60, 25), (60, 90, 60)]), in_us([(0, 50, "gemm")]), has_device=True)
    late = rank_of(1, in_us([(55, 60, 55), (80, 90, 80)]), in_us([(30, 80, "gemm")]), has_device=True)
    _, found = explained(first, late)
    assert {cause: ns for cause, ns in found[0].items() if cause.startswith("peer")} == {"peer_host": 25_000}


def in_us(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return rows with their times in nanoseconds."""
    return [tuple(each * 1000 if isinstance(each, int) else each for each in row) for row in rows]


@pytest.mark.parametrize(
    ("computes", "cause"),
    [
        ((20, 50), "peer_host"),  # as long as the late rank, beside its wait
        ((50, 60), "peer_compute"),  # less
    ],
)
def test_what_a_device_computes_beside_its_wait_the_late_rank_did_not_compute_longer(
    computes: tuple[int, int], cause: str
) -> None:
    """They meet until 10; the prefetched call of rank 0 waits for rank 1, which computes for 30 ns and comes at 60."""
    idles = (10, 30) if cause == "peer_host" else (10, 10)
    first = rank_of(0, [(0, 10, 0), (10, 70, 10)], [(*computes, "gemm")], has_device=True)
    late = rank_of(1, [(0, 10, 0), (60, 70, 60)], [(idles[1], 60, "gemm")], has_device=True)
    _, found = explained(first, late)
    exposed = 50 - (computes[1] - computes[0])
    assert {each: ns for each, ns in found[0].items() if each.startswith("peer")} == {cause: exposed}


def test_hosts_do_not_meet_in_messages_that_others_of_their_group_exchange() -> None:
    """Rank 1 idles until 60; rank 0 has computed until 30, before a message to somebody else that ended at 32."""

    def with_message(timeline: RankTimeline) -> RankTimeline:
        op = timeline.collectives.op.copy()
        op[0] = len(timeline.names)
        calls = replace(timeline.collectives, op=op)
        return replace(timeline, names=(*timeline.names, "send"), collectives=calls)

    first = with_message(rank_of(0, [(30, 32, 30), (40, 100, 40)], [(0, 30, "gemm")]))
    late = with_message(rank_of(1, [(90, 92, 90), (95, 100, 95)], [(60, 90, "gemm")]))
    _, found = explained(first, late)
    assert "peer_compute" not in found[0]


@pytest.mark.parametrize("threads", ["8", None])
def test_a_thread_that_waits_for_others_of_its_operation_does_not_sleep(threads: str | None) -> None:
    early, late = (
        waiting_for_cores(rank_of(rank, [call], did), (0, 0, 0), (until, 0, 10))
        for rank, call, did, until in ((0, CALL, FIRST, 10), (1, LATE, LAST, 30))
    )
    many = {"settings": {"environment": {} if threads is None else {"OMP_NUM_THREADS": threads}}}
    assert explained(early, replace(late, recorded=many))[1][0]["peer_compute"] == 20


def test_what_both_ranks_waited_for_a_core_made_none_late() -> None:
    early = waiting_for_cores(rank_of(0, [CALL], FIRST), (0, 0), (10, 8))
    late = waiting_for_cores(rank_of(1, [LATE], LAST), (0, 0), (30, 8))
    assert explained(early, late)[1][0]["peer_compute"] == 20


@pytest.mark.parametrize("known", [0, 1])
def test_waiting_for_a_core_is_told_only_where_the_account_of_both_ranks_is_known(known: int) -> None:
    ranks = [rank_of(0, [CALL], FIRST), rank_of(1, [LATE], LAST)]
    ranks[known] = waiting_for_cores(ranks[known], (0, 0), (30, 30))
    assert explained(*ranks)[1][0]["peer_compute"] == 20


@pytest.mark.parametrize(
    ("last_ms", "still"),
    [
        pytest.param((4, 20, 4), 16, id="it stood still in one operation of three"),
        pytest.param((12, 12, 12), 0, id="a larger batch"),
        pytest.param((4, 20, 4, 4), 0, id="it made other calls: nothing to compare with"),
    ],
)
def test_a_host_that_stands_still_inside_operations_computes_longer_and_its_path_says_for_how_long_it_did_not(
    last_ms: tuple[int, ...], still: int
) -> None:
    """Without the system's account: a trace does not show that there was no more to do in the operation."""
    usual = [(4, 4, 4)] * 3
    steps = {0: [*usual, (4, 4, 4)], 1: [*usual, last_ms]}
    latest = [max(sum(steps[rank][at]) for rank in steps) for at in range(4)]
    ranks = [in_operations(rank, taken, latest) for rank, taken in steps.items()]
    run, found = explained(*ranks)
    late = {cause: round(found[0].get(cause, 0) / MS) for cause in WAITS_FOR_LATE_RANK}
    assert late == dict.fromkeys(WAITS_FOR_LATE_RANK, 0) | {"peer_compute": sum(last_ms) - 12}
    path = analyze(run).critical_path
    assert round(path.steps[-1].stood_still_ns / MS) == still
    assert path.steps[0].stood_still_ns == 0


@pytest.mark.parametrize(("has_device", "causes"), [(False, (5, 15)), (True, (20, 0))])
def test_while_the_late_rank_collected_garbage_its_host_did_not_compute_but_its_device(
    causes: tuple[int, int], *, has_device: bool
) -> None:
    early, late = rank_of(0, [CALL], FIRST, has_device=has_device), rank_of(1, [LATE], LAST, has_device=has_device)
    names = NameTable(late.names)
    note = {"name": "gc_pause_ns", "time_ns": 28, "step": 0, "value": 15.0}
    late = replace(late, telemetry=fact_table(Telemetry, [note], names), names=tuple(names.to_list()))
    found = explained(early, late)[1][0]
    assert (found["peer_compute"], found.get("peer_host", 0)) == causes


@pytest.mark.parametrize(
    ("exposed", "slept"),
    [
        pytest.param([], 20, id="nothing communicates"),
        pytest.param([(0, 30)], 0, id="beside communication it may wait"),
        pytest.param([(0, 15)], 5, id="beside some"),
    ],
)
def test_sleep_beside_communication_may_be_waiting(exposed: list[tuple[int, int]], slept: int) -> None:
    late = waiting_for_cores(rank_of(1, [LATE], LAST, elsewhere=exposed), (0, 0, 0), (30, 0, 10))
    early = waiting_for_cores(rank_of(0, [CALL], FIRST), (0, 0, 0), (10, 0, 10))
    assert explained(early, late)[1][0].get("peer_host", 0) == slept


def test_a_counter_that_jumps_hides_no_later_sleep() -> None:
    """At 100 ms it shows another thread's waiting, of 300 ms; 50 ms of it at most may have been booked before."""
    late = waiting_for_cores(
        rank_of(1, [], [(0, 400 * MS, "gemm")]),
        (0, 0, 0), (100 * MS, 300 * MS, 100 * MS), (400 * MS, 300 * MS, 200 * MS),
    )  # fmt: skip
    found = core_waiting(late, Coverage.of(late.spans), None)
    assert found is not None
    assert found.sleeping.within(0, 400 * MS) == (300 - 100 - 50) * MS


def test_calls_issued_at_once_are_not_slow_while_they_wait_for_each_other() -> None:
    """Each takes 10 after the one before; the last takes 25, 10 more than the baseline (15)."""
    queue = [(at, 10 * (at + 1), at) for at in range(6)]
    work = [(200, 210, "optimizer")]
    _, even = explained(*(rank_of(rank, queue, work) for rank in (0, 1)))
    assert even[0] == {"tail": 60}
    _, slow = explained(*(rank_of(rank, [*queue, (6, 85, 6)], work) for rank in (0, 1)))
    assert slow[0] == {"tail": 75, "slow_transfer": 10}


def test_a_slow_call_is_slow_whatever_is_in_flight_in_no_call_of_its_group() -> None:
    calls = [*((100 + 20 * at, 110 + 20 * at, 100 + 20 * at) for at in range(5)), (200, 300, 200)]
    _, found = explained(*(rank_of(rank, calls, [(400, 410, "optimizer")], elsewhere=[(190, 290)]) for rank in (0, 1)))
    assert found[0]["slow_transfer"] == 90


def test_sends_of_a_pipeline_are_the_pipelines() -> None:
    _, found = explained(rank_of(0, [CALL], [], op="send", dimension="pipeline"))
    assert found[0] == {"pipeline": 30}


@pytest.mark.parametrize(
    ("messages_until", "causes"),
    [(50, {"pipeline": 40}), (30, {"peer_compute": 20, "pipeline": 20}), (10, {"peer_compute": 40})],
    ids=["on time", "slow, too", "slow"],
)
def test_the_wait_for_a_stage_that_waited_in_messages_is_the_pipelines(
    messages_until: int, causes: dict[str, int]
) -> None:
    """As in a drain: the first stage receives its last gradient late, and comes to the collective after the others;
    what it computes longer is its own."""
    ahead = stage(0, [(0, 20)], (20, 70))
    drains = stage(1, [(0, 10), (messages_until, 60)], (60, 70), (10, messages_until))
    _, found = explained(ahead, drains)
    assert {cause: ns for cause, ns in found[0].items() if cause == "pipeline" or cause.startswith("peer")} == causes


def stage(
    rank: int, computes: list[tuple[int, int]], reduces: tuple[int, int], receives: tuple[int, int] | None = None
) -> RankTimeline:
    """Return a stage of a pipeline that receives a gradient, computes, and reduces a norm over all ranks; (start, end)
    of each."""
    kinds = [("all_reduce", "0", None, reduces), *([("recv", "1", "pipeline", receives)] if receives else [])]
    calls = [
        {"op": op, "group": group, "dimension": of, "seq": 0, "bytes": 1000, "start_ns": start, "end_ns": end,
         "launch_ns": start, "step": 0}
        for op, group, of, (start, end) in kinds if end > start
    ]  # fmt: skip
    work = [{"start_ns": start, "end_ns": end, "name": "gemm", "step": 0} for start, end in computes]
    return rank_timeline(rank, calls=calls, work=work)


BUSY = [(0, 30, "gemm")]


def uneven(timeline: RankTimeline) -> RankTimeline:
    return replace(timeline, collectives=replace(timeline.collectives, received_bytes=np.array([400 + timeline.rank])))


def test_a_receive_waits_for_its_sender_and_what_comes_after_is_not_known() -> None:
    _, found = explained(rank_of(0, [CALL], [], op="recv"), rank_of(1, [LATE], BUSY, op="send"))
    assert found == {0: {"peer_compute": 20, "unknown": 10}, 1: {"unknown": 10}}


def test_a_send_waits_for_its_receiver_but_not_when_it_had_ended_before() -> None:
    late = rank_of(1, [LATE], BUSY, op="recv")
    assert explained(rank_of(0, [CALL], [], op="send"), late)[1][0] == {"peer_compute": 20, "unknown": 10}
    assert explained(rank_of(0, [(10, 25, 10)], [], op="send"), late)[1][0] == {"unknown": 15}


def test_an_uneven_exchange_waits_for_the_last_member_of_all_that_were_recorded() -> None:
    early, late = (
        uneven(each) for each in (rank_of(0, [CALL], [], op="all_to_all"), rank_of(1, [LATE], BUSY, op="all_to_all"))
    )
    expected = {0: {"peer_compute": 20, "unknown": 10}, 1: {"unknown": 10}}
    assert explained(early, late)[1] == expected
    assert explained(early, late, members=(0, 1, 2))[1] == expected


def test_the_clocks_residual_is_taken_off_what_only_they_tell() -> None:
    clocks = Clocks(tied={0: 0, 1: 0}, offset_ns={0: 0.0, 1: 0.0}, residual_ns=4.0)
    _, found = explained(rank_of(0, [CALL], [], op="recv"), rank_of(1, [LATE], BUSY, op="send"), clocks=clocks)
    assert found[0] == {"peer_compute": 16, "unknown": 14}


def test_without_clocks_a_pair_tells_no_waiting() -> None:
    _, found = explained(rank_of(0, [CALL], [], op="recv"), rank_of(1, [LATE], BUSY, op="send"), clocks=Clocks())
    assert found[0] == {"unknown": 30}


def test_of_a_partly_recorded_group_the_wait_for_the_last_recorded_member_is_certain() -> None:
    after = [(60, 70, "gemm"), (80, 90, "optimizer")]
    early, late = rank_of(0, [CALL], after), rank_of(1, [LATE], [*BUSY, *after])
    assert explained(early, late)[1] == {0: {"peer_compute": 20, "dependency": 10}, 1: {"dependency": 10}}
    for members, unsplit in (((0, 1), {}), ((0, 1, 2), {"peer_compute": 20, "unknown": 10})):
        run, cross_rank = together(early, late, members=members)
        found = causes_of(run, cross_rank, {rank: Coverage.of(its.spans) for rank, its in run.ranks.items()})
        assert found[0].unsplit_ns == unsplit
    assert explained(early, late, members=(0, 1, 2))[1] == {0: {"peer_compute": 20, "unknown": 10}, 1: {"unknown": 10}}


@pytest.mark.slow
def test_one_missing_rank_of_eight_hides_only_the_waits_for_it() -> None:
    run = read_inputs([shared_file("kineto/megatron_tp8")])
    without = replace(run, ranks={rank: run.ranks[rank] for rank in range(7)})  # rank 7 is never to blame
    whole, part = analyze(run), analyze(without)
    for before, after in zip(whole.ranks[:7], part.ranks, strict=True):
        for cause in ("peer_host", "peer_compute", "peer_comm"):
            mine = before.whole.causes.get(cause, 0)
            assert after.whole.causes.get(cause, 0) == pytest.approx(mine, rel=0.02, abs=200_000)
    assert {each.blame_estimate for each in whole.skew.ranks} == {"matched"}
    assert {each.blame_estimate for each in part.skew.ranks} == {"upper_bound"}
    for few, all_of_them in zip(part.skew.ranks, whole.skew.ranks[:7], strict=True):
        assert few.blame_ns >= all_of_them.blame_ns - 10_000  # less than what the clocks may differ by


BY_GRAPH = {"late_launch": [(10, 12)], "queued": [(12, 15)], "dependency": [(15, 32)], "host_not_ready": [(32, 40)]}


@pytest.mark.parametrize(
    ("op", "dimension", "computes", "causes"),
    [
        pytest.param("all_reduce", None, [(0, 9, "gemm"), (46, 50, "gemm")],
                     {"late_launch": 2, "queued": 3, "dependency": 17, "host_not_ready": 8}, id="as the graph says"),
        pytest.param("all_reduce", None, [(0, 9, "gemm"), (46, 50, "optimizer")],
                     {"late_launch": 2, "queued": 3, "tail": 17, "host_not_ready": 8}, id="only the optimizer follows"),
        pytest.param("send", "pipeline", [(0, 9, "gemm")],
                     {"late_launch": 2, "queued": 3, "pipeline": 25}, id="between stages of a pipeline"),
    ],
)  # fmt: skip
def test_what_is_left_of_a_call_goes_by_the_graph(
    op: str, dimension: str | None, computes: list[tuple[int, int, str]], causes: dict[str, int]
) -> None:
    rank = rank_of(0, [(10, 40, 5)], computes, op=op, dimension=dimension, has_device=True)
    run, cross_rank = Run(world_size=1, ranks={0: rank}), CrossRank()
    pieces = {
        name: union((np.array([a for a, _ in own]), np.array([b for _, b in own]))) for name, own in BY_GRAPH.items()
    }
    parts = {0: own_parts(rank, OwnCauses(idle={}, exposed=pieces))}
    coverage = {0: Coverage.of(rank.spans)}
    ((_, found),) = each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run))
    assert found.within((0, 100)) == causes


@pytest.mark.slow
def test_waiting_and_slow_transfers_come_before_what_the_graph_says() -> None:
    analysis = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    by_graph = own_causes(read_inputs([shared_file("kineto/megatron_tp8")]).ranks[0]).exposed
    assert by_graph
    causes = analysis.ranks[0].whole.causes
    assert causes["peer_host"] > causes["dependency"] > 0
    for cause in ("host_not_ready", "dependency"):
        assert causes[cause] <= int((by_graph[cause].ends - by_graph[cause].starts).sum())


def test_the_table_of_causes_names_and_waiting_are_those_of_docs_and_schema() -> None:
    page = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
    fields = schema("analysis")["$defs"]["StepBreakdown"]["properties"]
    for field, table in (("causes", CAUSES), ("idle_causes", IDLE_CAUSES)):
        rows = "".join(f"| `{name}` | {cause.label} | {cause.description} |\n" for name, cause in table.items())
        assert f"| cause | shown as | is |\n|---|---|---|\n{rows}\n" in page
        assert fields[field]["propertyNames"]["enum"] == list(table)
    assert set(EXPOSED_CAUSES) <= set(CAUSES)
    assert set(WAITS_FOR_ANOTHER_RANK) - set(WAITS_FOR_LATE_RANK) == {
        "pipeline", "start_of_recording", "late_end", "peer_unrecorded",
    }  # fmt: skip


def waited_for_others(rank: int, calls: list[tuple[int, int, int]]) -> RankTimeline:
    """Return a rank whose calls have (start, end, how long their own tasks waited), in us; compute follows them."""
    own = [
        {"op": "all_reduce", "group": "0", "seq": at, "bytes": 1000, "start_ns": start * US, "end_ns": end * US,
         "waited_ns": waited * US}
        for at, (start, end, waited) in enumerate(calls)
    ]  # fmt: skip
    last = calls[-1][1] * US
    return rank_timeline(rank, calls=own, work=[{"start_ns": last, "end_ns": last + US, "name": "k"}])


@pytest.mark.parametrize(
    ("waited_of_1", "unseen_us"),
    [(600, {0: 700, 1: 600}), (20, {0: 0, 1: 0})],  # where the recorded one that came last waited, another came last
)
def test_a_call_whose_recorded_members_all_waited_waited_for_one_that_was_not_recorded(
    waited_of_1: int, unseen_us: dict[int, int]
) -> None:
    ranks = {
        0: waited_for_others(0, [(0, 5_000, 4_900), (6_000, 7_000, 700)]),
        1: waited_for_others(1, [(100, 5_000, 4_800), (6_100, 7_000, waited_of_1)]),
    }
    run = Run(world_size=None, ranks=ranks)
    cross_rank = match_and_align(run)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in ranks.items()}
    found = {rank: each.within((0, 10**9)) for rank, each in causes_of(run, cross_rank, coverage).items()}
    assert {rank: causes.get("peer_unrecorded", 0) for rank, causes in found.items()} == {
        rank: us * US for rank, us in unseen_us.items()
    }
    # Why members came apart to the first call was before the recording.
    assert [causes["start_of_recording"] for causes in found.values()] == [4_900 * US, 4_800 * US]
    assert cross_rank.waited_for_unseen_ns == {0: (4_900 + unseen_us[0]) * US, 1: (4_800 + unseen_us[1]) * US}
    assert ranks_of_graph(run, cross_rank) == ([], UNSEEN_MEMBERS)
    analysis = analyze(run)
    assert analysis.throughput is not None
    assert (analysis.throughput.devices, analysis.throughput.devices_at_least) == (3, True)
    shown = " ".join(render(analysis, all_rows=False).split())
    assert "recorded ranks, whole recording" in shown
    assert "of collective time" not in shown
    assert f"rank 0 at least {(4_900 + unseen_us[0]) / 1000:.3f} ms, rank 1 at least" in shown
    assert "2 collectives matched among the recorded ranks; other members of their groups are missing." in shown


@pytest.mark.parametrize(
    ("start_us", "step_us", "cause"),
    [
        pytest.param(6_000, None, "peer_unrecorded", id="after a call of another group"),
        pytest.param(4_990, None, "start_of_recording", id="before that has ended"),
        pytest.param(6_000, 6_500, "start_of_recording", id="in the first step"),
        pytest.param(6_000, 5_500, "peer_unrecorded", id="in a later step"),
    ],
)
def test_a_group_may_call_for_the_first_time_long_after_the_start_of_a_recording(
    start_us: int, step_us: int | None, cause: str
) -> None:
    """Both ranks wait for others for 500 us in the second call, the first one of its group."""
    ranks = {}
    for rank in (0, 1):
        steps = [] if step_us is None else [
            {"step": at, "start_ns": at * step_us * US, "end_ns": (at + 1) * step_us * US} for at in (0, 1)
        ]  # fmt: skip
        calls = [
            {"op": "all_reduce", "group": group, "seq": 0, "bytes": 1000, "start_ns": start * US, "end_ns": end * US,
             "waited_ns": waited * US}
            for group, start, end, waited in (("0", 0, 5_000, 100), ("1", start_us, 7_000, 500))
        ]  # fmt: skip
        work = [{"start_ns": 7_000 * US, "end_ns": 7_001 * US, "name": "k"}]
        ranks[rank] = rank_timeline(rank, calls=calls, work=work, steps=steps)
    run = Run(world_size=None, ranks=ranks)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in ranks.items()}
    for each in causes_of(run, match_and_align(run), coverage).values():
        assert each.within((5_000 * US, 7_000 * US)).get(cause, 0) >= 490 * US


def test_where_a_group_is_known_to_be_recorded_nobody_else_is_waited_for() -> None:
    ranks = [waited_for_others(rank, [(0, 5_000, 4_900), (6_000, 7_000, 700)]) for rank in (0, 1)]
    run, cross_rank = together(*ranks)
    assert waited_for_unseen(run, cross_rank.splits) == {}
    nothing = np.full(2, NONE)
    without = [replace(each, collectives=replace(each.collectives, waited_ns=nothing)) for each in ranks]
    unknown = Run(world_size=None, ranks=dict(enumerate(without)))
    assert match_and_align(unknown).waited_for_unseen_ns == {}
    assert "whether their groups have other members is not recorded" in render(analyze(unknown), all_rows=False)
