"""Broadcasts: two ranks of one host, one of which evaluates before it sends."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import ROOTED_ALONE
from overlapscope.timeline.run import Run
from overlapscope.whatif.step_graph.recorded_graph import recorded_graphs
from tests.support.overlapping_calls import Met
from tests.support.overlapping_calls import job as job_of_calls

MS, STEP, STEPS = 1_000_000, 100.0, 6
GROUPS = {"all": (0, 1)}


def job(root_at: Sequence[float], *, op: str = "broadcast") -> Run:
    """Return a job whose ranks reduce, and then the second receives from 42 ms of a step on what the root sends at
    these times of the steps."""
    calls: dict[int, list[Met]] = {0: [], 1: []}
    computes: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for step, begins in enumerate(root_at):
        at = step * STEP
        for rank, other in ((0, begins), (1, 42.0)):
            calls[rank] += [Met(start=at + 30, end=at + 40), Met(start=at + other, end=at + 82, op=op, volume=4)]
            computes[rank] += [(at, at + 30), (at + 40, at + other), (at + 90, at + 99)]
    return job_of_calls(
        calls, GROUPS, lasts=STEP * len(root_at), computes=computes, step=STEP, has_device=False,
        hosts={0: "node0", 1: "node0"},
    )  # fmt: skip


LATE = [80.0] * STEPS


def on_hosts(run: Run, *names: str) -> Run:
    """Return the run with names of hosts as another profiler's traces have them, which containers may share."""
    return replace(run, ranks={rank: replace(each, recorded={"host": names[rank]}) for rank, each in run.ranks.items()})


@pytest.mark.parametrize("op", ["broadcast", "reduce", "scatter"])
def test_members_wait_for_a_root_that_comes_last_each_time(op: str) -> None:
    run = job(LATE, op=op)
    waits = match_and_align(run).waits
    assert waits[1].wait_ns == pytest.approx(STEPS * 38 * MS)
    assert waits[0].wait_ns == 0
    assert waits[0].blame_ns == pytest.approx(STEPS * 38 * MS)


def test_who_computes_before_it_sends_is_late_and_the_path_is_its_own() -> None:
    found = analyze(job(LATE))
    assert [(each.rank, each.held_by) for each in found.skew.stragglers] == [(0, "longer_compute")]
    assert found.headline.causes["peer_compute"] == pytest.approx(38 * MS / 2, rel=0.01)
    assert found.headline.exposed_wait_ns is not None


@pytest.mark.parametrize(
    ("late", "waited"),
    [
        pytest.param(STEPS, STEPS, id="each time"),
        pytest.param(3, 3, id="in half of them"),
        pytest.param(2, 2, id="twice"),
        pytest.param(1, 0, id="once"),
        pytest.param(0, 0, id="never"),
    ],
)
def test_a_call_is_split_only_where_it_was_often_seen_to_wait(late: int, waited: int) -> None:
    run = job([80.0] * late + [42.0] * (STEPS - late))
    assert match_and_align(run).waits[1].wait_ns == pytest.approx(waited * 38 * MS)


def test_calls_that_nobody_waited_in_are_matched_but_not_split() -> None:
    found = match_and_align(job([42.0] * STEPS))
    assert {block.op for block in found.matching.blocks} == {"all_reduce"}
    assert [(block.op, block.calls) for block in found.rooted] == [("broadcast", STEPS)]
    assert found.matched == 2 * STEPS
    assert found.not_split == STEPS


def test_the_replay_knows_calls_that_nobody_waited_in_as_the_same_on_all_ranks() -> None:
    run = job([42.0] * STEPS)
    assert recorded_graphs(run, match_and_align(run)).ranks == (0, 1)


def test_time_after_the_last_one_came_is_no_wait() -> None:
    """The root has sent into buffers and leaves; now and then it is a little late."""
    calls: dict[int, list[Met]] = {0: [], 1: []}
    for step in range(20):
        at, late = step * STEP, 1.0 if step < 3 else 0.0
        calls[0] += [Met(start=at + 30, end=at + 40), Met(start=at + 42 + late, end=at + 45, op="broadcast", volume=4)]
        calls[1] += [Met(start=at + 30, end=at + 40), Met(start=at + 42, end=at + 74, op="broadcast", volume=4)]
    run = job_of_calls(calls, GROUPS, lasts=20 * STEP, step=STEP, has_device=False, hosts={0: "node0", 1: "node0"})
    assert match_and_align(run).waits[1].wait_ns == 0
    assert not match_and_align(run).rooted


def test_clocks_that_no_other_call_connects_say_nothing_of_broadcasts() -> None:
    calls = {
        rank: [Met(start=at * STEP + 42, end=at * STEP + 82, op="broadcast") for at in range(STEPS)] for rank in (0, 1)
    }
    run = job_of_calls(
        calls, GROUPS, lasts=STEP * STEPS, step=STEP, has_device=False, clock={1: 12.0},
        hosts={0: "node0", 1: "node1"},
    )  # fmt: skip
    found = match_and_align(run).matching
    assert not found.blocks
    assert found.reasons == (ROOTED_ALONE,)
    assert not analyze(run).skew.stragglers


@pytest.mark.parametrize("one_host", [True, False])
def test_calls_with_a_root_show_that_ranks_of_one_host_share_its_clock_where_there_are_no_others(
    *, one_host: bool
) -> None:
    """As with a parameter server: gradients to the first rank, parameters from it."""
    calls: dict[int, list[Met]] = {0: [], 1: []}
    for step in range(STEPS):
        at = step * STEP
        for rank, computed in ((0, 30.0), (1, 50.0 + step)):
            calls[rank] += [Met(start=at + computed, end=at + 60 + step, op="reduce", volume=4)]
        for rank, updated in ((0, 80.0), (1, 61.0 + step)):
            calls[rank] += [Met(start=at + updated, end=at + 90, op="broadcast", volume=4)]
    run = job_of_calls(calls, GROUPS, lasts=STEP * STEPS, step=STEP, has_device=False)
    found = match_and_align(on_hosts(run, "node0", "node0" if one_host else "node1"))
    assert {block.op for block in found.matching.blocks} == ({"reduce", "broadcast"} if one_host else set())
    if one_host:
        assert found.waits[0].wait_ns == pytest.approx(sum(20 + step for step in range(STEPS)) * MS)
        assert found.waits[1].wait_ns == pytest.approx(sum(19 - step for step in range(STEPS)) * MS)


@pytest.mark.parametrize(("ahead_ms", "one_clock"), [(0.0, True), (4.4, False), (-4.4, False)])
def test_broadcasts_show_the_clock_of_a_host_on_which_all_reduces_end_late_now_here_now_there(
    ahead_ms: float, *, one_clock: bool
) -> None:
    """Busy cores: six all-reduces, each seen to end some ms later by one rank; half of the broadcasts end at once."""
    late_ms = (-4.9, -4.1, 3.1, -0.3, -7.5, -0.3)
    calls: dict[int, list[Met]] = {0: [], 1: []}
    for step, late in enumerate(late_ms):
        at = step * STEP
        for rank in (0, 1):
            end = at + 82 + (3.0 if step % 2 and rank else 0.0)
            calls[rank] += [Met(start=at + 20, end=at + 40 + max(late if rank else -late, 0.0))]
            calls[rank] += [Met(start=at + 70 + rank, end=end, op="broadcast", volume=4)]
    run = job_of_calls(calls, GROUPS, lasts=STEP * STEPS, step=STEP, has_device=False, clock={1: ahead_ms})
    run = on_hosts(run, "node0", "node0")
    assert (match_and_align(run).clocks.offset_ns == {0: 0.0, 1: 0.0}) is one_clock


def test_a_call_that_the_root_left_before_the_other_came_is_no_wait_and_others_are() -> None:
    run = job(LATE)
    calls = run.ranks[1].collectives
    start_ns = calls.start_ns.copy()
    start_ns[-1] = run.ranks[0].collectives.end_ns[-1] + MS
    end_ns = calls.end_ns.copy()
    end_ns[-1] = start_ns[-1] + MS
    left = replace(run.ranks[1], collectives=replace(calls, start_ns=start_ns, end_ns=end_ns))
    found = match_and_align(replace(run, ranks={**run.ranks, 1: left}))
    assert found.waits[1].wait_ns == pytest.approx((STEPS - 1) * 38 * MS)
    assert {block.op: block.calls for block in found.matching.blocks} == {"all_reduce": STEPS, "broadcast": STEPS - 1}
    assert found.not_split == 1


def test_a_call_that_ends_late_on_one_rank_is_not_split_and_others_are() -> None:
    run = job(LATE)
    calls = run.ranks[1].collectives
    end_ns = calls.end_ns.copy()
    end_ns[1] += 6 * MS  # the first broadcast, in which it waits 38 ms
    late = replace(run.ranks[1], collectives=replace(calls, end_ns=end_ns))
    found = match_and_align(replace(run, ranks={**run.ranks, 1: late}))
    assert found.waits[1].wait_ns == pytest.approx((STEPS - 1) * 38 * MS)


def test_two_groups_without_names_are_not_one_that_waits() -> None:
    """Two pairs broadcast at other times of a step; paired by order, the earlier ones would wait for the later."""
    calls = {
        rank: [
            Met(
                start=at * STEP + begins,
                end=at * STEP + 75 + 25 * (rank > 1),
                op="broadcast",
                group="unknown",
                volume=4,
            )
            for at in range(20)
        ]
        for rank, begins in ((0, 70), (1, 30), (2, 74), (3, 34))
    }
    common = [Met(start=at * STEP + 2, end=at * STEP + 4) for at in range(20)]
    run = job_of_calls(
        {rank: sorted([*common, *own], key=lambda each: each.start) for rank, own in calls.items()},
        {"all": (0, 1, 2, 3)}, lasts=20 * STEP, has_device=False,
    )  # fmt: skip
    assert "broadcast" not in {block.op for block in match_and_align(run).matching.blocks}
