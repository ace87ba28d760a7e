"""Hosts that share cores: how many ran, counted by hand over schedules that were made, and on a real trace."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from overlapscope.advice.shared_cores import shared_cores as recommended
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.stragglers.shared_cores import HostTimes, Pinned, host_times, pinned_hosts, shared_cores
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import clip, difference, length
from overlapscope.timeline.run import Group, Run
from tests.conftest import shared_file
from tests.support.cpu_runs.scheduled_hosts import LENGTH, MS, Pairs, intervals, scheduled
from tests.support.rank_rows import rank_timeline


def host(paused: Pairs = (), waiting: Pairs = (), fetching: Pairs = ()) -> HostTimes:
    return HostTimes(
        begin_ns=0, end_ns=LENGTH, paused=intervals(paused), waiting=intervals(waiting), fetching=intervals(fetching)
    )


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


@pytest.mark.parametrize(("turn_ms", "shared"), [(4, True), (16, False)])
def test_hosts_that_spin_in_waits_hold_a_core_for_a_turn_at_most(turn_ms: int, shared: bool) -> None:
    """By hand: in each of ten rounds of 40 ms eight hosts come from a common wait. One after the other launches for
    0.5 ms, and spins in the next wait for the rest of its turn on the only core. Or all collect garbage for 16 ms and
    more, and go on 1 ms apart: nobody is seen to run meanwhile."""
    hosts = []
    for at in range(8):
        goes_on = at * turn_ms if shared else turn_ms + at
        paused = [(begin, begin + goes_on * MS) for begin in range(0, LENGTH, 40 * MS) if goes_on]
        launched = [begin + goes_on * MS + MS // 2 for begin in range(0, LENGTH, 40 * MS)]
        hosts.append(host(paused, waiting=[(begin, (begin // (40 * MS) + 1) * 40 * MS) for begin in launched]))
    assert [each.cores for each in found(hosts)] == [1] * shared


def paused_ranks(world_size: int | None, group_size: int | None = None, groups: tuple[Group, ...] = ()) -> Run:
    """Return four ranks that made a call each, which names no group."""
    calls = [
        {"op": "all_reduce", "start_ns": 0, "end_ns": MS, "group_size": NONE if group_size is None else group_size}
    ]
    ranks = {rank: rank_timeline(rank, calls=calls) for rank in range(4)}
    return Run(world_size=world_size, ranks=ranks, groups=groups)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(paused_ranks(4), True, id="all"),
        pytest.param(paused_ranks(8), False, id="half of them"),
        pytest.param(paused_ranks(None), True, id="the size of the job is not known"),
        pytest.param(paused_ranks(None, 4), True, id="... and calls have no more members"),
        pytest.param(paused_ranks(None, 8), False, id="... and calls have more members"),
        pytest.param(paused_ranks(None, groups=(Group(name="g", size=8),)), False, id="... and a group has more"),
        pytest.param(paused_ranks(None, groups=(Group(name="g", ranks=(0, 5)),)), False, id="... and has others"),
    ],
)
def test_no_gain_is_said_where_ranks_that_were_not_recorded_may_be_waited_for(run: Run, *, said: bool) -> None:
    (pinned,) = found([host(paused) for paused in scheduled(4, 2, 4)])
    (named,) = shared_cores(run, [pinned], capped_ns=lambda: (LENGTH, LENGTH // 2))
    assert ("; with pauses of at most 3 ms it would take 200.0 ms" in named.title) == said
    assert ("pauses_capped_ns" in named.evidence) == said


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


def test_hosts_that_spin_while_others_fetch_hold_a_core_and_are_not_seen_to_run() -> None:
    """As above; of the time between two loads a host launches for a third, and waits for its device, spinning."""
    hosts = []
    for own in scheduled(4, 2, 7):
        quick = [(end + MS, end + MS + MS // 10) for _, end in own]
        between = zip([end + 2 * MS for _, end in own], [*(start for start, _ in own[1:]), LENGTH], strict=True)
        waits = [(begin + (end - begin) // 3, end) for begin, end in between if end > begin]
        hosts.append(host(fetching=[*own, *quick], waiting=waits))
    (one,) = found(hosts)
    assert (one.cores, one.while_fetching) == (2, True)
    assert one.running < 2 * 0.8


def test_hosts_that_all_fetch_at_once_wait_for_data_and_lack_no_core() -> None:
    """Then they launch for 4 ms, and wait for their devices; other batches are there at once."""
    every = range(0, LENGTH, 100 * MS)
    fetches = [(at, at + 40 * MS) for at in every] + [(at + 41 * MS, at + 41 * MS + MS // 10) for at in every]
    assert found([host(fetching=fetches, waiting=[(at + 44 * MS, at + 100 * MS) for at in every])] * 4) == []


def test_machines_are_told_apart_by_their_clocks() -> None:
    """Of two machines one has two cores for four hosts; the other has enough."""
    hosts = [*(host(paused) for paused in scheduled(4, 2, 3)), *[host()] * 4]
    offsets = {rank: 0.0 if rank < 4 else 7.0 * MS for rank in range(8)}
    (one,) = found(hosts, Clocks(tied=dict.fromkeys(range(8), 0), offset_ns=offsets))
    assert (one.ranks, one.cores) == ((0, 1, 2, 3), 2)


@pytest.mark.parametrize(("begun_apart_ms", "shared"), [(0, True), (20, True), (100, False)])
def test_hosts_whose_recordings_begin_far_apart_are_not_judged(begun_apart_ms: int, *, shared: bool) -> None:
    """Nobody knows what a host did before it was recorded: it would explain why others did not run."""
    begins = [at * begun_apart_ms * MS for at in range(4)]
    hosts = [
        replace(host(paused), begin_ns=begin, paused=clip(intervals(paused), begin, LENGTH))
        for paused, begin in zip(scheduled(4, 2, 4), begins, strict=True)
    ]
    assert [each.cores for each in found(hosts)] == [2] * shared


@pytest.mark.parametrize(("fifths", "shared"), [(1, False), (2, True)])
def test_hosts_that_pause_in_turns_once_lack_no_cores(fifths: int, *, shared: bool) -> None:
    """As where the garbage collector runs on all of them when a step begins; then they wait for their devices."""
    until = fifths * LENGTH // 5
    waits = [(until, LENGTH)]
    hosts = [host([each for each in paused if each[1] < until], waiting=waits) for paused in scheduled(4, 2, 4)]
    assert [each.cores for each in found(hosts)] == [2] * shared


@pytest.mark.parametrize("in_turns", [True, False])
def test_pauses_that_lack_cores_once_show_that_loading_lacks_them(*, in_turns: bool) -> None:
    """Of 400 ms four hosts pause in turns for the first fifth, or run; in the last fifth they fetch in turns, and no
    host is seen to run beside: one that spins in a wait for its device holds the core. Between, all wait."""
    begins, fifth = 4 * LENGTH // 5, LENGTH // 5
    hosts = []
    for own in ([each for each in paused if each[1] < fifth] for paused in scheduled(4, 1, 4)):
        fetched = [(begins + begin, begins + end) for begin, end in own]
        quick = [(fifth + at * MS, fifth + at * MS + MS // 10) for at in range(1, 2 * len(own))]
        waits = difference(intervals([(fifth, LENGTH)]), intervals([*quick, *fetched]))
        hosts.append(replace(host(own if in_turns else [], fetching=[*quick, *fetched]), waiting=waits))
    assert [(each.cores, each.while_fetching) for each in found(hosts)] == [(1, True)] * in_turns


def test_a_host_that_ends_earlier_has_done_its_work_and_leaves_its_core_to_others() -> None:
    """The last quarter is of one host alone, and not judged."""
    ends = [LENGTH - at * LENGTH // 4 for at in range(3)]
    hosts = [
        replace(host(paused), end_ns=end, paused=clip(intervals(paused), 0, end))
        for paused, end in zip(scheduled(3, 1, 5), ends, strict=True)
    ]
    (one,) = found(hosts)
    assert one.cores == 1


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
