"""Hosts that share cores: how many ran, counted by hand over schedules that were made, and on a real trace."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.shared_cores import shared_cores as recommended
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.stragglers.core_turns import HostRuns, Turns, host_runs
from overlapscope.analysis.stragglers.shared_cores import (
    HostTimes,
    Pinned,
    host_times,
    hosts_in_turns,
    pinned_hosts,
)  # fmt: skip
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.intervals import Intervals, difference, length, union
from overlapscope.timeline.run import Run
from tests.conftest import shared_file
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
LENGTH = 400 * MS
Pairs = Sequence[tuple[int, int]]


def intervals(pairs: Pairs) -> Intervals:
    return union((np.array([one for one, _ in pairs], np.int64), np.array([two for _, two in pairs], np.int64)))


def host(paused: Pairs = (), waiting: Pairs = (), fetching: Pairs = ()) -> HostTimes:
    return HostTimes(
        begin_ns=0, end_ns=LENGTH, paused=intervals(paused), waiting=intervals(waiting), fetching=intervals(fetching)
    )


def scheduled(hosts: int, cores: int, seed: int) -> list[Pairs]:
    """Return when each host pauses: a core runs one after the other for 2 to 6 ms, and all hosts want to run."""
    draw = random.Random(seed)
    queue, busy, runs = list(range(hosts)), [(0, -1)] * cores, [[] for _ in range(hosts)]
    while busy:
        at, ran = busy.pop(busy.index(min(busy)))
        queue += [ran] if ran >= 0 else []
        if at < LENGTH:
            rank = queue.pop(0)
            until = at + draw.randint(2 * MS, 6 * MS)
            runs[rank].append((at, until))
            busy.append((until, rank))
    whole = intervals([(0, LENGTH)])
    off = [difference(whole, intervals(each)) for each in runs]
    return [list(zip(each.starts.tolist(), each.ends.tolist(), strict=True)) for each in off]


def found(hosts: Sequence[HostTimes], clocks: Clocks | None = None) -> list[Pinned]:
    run = Run(world_size=len(hosts), ranks={rank: rank_timeline(rank) for rank in range(len(hosts))})
    known = clocks or Clocks(tied=dict.fromkeys(range(len(hosts)), 0))
    return pinned_hosts(run, dict(enumerate(hosts)), known)


@pytest.mark.parametrize(("hosts", "cores"), [(2, 1), (4, 1), (4, 3), (8, 2), (8, 6), (16, 5)])
def test_hosts_that_take_turns_share_so_many_cores(hosts: int, cores: int) -> None:
    (one,) = found([host(paused) for paused in scheduled(hosts, cores, hosts)])
    assert (one.cores, one.ranks, one.while_fetching) == (cores, tuple(range(hosts)), False)
    assert one.share == pytest.approx(1.0, abs=0.05)
    assert one.running == pytest.approx(cores, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_hosts_that_pause_of_themselves_share_none(seed: int) -> None:
    draw = random.Random(seed)
    moments = [sorted(draw.sample(range(0, LENGTH, MS), 60)) for _ in range(8)]
    assert found([host(list(pairwise(own))[::2]) for own in moments]) == []


def test_hosts_that_pause_all_at_once_share_none() -> None:
    pauses = [(at, at + 5 * MS) for at in range(0, LENGTH, 20 * MS)]
    assert found([host(pauses)] * 8) == []


def test_one_host_that_pauses_alone_is_a_straggler_and_no_lack_of_cores() -> None:
    pauses = [(at, at + 8 * MS) for at in range(0, LENGTH, 20 * MS)]
    assert found([host(pauses), *[host()] * 7]) == []
    assert found([host(pauses), host()]) == []


def test_what_a_host_does_in_a_wait_for_its_device_counts_neither_way() -> None:
    """Three of four hosts take turns on one core; the fourth waits for its device, and spins or not."""
    turns = [host(paused) for paused in scheduled(3, 1, 5)]
    (one,) = found([*turns, host(waiting=[(0, LENGTH)])])
    assert one.cores == 1


def test_pauses_in_data_loading_alone_are_not_told_from_slow_loaders() -> None:
    """Every host also loads quickly, which tells how long loading need take."""
    loads = scheduled(4, 2, 7)
    hosts = [host(fetching=[*own, *((end + MS, end + MS + MS // 10) for _, end in own)]) for own in loads]
    (one,) = found(hosts)
    assert (one.cores, one.while_fetching) == (2, True)


def test_machines_are_told_apart_by_their_clocks() -> None:
    """Of two machines one has two cores for four hosts; the other has enough."""
    hosts = [*(host(paused) for paused in scheduled(4, 2, 3)), *[host()] * 4]
    offsets = {rank: 0.0 if rank < 4 else 7.0 * MS for rank in range(8)}
    (one,) = found(hosts, Clocks(tied=dict.fromkeys(range(8), 0), offset_ns=offsets))
    assert (one.ranks, one.cores) == ((0, 1, 2, 3), 2)


@pytest.mark.parametrize(("call", "pauses"), [("cudaFree", 0), ("cudaStreamSynchronize", 3 * MS)])
def test_what_the_driver_does_in_the_allocator_after_a_wait_is_no_pause(call: str, pauses: int) -> None:
    calls = [
        {"name": "cudaLaunchKernel", "start_ns": 0, "end_ns": 10_000},
        {"name": call, "start_ns": 20_000, "end_ns": 9 * MS},  # the device was empty at 6 ms
        {"name": "cudaLaunchKernel", "start_ns": 9 * MS + 10_000, "end_ns": 9 * MS + 20_000},
    ]
    own = host_times(
        rank_timeline(
            work=[{"start_ns": MS, "end_ns": 6 * MS, "name": "gemm"}],
            host=[{"lane": 2, **each} for each in calls],
            recordings=[{"start_ns": 0, "end_ns": 10 * MS, "host_events": True}],
        )
    )
    assert own
    assert length(own.paused) == pauses


def test_pauses_are_silences_outside_of_waits_for_the_device() -> None:
    calls = [
        {"name": "cudaLaunchKernel", "start_ns": 0, "end_ns": 10_000},
        {"name": "cudaLaunchKernel", "start_ns": 2 * MS, "end_ns": 2 * MS + 10_000},  # after a pause
        {"name": "cudaStreamSynchronize", "start_ns": 3 * MS, "end_ns": 9 * MS},  # its span ended at 6 ms
        {"name": "cudaLaunchKernel", "start_ns": 9 * MS + 100_000, "end_ns": 9 * MS + 110_000},
    ]
    timeline = rank_timeline(
        work=[{"start_ns": MS, "end_ns": 6 * MS, "name": "gemm"}],
        host=[{"lane": 2, **each} for each in calls],
        recordings=[{"start_ns": 0, "end_ns": 10 * MS, "host_events": True}],
    )
    own = host_times(timeline)
    assert own
    pauses = list(zip(own.paused.starts.tolist(), own.paused.ends.tolist(), strict=True))
    assert pauses == [(10_000, 2 * MS), (2 * MS + 10_000, 3 * MS), (6 * MS, 9 * MS)]
    assert length(own.waiting) == 3 * MS
    polls = host_times(timeline, intervals([(10_000, 2 * MS)]))
    assert polls
    assert length(polls.paused) == length(own.paused) - (2 * MS - 10_000)


def test_a_recording_without_host_events_says_nothing_of_hosts() -> None:
    assert host_times(rank_timeline(work=[{"start_ns": 0, "end_ns": MS, "name": "gemm"}])) is None


def test_eight_hosts_of_megatron_share_two_cores() -> None:
    """By hand: six of eight hosts are silent for more than 1 ms at 92 % of the time, and 1.9 run in the mean."""
    analysis = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    (finding,) = (each for each in analysis.findings if each.id == "shared_cores")
    evidence = finding.evidence
    assert (finding.severity, evidence["cores"], evidence["ranks"]) == ("warning", 2, list(range(8)))
    assert evidence["share_of_time"] == pytest.approx(0.92, abs=0.02)
    assert evidence["running_hosts"] == pytest.approx(1.9, abs=0.05)
    assert all(433 * MS < each < 503 * MS for each in evidence["paused_ns"].values())
    assert evidence["recorded_ns"] == pytest.approx(630.765 * MS, rel=1e-4)
    assert evidence["pauses_capped_ns"] == pytest.approx(289 * MS, rel=0.01)
    advice = recommended(analysis)
    assert advice
    assert advice.gain_high_ns == evidence["recorded_ns"] - evidence["pauses_capped_ns"]
    assert {"linux", "slurm", "torch"} <= set(advice.apply)


def runs(computing: Pairs, ran: Pairs, stretch_ns: float = MS) -> HostRuns:
    return HostRuns(
        computing=intervals(computing), ran=intervals(ran), may_have_run=intervals(ran), recorded_ns=LENGTH,
        stretch_ns=stretch_ns,
    )  # fmt: skip


def in_turns(hosts: Sequence[HostRuns]) -> list[Turns]:
    run = Run(world_size=len(hosts), ranks={rank: rank_timeline(rank) for rank in range(len(hosts))})
    return hosts_in_turns(run, dict(enumerate(hosts)), Clocks(tied=dict.fromkeys(range(len(hosts)), 0)))


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_hosts_of_a_cpu_run_that_take_turns_share_one_core(hosts: int) -> None:
    """All compute all the time; a core of their own would have them run at once, as often as counted by hand."""
    turns = scheduled(hosts, 1, hosts)
    whole = [(0, LENGTH)]
    ran = [difference(intervals(whole), intervals(each)) for each in turns]
    (one,) = in_turns([runs(whole, list(zip(*(map(np.ndarray.tolist, each)), strict=True))) for each in ran])
    often = [length(each) / LENGTH for each in ran]
    single = sum(p * np.prod([1 - q for at, q in enumerate(often) if at != own]) for own, p in enumerate(often))
    assert one.by_chance_ns == pytest.approx(LENGTH * (1 - np.prod([1 - p for p in often]) - single))
    assert (one.ranks, one.share, one.at_once_ns) == (tuple(range(hosts)), 1.0, 0)
    assert one.waited_share == pytest.approx(1 - 1 / hosts)


@pytest.mark.parametrize("names", [("a", "b", None), ("a", None, "b")])
def test_hosts_of_machines_of_two_names_share_no_core(names: Sequence[str | None]) -> None:
    """Whatever they do, and though the clocks of all agree, and one rank's machine has no name."""
    whole = [(0, LENGTH)]
    ran = [difference(intervals(whole), intervals(each)) for each in scheduled(3, 1, 1)]
    hosts = [runs(whole, list(zip(*(map(np.ndarray.tolist, each)), strict=True))) for each in ran]
    run = Run(world_size=3, ranks={
        rank: replace(rank_timeline(rank), recorded={"host": name} if name else {}) for rank, name in enumerate(names)
    })  # fmt: skip
    clocks = Clocks(tied=dict.fromkeys(range(3), 0))
    assert hosts_in_turns(run, dict(enumerate(hosts)), clocks) == []
    (one,) = hosts_in_turns(
        replace(run, ranks={rank: rank_timeline(rank) for rank in range(3)}), dict(enumerate(hosts)), clocks
    )
    assert one.ranks == (0, 1, 2)


@pytest.mark.parametrize("seed", range(20))
def test_hosts_of_a_cpu_run_with_cores_of_their_own_share_none(seed: int) -> None:
    draw = random.Random(seed)
    own = [[(at, at + MS) for at in draw.sample(range(0, LENGTH, MS), 80)] for _ in range(2)]
    assert in_turns([runs([(0, LENGTH)], each) for each in own]) == []


def test_hosts_that_compute_one_after_the_other_take_no_turns() -> None:
    """Stages of a pipeline never run at once either, but neither do they want to."""
    first = [(at, at + 10 * MS) for at in range(0, LENGTH, 20 * MS)]
    second = [(at + 10 * MS, at + 20 * MS) for at, _ in first]
    assert in_turns([runs(first, first), runs(second, second)]) == []


def test_hosts_that_miss_each_other_in_each_micro_batch_anew_take_no_turns() -> None:
    """Two stages of a pipeline, each with small operations for 5 ms of 25 ms, the second one always 20 ms later."""
    long = 25 * LENGTH
    each = [[(at + lag, at + lag + 5 * MS) for at in range(0, long, 25 * MS)] for lag in (0, 20 * MS)]
    hosts = [replace(runs([(0, long)], ran, 5 * MS), recorded_ns=long) for ran in each]
    assert in_turns(hosts) == []


@pytest.mark.parametrize("seed", range(10))
def test_uneven_turns_on_one_core_are_no_schedule(seed: int) -> None:
    """As above, but the turns of 3 to 6 ms follow each other as a scheduler has it."""
    draw, ran = random.Random(seed), ([], [])
    at = 0
    while at < 5 * LENGTH:
        own = draw.randrange(2)
        ran[own].append((at, at + draw.randrange(3 * MS, 6 * MS)))
        at = ran[own][-1][1] + draw.randrange(1, 10 * MS)
    hosts = [replace(runs([(0, at)], each, 4.5 * MS), recorded_ns=at) for each in ran]
    assert [one.at_once_ns for one in in_turns(hosts)] == [0]


def test_few_moments_of_running_do_not_show_that_hosts_take_turns() -> None:
    whole = [(0, LENGTH)]
    rare = [[(at + shift, at + shift + MS) for at in range(0, LENGTH, 20 * MS)] for shift in (0, 10 * MS)]
    assert in_turns([runs(whole, each) for each in rare]) == []


def test_a_host_certainly_ran_where_its_calls_follow_each_other_closely() -> None:
    close = [{"name": "aten::add", "start_ns": at, "end_ns": at + 20_000} for at in range(0, MS, 50_000)]
    far = [{"name": "aten::mm", "start_ns": 2 * MS, "end_ns": 8 * MS}]  # it may have paused in it
    timeline = rank_timeline(
        work=[{"start_ns": 0, "end_ns": MS, "name": "host"}, {"start_ns": 2 * MS, "end_ns": 8 * MS, "name": "host"}],
        host=[{"lane": 0, **each} for each in (*close, *far)],
        recordings=[{"start_ns": 0, "end_ns": 10 * MS, "host_events": True}],
        has_device=False,
    )
    own = host_runs(timeline, Coverage.of(timeline.spans))
    assert own
    assert (own.ran.starts.tolist(), own.ran.ends.tolist()) == ([100_000], [950_000 + 20_000 - 100_000])
    assert own.stretch_ns == own.ran.ends[0] - own.ran.starts[0]


def of_operations(operations: Pairs, *, waits: Pairs = ()) -> HostRuns:
    """Return what a host did that computes in these operations of one thread, and waits in others."""
    calls = [{"name": "aten::mm", "start_ns": start, "end_ns": end} for start, end in operations]
    calls += [{"name": "c10d::barrier", "start_ns": start, "end_ns": end} for start, end in waits]
    timeline = rank_timeline(
        work=[{"start_ns": start, "end_ns": end, "name": "host operations"} for start, end in operations],
        host=[{"lane": 0, **each} for each in sorted(calls, key=lambda each: each["start_ns"])],
        recordings=[{"start_ns": 0, "end_ns": LENGTH, "host_events": True}], has_device=False,
    )  # fmt: skip
    own = host_runs(timeline, Coverage.of(timeline.spans))
    assert own
    return own


def test_a_host_ran_through_operations_that_are_shorter_than_a_turn() -> None:
    short, longer, long = (0, 800_000), (10 * MS, 10 * MS + 1_600_000), (20 * MS, 26 * MS)
    own = of_operations([short, longer, long], waits=[(40 * MS, 40 * MS + 800_000)])
    assert list(zip(*(each.tolist() for each in own.ran), strict=True)) == [(100_000, 700_000)]
    assert own.may_have_run.starts.tolist() == [100_000, 10 * MS + 100_000]
    assert own.may_have_run.ends.tolist() == [700_000, 10 * MS + 1_500_000]


def beside(seed: int, cores: int, slowed: float = 1.0) -> list[HostRuns]:
    """Return two hosts that make operations of up to 0.9 ms, and wait now and then, on one core or on one each.

    A host keeps a core for 4 ms or until it waits. Operations take `slowed` times as long beside those of the other.
    """
    draw, grain, lasts = random.Random(seed), 20_000, 10 * LENGTH
    left, begun, until, turn, since = [0.0, 0.0], [0, 0], [0, 0], 0, 0
    made: tuple[list[tuple[int, int]], ...] = ([], [])
    for at in range(0, lasts, grain):
        wants = [each <= at for each in until]
        if wants[1 - turn] and (not wants[turn] or at - since >= 4 * MS):
            turn, since = 1 - turn, at
        for rank in range(2):
            if not wants[rank]:
                continue
            if left[rank] <= 0:
                left[rank], begun[rank] = draw.uniform(0.5, 0.9) * MS, at
            if cores == 2 or turn == rank:
                left[rank] -= grain / (slowed if cores == 2 and wants[1 - rank] else 1.0)
            if left[rank] <= 0:
                made[rank].append((begun[rank], at + grain))
                until[rank] = at + grain + (10 * MS if draw.random() < 0.1 else 0)
    return [replace(of_operations(each), recorded_ns=lasts) for each in made]


@pytest.mark.parametrize("seed", range(5))
def test_operations_that_never_run_at_once_show_one_core(seed: int) -> None:
    assert in_turns(beside(seed, 1))
    assert not in_turns(beside(seed, 2))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slowed", [1.3, 1.7, 2.0])
def test_operations_that_are_short_only_alone_show_no_turns(seed: int, slowed: float) -> None:
    """As hosts make them that share a memory, or the halves of a core."""
    assert not in_turns(beside(seed, 2, slowed))


@pytest.mark.parametrize("begin_ns", [-10 * MS, 0])
def test_moments_of_running_before_time_0_are_as_long_as_after_it(begin_ns: int) -> None:
    calls = [{"name": "aten::add", "start_ns": begin_ns + at, "end_ns": begin_ns + at + 20_000} for at in (0, 50_000)]
    more = [{**each, "start_ns": each["start_ns"] + 2 * MS, "end_ns": each["end_ns"] + 2 * MS} for each in calls]
    steady = [
        {"name": "aten::add", "start_ns": begin_ns + at, "end_ns": begin_ns + at + 20_000}
        for at in range(4 * MS, 5 * MS, 50_000)
    ]
    timeline = rank_timeline(
        host=[{"lane": 0, **each} for each in (*calls, *more, *steady)],
        recordings=[{"start_ns": begin_ns, "end_ns": begin_ns + 10 * MS, "host_events": True}],
        has_device=False,
    )
    own = host_runs(timeline, Coverage.of(timeline.spans))
    assert own
    assert (own.ran.starts - begin_ns).tolist() == [4 * MS + 100_000]
    assert length(own.computing) == length(own.ran) == 770_000
