"""A host that takes several times as long as its peers for the same calls, and does not get ahead of its device."""

from statistics import median

import pytest
from msgspec.structs import replace

from overlapscope.analysis.checks.hosts.slow_host import HostTimes, slow_host
from overlapscope.timeline.columns import COMPUTE, OPERATION, PYTHON, RUNTIME
from overlapscope.timeline.run import Run
from tests.support.rank_rows import Row, rank_timeline

US = 1_000
LAUNCHES, EVERY_US = 30, 200
RANKS, SLOW = 4, 2


def host(launch_us: int, operation_us: int, waits_us: int, *, stacks: bool = False) -> list[Row]:
    """Return a host that launches every 200 us in an operation, records an event, and at last waits."""
    rows: list[Row] = []
    for at in range(LAUNCHES):
        begin = at * EVERY_US
        for kind, name, start, taken in (
            (OPERATION, "aten::mm", begin, operation_us), (RUNTIME, "cudaLaunchKernel", begin + 1, launch_us),
            (RUNTIME, "cudaEventRecord", begin + 150, launch_us // 2),
        ):  # fmt: skip
            times = {"start_ns": start * US, "end_ns": (start + taken) * US}
            own = {"correlation": at} if name == "cudaLaunchKernel" else {}
            rows.append({"kind": kind, "name": name, "lane": 1, **times, **own})
    end = LAUNCHES * EVERY_US
    last = {"start_ns": end * US, "end_ns": (end + waits_us) * US, "lane": 1}
    rows.append({"kind": RUNTIME, "name": "cudaStreamSynchronize", **last})
    return [*rows, {"kind": PYTHON, "name": "forward", **last}] if stacks else rows


def run_of(
    *, launch_us: int = 50, operation_us: int = 80, ahead_us: int = 400, waits_us: int = 100, stacks: bool = False,
    returns_last: bool = False, seen: int = RANKS, next_ahead_us: int | None = None,
) -> Run:  # fmt: skip
    """Return ranks whose kernels start 4 ms after their launches and whose hosts wait for 5 ms; rank 2 is as given, and
    rank 3 as slow where it says how far that one is ahead."""
    ranks = {}
    for rank in range(seen):
        starts_us = {SLOW: ahead_us, SLOW + 1: next_ahead_us}.get(rank)
        own = (5, 10, 5_000) if starts_us is None else (launch_us, operation_us, waits_us)
        starts_us = 4_000 if starts_us is None else starts_us
        taken_us = 0 if returns_last and rank == SLOW else 100
        work = [
            {
                "kind": COMPUTE, "name": "gemm", "correlation": at, "launch_ns": (at * EVERY_US + 1) * US,
                "start_ns": (at * EVERY_US + 1 + starts_us) * US,
                "end_ns": (at * EVERY_US + 1 + starts_us + taken_us) * US,
            }
            for at in range(LAUNCHES)
        ]  # fmt: skip
        until = (LAUNCHES * EVERY_US + 5_000) * US
        ranks[rank] = rank_timeline(
            rank,
            work=work,
            host=host(*own, stacks=stacks and rank == SLOW),
            recordings=[{"start_ns": 0, "end_ns": until, "host_events": True}],
            recorded={"host": "slow" if rank == SLOW else "usual"},
        )
    return Run(world_size=8, ranks=ranks)


def test_the_slow_host_is_named_with_what_its_calls_take_and_how_far_it_is_ahead() -> None:
    (found,) = slow_host(run_of())
    assert (found.severity, found.evidence["ranks"]) == ("warning", [SLOW])
    assert found.title == (
        "the host of rank 2 (slow) takes 10.0 times as long as the others for the same calls (cudaLaunchKernel 50.00 "
        "us, on the others 5.00 us), and hardly waits for its device (0.9 % of the time); kernels are launched 0.400 "
        "ms before they start, on the others 4.000 ms: it, or a rank of its machine that was not recorded, may pace "
        "all ranks"
    )


def test_of_several_slow_hosts_it_is_said_how_far_each_is_ahead_beside_those_that_are_not_slow() -> None:
    (found,) = slow_host(run_of(next_ahead_us=60))
    assert found.evidence["ranks"] == [SLOW, SLOW + 1]
    assert "take up to 10.0 times as long as the others" in found.title
    assert "kernels are launched 0.060 to 0.400 ms before they start, on the others 4.000 ms" in found.title
    assert "(at most 0.9 % of the time)" in found.title
    assert {each["others_ahead_ns"] for each in found.evidence["of_rank"].values()} == {4_000 * US}


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_of(launch_us=9), id="less than twice as long"),
        pytest.param(run_of(ahead_us=3_000), id="it is ahead: the queue of its device is full"),
        pytest.param(run_of(waits_us=3_000), id="it waits for its device"),
        pytest.param(run_of(operation_us=10), id="its operations take no longer"),
        pytest.param(run_of(stacks=True), id="its profiler alone records stacks"),
        pytest.param(run_of(ahead_us=10, returns_last=True), id="its launches return when the kernel has ended"),
        pytest.param(run_of(seen=SLOW), id="equal hosts"),
    ],
)
def test_nothing_is_said_of_a_host_that_is_not_slow_or_is_waited_for_by_nobody(run: Run) -> None:
    assert slow_host(run) == []


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_a_host_is_held_against_the_median_of_the_others(ranks: int) -> None:
    taken = {rank: {"a": float(7 * rank % 5 + rank), "b": 2.0, "c": 0.0} for rank in range(ranks)}
    taken[0]["only here"] = 1.0
    compared = HostTimes(taken)
    for rank, own in taken.items():
        others = {name: median(taken[other][name] for other in taken if other != rank) for name in "abc"}
        assert compared.times(rank) == pytest.approx({name: own[name] / ns for name, ns in others.items() if ns})
    assert HostTimes({0: {"a": 1.0}}).times(0) == {}


def test_calls_that_take_the_others_no_time_are_no_division_by_nothing() -> None:
    """Two of three hosts take 50 us for a call that takes the third none, by its clock."""
    run = run_of(seen=3)
    quick = run_of(launch_us=0, operation_us=0, ahead_us=4_000, waits_us=5_000).ranks[SLOW]
    (found,) = slow_host(replace(run, ranks={0: run.ranks[SLOW], 1: run.ranks[SLOW], 2: quick}))
    assert found.evidence["ranks"] == [0, 1]


def test_one_rank_alone_is_compared_with_none() -> None:
    run = run_of()
    assert slow_host(Run(world_size=1, ranks={SLOW: run.ranks[SLOW]})) == []
