"""Hosts that take turns on cores wait for one where they pause; those outside of turns stand still."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from overlapscope.analysis.all_findings import _still_ns
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.core_waiting import in_turn
from overlapscope.analysis.late_ranks import turns_on_cores, waiting_for_turns
from overlapscope.analysis.per_rank.host_runs import HostRuns
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.core_turns import Turns
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.run import Group, Run
from tests.support.cpu_runs.in_operations import MS, STEP_NS, in_operations
from tests.support.cpu_runs.scheduled_hosts import Pairs, intervals, operations_on_cores, pairs_of
from tests.support.rank_rows import rank_timeline

USUAL = (4, 4, 4)
STEPS = 6


def job(*longer_ms: Mapping[int, int]) -> Run:
    """Return ranks whose second of three operations takes longer by so much in some steps, before a call."""
    taken = [[(4, 4 + own.get(step, 0), 4) for step in range(STEPS)] for own in longer_ms]
    latest = [max(sum(own[step]) for own in taken) for step in range(STEPS)]
    ranks = {rank: in_operations(rank, own, latest) for rank, own in enumerate(taken)}
    return Run(world_size=len(ranks), ranks=ranks, groups=(Group(name="0", size=len(ranks), ranks=tuple(ranks)),))


FIRST, LAST = {3: 20}, {5: 20}
"""Rank 1 pauses for 20 ms in one step, rank 2 in another one, each from 8 ms after its begin on."""


def pause(step: int, ms: int = 20) -> tuple[int, int]:
    return step * STEP_NS + 8 * MS, step * STEP_NS + (8 + ms) * MS


def turns(waits: Mapping[int, Pairs]) -> Turns:
    return Turns(
        ranks=tuple(waits), cores=1, share=1.0, waited_share=0.1, by_chance_ns=1e9, at_once_ns=0,
        waits={rank: intervals(pairs) for rank, pairs in waits.items()},
    )  # fmt: skip


def analyzed(monkeypatch: pytest.MonkeyPatch, run: Run, *known: Turns) -> Analysis:
    monkeypatch.setattr("overlapscope.analysis.late_ranks.hosts_in_turns", lambda *_: list(known))
    return analyze(run)


def late_ms(analysis: Analysis, step: int, rank: int = 0) -> dict[str, int]:
    """Return why a rank waited for late ranks in a step, in ms."""
    causes = analysis.ranks[rank].steps[step].causes
    found = {cause: round(causes.get(cause, 0) / MS) for cause in WAITS_FOR_LATE_RANK}
    return {cause: ms for cause, ms in found.items() if ms}


def test_a_host_in_turns_that_pauses_makes_others_wait_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 waits for its turn; rank 2 takes none, and stands still."""
    run = job({}, FIRST, LAST)
    before = analyzed(monkeypatch, run)
    assert [late_ms(before, step) for step in (0, 3, 5)] == [{}, {"peer_compute": 20}, {"peer_compute": 20}]
    after = analyzed(monkeypatch, run, turns({0: [], 1: [pause(3)]}))
    assert [late_ms(after, step) for step in (0, 3, 5)] == [{}, {"peer_core": 20}, {"peer_compute": 20}]


def test_a_host_in_turns_waits_for_a_core_wherever_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had all cores for 15 of its 20 ms."""
    found = analyzed(monkeypatch, job({}, FIRST), turns({0: [], 1: [pause(3, 15)]}))
    assert late_ms(found, 3) == {"peer_core": 20}


def test_hosts_of_two_cores_wait_each_for_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = turns({0: [], 1: [pause(3)]}), turns({2: [pause(5)], 3: []})
    found = analyzed(monkeypatch, job({}, FIRST, LAST, {}), first, last)
    assert [late_ms(found, step, rank) for step in (3, 5) for rank in (0, 3)] == [{"peer_core": 20}] * 4


def of_host(stood_still: Pairs) -> HostRuns:
    nothing = intervals([])
    return HostRuns(
        computing=nothing, ran=nothing, wanted=nothing, paused=nothing, stood_still=intervals(stood_still),
        recorded_ns=100, stretch_ns=1.0,
    )  # fmt: skip


def test_a_host_in_turns_waits_in_the_turns_of_others_and_where_it_stands_still() -> None:
    found = in_turn(of_host([(10, 30), (40, 60), (80, 90)]), intervals([(20, 45), (70, 75)]))
    assert isinstance(found.computing, BusyTime)
    assert pairs_of(found.computing.intervals) == [(10, 60), (70, 75), (80, 90)]
    assert found.sleeping.within([0], [100]).tolist() == found.idling.within([0], [100]).tolist() == [0]
    assert not found.sleep_known
    assert not found.by_account


def test_ranks_outside_of_turns_and_those_of_which_nothing_is_known_are_as_before() -> None:
    alone = summarize_ranks(job({}, FIRST, LAST))
    unknown = {**alone, 0: replace(alone[0], host_runs=None)}
    found = waiting_for_turns(unknown, [turns({0: [pause(1)], 1: [pause(3)]})])
    assert [found[rank] is unknown[rank] for rank in range(3)] == [True, False, True]
    assert found[1].parts.own_comm is alone[1].parts.own_comm
    assert found[1].figures == alone[1].figures
    assert waiting_for_turns(alone, []) == alone


def test_what_a_stage_waited_for_its_turn_it_did_not_compute_as_little_as_what_it_stood_still() -> None:
    """Of 20 ms twice: of the first it waited for 15 ms, of the second not at all."""
    alone = summarize_ranks(job({}, {3: 20, 5: 20}))
    found = waiting_for_turns(alone, [turns({0: [], 1: [pause(3, 15), pause(1, 3)]})])
    assert found[1].stood_still is None
    assert _still_ns(alone) == {0: 0, 1: pytest.approx(40 * MS, abs=100)}
    assert _still_ns(found) == {0: 0, 1: pytest.approx(43 * MS, abs=100)}, "and 3 ms that were no pause"


@pytest.mark.slow
def test_hosts_that_a_scheduler_made_take_turns_wait_for_a_core() -> None:
    """Two hosts on one core, for 4 ms at a time: all that they pause in operations is the other one's turn."""
    made = operations_on_cores(2, 1, 1, most_ns=5 * MS, steps=6)
    ranks = {}
    for rank, steps in enumerate(made):
        every = [each for own in steps for each in own]
        ranks[rank] = rank_timeline(
            rank, work=[{"start_ns": start, "end_ns": end, "name": "host operations"} for start, end in every],
            host=[{"lane": 0, "name": "aten::mm", "start_ns": start, "end_ns": end} for start, end in every],
            steps=[{"step": at, "start_ns": own[0][0], "end_ns": own[-1][1] + 1} for at, own in enumerate(steps)],
            recordings=[{"start_ns": 0, "end_ns": every[-1][1] + 1, "host_events": True}], has_device=False,
            recorded={"host": "node"},
        )  # fmt: skip
    run = Run(world_size=2, ranks=ranks)
    alone = summarize_ranks(run)
    (found,) = turns_on_cores(run, alone, match_and_align(run))
    assert (found.ranks, found.cores) == ((0, 1), 1)
    for rank, own in waiting_for_turns(alone, [found]).items():
        waiting, before = own.parts.waiting, alone[rank].parts.waiting
        assert waiting
        assert before
        whole = intervals(own.whole)
        waited = int(waiting.computing.within(whole.starts, whole.ends).sum())
        assert waited > 0.5 * int(before.sleeping.within(whole.starts, whole.ends).sum()) > 0
        assert before.computing.within(whole.starts, whole.ends).sum() == 0
