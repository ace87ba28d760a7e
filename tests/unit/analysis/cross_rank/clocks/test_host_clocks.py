"""Which ranks share the clock of one host, by its name and by how their calls end."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.clocks.host_clocks import clock_reasons, shared_clocks
from overlapscope.analysis.cross_rank.matching.match import match
from overlapscope.timeline.columns import HOST
from overlapscope.timeline.hosts import share_host_clock
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.overlapping_calls import MS, Met, job
from tests.support.rank_rows import Row, rank_timeline

CALLS, STALL_MS = 40, 5.0


def stalled(
    *, name: str | None = "node", ahead_ms: float = 0.0, has_device: bool = False, lasts_ms: float = 2.0
) -> Run:
    """Return a run of two ranks, of which rank 1 sees the ends of most calls late, in the second half above all, as
    if its interpreter's lock was held; its clock is ahead, too."""
    random = np.random.default_rng(11)
    ends = [[at * 20 + lasts_ms + random.uniform(0, 0.05) for at in range(CALLS)] for _ in range(2)]
    late = [STALL_MS * (random.uniform() < (0.3 if at < CALLS / 2 else 0.8)) for at in range(CALLS)]
    ends[1] = [end + each for end, each in zip(ends[1], late, strict=True)]
    run = job(
        {rank: [Met(start=at * 20 + rank * 0.1, end=end) for at, end in enumerate(ends[rank])] for rank in range(2)},
        {"all": (0, 1)}, lasts=CALLS * 20, has_device=has_device, clock={1: ahead_ms},
    )  # fmt: skip
    recorded = {} if name is None else {"host": name}
    return replace(run, ranks={rank: replace(each, recorded=recorded) for rank, each in run.ranks.items()})


def test_ends_seen_late_are_no_clock_of_ranks_whose_traces_name_one_host() -> None:
    found = match_and_align(stalled())
    assert found.clocks.offset_ns == {0: 0.0, 1: 0.0}
    assert not found.clock_set
    assert found.matching.unmatched == 0
    assert match_and_align(stalled(name=None)).clocks.offset_ns != found.clocks.offset_ns


@pytest.mark.parametrize("name", ["", "localhost"])
def test_names_that_say_nothing_are_no_host(name: str) -> None:
    assert match_and_align(stalled(name=name)).clocks.offset_ns != {0: 0.0, 1: 0.0}


@pytest.mark.parametrize("ahead_ms", [-30.0, -3.0, 1.0, 3.0, 30.0])
def test_hosts_of_one_name_whose_calls_end_apart_do_not_share_a_clock(ahead_ms: float) -> None:
    """Containers on two nodes: by one clock some calls would have ended before they began, or nearly none together."""
    for lasts_ms in (2.0, 15.0):
        named, nameless = (
            match_and_align(stalled(name=name, ahead_ms=ahead_ms, lasts_ms=lasts_ms)).clocks for name in ("node", None)
        )
        assert named.offset_ns == nameless.offset_ns


@pytest.mark.parametrize(("scatter_ms", "shared"), [(6.0, True), (0.1, False)])
def test_ends_behind_a_slow_link_are_no_clock_but_those_one_distance_apart_are(
    scatter_ms: float, *, shared: bool
) -> None:
    """Calls of 100 ms whose end one rank sees 27 ms later, by about that or by just that."""
    random = np.random.default_rng(3)
    apart = [27 + random.uniform(-scatter_ms / 2, scatter_ms / 2) for _ in range(10)]
    run = job(
        {rank: [Met(start=at * 200, end=at * 200 + 100 + late * rank) for at, late in enumerate(apart)]
         for rank in range(2)},
        {"all": (0, 1)}, lasts=10 * 200, has_device=False,
    )  # fmt: skip
    named = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    offsets = match_and_align(named).clocks.offset_ns
    assert (offsets == {0: 0.0, 1: 0.0}) is shared


@pytest.mark.parametrize(
    ("late_ms", "shared"),
    [
        pytest.param((3.2, 5.3), True, id="two ends that do not agree show no clock"),
        pytest.param((3.2, 3.3), False, id="two that do"),
        pytest.param((3.2,), False, id="one alone"),
        pytest.param((30.0, 32.0), False, id="two far apart may be two machines"),
        pytest.param((3.2, 5.3, 3.3), False, id="two of three"),
    ],
)
def test_of_few_calls_only_ends_that_agree_contradict_the_name_of_a_host(
    late_ms: tuple[float, ...], *, shared: bool
) -> None:
    run = job(
        {rank: [Met(start=at * 200, end=at * 200 + 100 + late * rank) for at, late in enumerate(late_ms)]
         for rank in range(2)},
        {"all": (0, 1)}, lasts=len(late_ms) * 200, has_device=False,
    )  # fmt: skip
    named = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    assert (match_and_align(named).clocks.offset_ns == {0: 0.0, 1: 0.0}) is shared


def test_clocks_of_runs_with_a_device_are_known_from_ends_alone() -> None:
    assert match_and_align(stalled(has_device=True)).clocks.offset_ns != {0: 0.0, 1: 0.0}


def stages(
    *, ahead_ms: float = 0.0, took_ms: float = 0.2, answers: bool = True, name: str = "node", has_device: bool = False
) -> Run:
    """Return a pipeline of two stages that share no collective: a message there and one back every 20 ms; the clock of
    the second one is ahead."""
    sends = [(20 * at, 0, 1) for at in range(10)] + [(20 * at + 10, 1, 0) for at in range(10) if answers]
    calls: dict[int, list[dict[str, object]]] = {0: [], 1: []}
    for start, sender, receiver in sorted(sends):
        for op, rank, peer, begin in (("send", sender, receiver, start), ("recv", receiver, sender, start - 5)):
            ahead = EPOCH_NS + round(ahead_ms * MS) * rank
            times = {"start_ns": ahead + begin * MS, "end_ns": ahead + round((start + took_ms) * MS)}
            calls[rank].append({"op": op, "peer": peer, **times})
    ranks = {
        rank: rank_timeline(rank, calls=own, has_device=has_device, recorded={"host": name})
        for rank, own in calls.items()
    }
    return Run(world_size=2, ranks=ranks)


def test_stages_whose_messages_arrive_soon_both_ways_share_the_clock_of_the_host_they_name() -> None:
    assert match_and_align(stages()).clocks.comparable((0, 1))
    assert match_and_align(stages(has_device=True)).clocks.comparable((0, 1)), "devices leave a message together"
    for others in (
        stages(ahead_ms=3.0),  # a message back would have arrived before it was sent
        stages(ahead_ms=-3.0),
        stages(took_ms=4.0),  # so may clocks be apart
        stages(answers=False),
        stages(name="localhost"),
    ):
        assert not match_and_align(others).clocks.comparable((0, 1))


def test_messages_paired_in_another_order_do_not_void_the_clock_on_which_collectives_agree() -> None:
    """Rank 0 sends two messages in each round, and rank 1 waits for the second one first."""
    run = stalled()
    messages: dict[int, list[tuple[str, float, float]]] = {
        0: [("send", 9.0, 9.3), ("send", 14.0, 14.3)],
        1: [("recv", 8.2, 14.3), ("recv", 8.4, 9.3)],
    }
    ranks = {}
    for rank, timeline in run.ranks.items():
        of_all = {"op": "all_reduce", "group": "all", "group_size": 2, "dtype": "float32", "bytes": 1 << 20}
        met = timeline.collectives
        calls: list[Row] = [
            {**of_all, "start_ns": start, "end_ns": end}
            for start, end in zip(met.start_ns.tolist(), met.end_ns.tolist(), strict=True)
        ]
        for at in range(CALLS):
            for op, begin, end in messages[rank]:
                start_ns, end_ns = (EPOCH_NS + round((at * 20 + each) * MS) for each in (begin, end))
                calls.append({"op": op, "peer": 1 - rank, "start_ns": start_ns, "end_ns": end_ns})
        calls.sort(key=lambda call: int(call["start_ns"]))
        ranks[rank] = rank_timeline(rank, calls=calls, has_device=False, recorded={"host": "node"})
    found = match_and_align(replace(run, ranks=ranks))
    assert found.clocks.offset_ns == {0: 0.0, 1: 0.0}
    assert not found.clock_set


def test_ranks_of_one_name_that_nothing_connects_are_not_known_to_share_a_clock() -> None:
    two = stages()
    apart = {rank: replace(each, rank=rank + 2) for rank, each in stages().ranks.items()}
    moved = {}
    for rank, timeline in apart.items():
        calls = replace(timeline.collectives, peer=timeline.collectives.peer + 2)
        moved[rank + 2] = replace(timeline, collectives=calls)
    clocks = match_and_align(replace(two, world_size=4, ranks={**two.ranks, **moved})).clocks
    assert clocks.comparable((0, 1))
    assert clocks.comparable((2, 3))
    assert not clocks.comparable((1, 2))


@pytest.mark.parametrize(("ahead_ms", "shared"), [(0.0, True), (4.0, False)])
def test_ranks_that_end_together_in_pairs_share_a_clock_where_calls_end_together_between_the_pairs(
    ahead_ms: float, *, shared: bool
) -> None:
    """Two pairs on busy cores: all-reduces end anywhere, broadcasts mostly at one moment in each pair; sometimes at one
    moment on a rank of each, now on these, now on those."""
    random = np.random.default_rng(5)
    calls: dict[int, list[Met]] = {rank: [] for rank in range(4)}
    for at in range(16):
        pairs = [float(random.uniform(0, 25)) for _ in range(2)]
        lags = [pairs[rank // 2] for rank in range(4)]
        if at % 2 == 0:
            one, other = at // 2 % 2, 2 + at // 8
            lags[one] = lags[other] = 5.0
        for rank in range(4):
            begin, late = at * 100.0, float(random.uniform(0, 9))
            calls[rank] += [Met(start=begin, end=begin + 30 + late)]
            end = begin + 60 + lags[rank] + float(random.uniform(0, 0.05))
            calls[rank] += [Met(start=begin + 50, end=end, op="broadcast", volume=4)]
    run = job(calls, {"all": (0, 1, 2, 3)}, lasts=1600, has_device=False, clock=dict.fromkeys((2, 3), ahead_ms))
    run = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    found = match_and_align(run).clocks.offset_ns
    assert (found == dict.fromkeys(range(4), 0.0)) is shared


@pytest.mark.parametrize("third_ms", [0.0, 4.0])
def test_ranks_share_a_clock_with_all_that_end_together_with_one_that_does(third_ms: float) -> None:
    """Rank 0 ends together with rank 1, rank 1 with rank 2; 0 and 2 never do, as one of them is always late."""
    calls: dict[int, list[Met]] = {rank: [] for rank in range(3)}
    for at in range(12):
        late = (0.0, 0.0, 3.1 + at) if at % 2 else (7.3 + 2 * at, 0.0, 0.0)
        for rank in range(3):
            calls[rank] += [Met(start=at * 100.0, end=at * 100.0 + 30 + late[rank])]
    run = job(calls, {"all": (0, 1, 2)}, lasts=1200, has_device=False, clock={2: third_ms})
    run = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    assert (match_and_align(run).clocks.offset_ns == dict.fromkeys(range(3), 0.0)) is (third_ms == 0.0)


def test_ranks_that_share_no_call_need_not_end_together() -> None:
    calls = {rank: [Met(start=at * 100.0, end=at * 100.0 + 30, group=f"g{rank // 2}") for at in range(9)]
             for rank in range(4)}  # fmt: skip
    for rank in (1, 3):
        calls[rank] = [replace(each, end=each.end + 3.0 * (at % 3)) for at, each in enumerate(calls[rank])]
    run = job(calls, {"g0": (0, 1), "g1": (2, 3)}, lasts=900, has_device=False)
    run = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    found = match_and_align(run).clocks
    assert found.offset_ns == dict.fromkeys(range(4), 0.0)


@pytest.mark.parametrize("calls_each", [3, 30])
def test_two_hosts_of_one_name_have_two_clocks_though_some_of_their_ranks_meet_by_chance(calls_each: int) -> None:
    """Ends scatter on busy cores; two machines 2 ms apart, with two ranks each."""
    random = np.random.default_rng(calls_each)
    calls: dict[int, list[Met]] = {rank: [] for rank in range(4)}
    for at in range(calls_each):
        for rank in range(4):
            late = 0.0 if random.uniform() < 0.3 else float(random.exponential(3.0))
            calls[rank] += [Met(start=at * 100.0, end=at * 100.0 + 30 + late + float(random.uniform(0, 0.05)))]
    run = job(
        calls, {"all": (0, 1, 2, 3)}, lasts=100.0 * calls_each, has_device=False, clock=dict.fromkeys((2, 3), 2.0)
    )
    run = replace(run, ranks={rank: replace(each, recorded={"host": "node"}) for rank, each in run.ranks.items()})
    assert match_and_align(run).clocks.offset_ns != dict.fromkeys(range(4), 0.0)


AHEAD_MS = 18.0


def sessions(
    intervals_ms: list[float], *, ahead_ms: float, files: tuple[str, str] = ("a", "b"), seen_late: int = 0
) -> Run:
    """Return two ranks whose recordings, of these files, state one clock; the clock of rank 1 is ahead, and it sees so
    many ends late."""
    starts = np.cumsum([0.0, *intervals_ms]).tolist()
    late = [3.0 * (at < seen_late) for at in range(len(starts))]
    calls = {0: [Met(start=at, end=at + 1) for at in starts],
             1: [Met(start=at, end=at + 1 + more) for at, more in zip(starts, late, strict=True)]}  # fmt: skip
    run = job(calls, {"all": (0, 1)}, lasts=starts[-1] + 10, clock={1: ahead_ms})
    made = {}
    for rank, each in run.ranks.items():
        source = np.full(1, len(each.names), each.recordings.source.dtype)
        made[rank] = replace(
            each, names=(*each.names, files[rank]), recordings=replace(each.recordings, source=source),
            recorded={"clock": "session 1"},
        )  # fmt: skip
    return replace(run, ranks=made)


UNLIKE_MS = [5.0, 23.0, 31.0, 9.0, 12.0, 41.0, 7.0]


@pytest.mark.parametrize("ahead_ms", [AHEAD_MS, -1.0])
def test_recordings_that_name_one_clock_have_two_where_their_calls_end_one_distance_apart(ahead_ms: float) -> None:
    found = match_and_align(sessions(UNLIKE_MS, ahead_ms=ahead_ms))
    assert found.clocks.offset_ns == {0: 0.0, 1: ahead_ms * MS}
    assert any("one distance apart, as on several" in each for each in found.matching.reasons)
    assert (found.matching.unmatched, found.clocks.residual_ns) == (0, 0.0)


@pytest.mark.parametrize(
    "run",
    [
        sessions(UNLIKE_MS, ahead_ms=AHEAD_MS, files=("a", "a")),  # one file of one profiler
        sessions([20.0] * 7, ahead_ms=20.0),  # each call may be paired with the one before
        sessions(UNLIKE_MS, ahead_ms=0.1),
        sessions(UNLIKE_MS, ahead_ms=AHEAD_MS, seen_late=3),  # its ends are not seen when they are
        sessions(UNLIKE_MS[:2], ahead_ms=AHEAD_MS),
    ],
)
def test_a_clock_that_recordings_name_holds_where_calls_do_not_prove_another(run: Run) -> None:
    hosts = shared_clocks(run, match(run).blocks)
    assert hosts == {0: "session 1", 1: "session 1"}
    assert clock_reasons(run, hosts) == ()


def test_ranks_that_one_profiler_recorded_have_one_clock_whatever_their_calls_say() -> None:
    run = stalled(name=None, has_device=True, ahead_ms=3.0)
    assert match_and_align(run).clocks.offset_ns != {0: 0.0, 1: 0.0}
    together = replace(run, ranks={rank: replace(each, recorded={"clock": "x"}) for rank, each in run.ranks.items()})
    assert match_and_align(together).clocks.offset_ns == {0: 0.0, 1: 0.0}
    assert share_host_clock(together.ranks.values())
    apart = replace(run, ranks={rank: replace(each, recorded={"clock": f"{rank}"}) for rank, each in run.ranks.items()})
    assert match_and_align(apart).clocks.offset_ns == match_and_align(run).clocks.offset_ns
    assert not any(share_host_clock(each.ranks.values()) for each in (run, apart))


TURNS = 24
OF_ONE_SYSTEM = {0: (100, 104, 105), 1: (101, 106, 107)}


def in_turns(numbers: Mapping[int, Sequence[int]] = OF_ONE_SYSTEM, *, name: str = "node", apart_ms: float = 0.0) -> Run:
    """Return two ranks that take turns on one core: rank 0 sees a call's end when rank 1 has come to the next one.

    `numbers` are those of each rank's threads, the first one that of its process; with `apart_ms`, rank 0 sees each end
    so late instead.
    """
    random = np.random.default_rng(17)
    calls: dict[int, list[Met]] = {0: [], 1: []}
    computes: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    begin = {0: 2.4, 1: 0.0}
    for _ in range(TURNS):
        end = {1: begin[0] + 0.6}
        lasts = {rank: float(random.uniform(0.8, 3.5)) for rank in (0, 1)}
        end[0] = end[1] + (apart_ms or lasts[1] + 0.4)
        for rank in (0, 1):
            calls[rank].append(Met(start=begin[rank], end=end[rank]))
            begin[rank] = end[rank] + lasts[rank]
            computes[rank].append((end[rank], begin[rank]))
    run = job(calls, {"all": (0, 1)}, lasts=begin[0], has_device=False, computes=computes)
    ranks = {}
    for rank, each in run.ranks.items():
        code = len(each.names) + np.arange(3, dtype=np.int32)
        lanes = replace(each.lanes, kind=np.full(3, HOST, np.int8), process=np.repeat(code[:1], 3), label=code)
        named = (*each.names, *map(str, numbers[rank]))
        ranks[rank] = replace(each, names=named, lanes=lanes, recorded={"host": name})
    return replace(run, ranks=ranks)


def test_threads_that_one_system_numbered_have_one_clock_though_no_call_ends_together() -> None:
    found = match_and_align(in_turns())
    assert found.clocks.offset_ns == {0: 0.0, 1: 0.0}
    assert all(each.began_ns is not None for each in found.splits)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(in_turns({0: (100, 104, 105), 1: (100, 104, 105)}), id="each system begins with the same number"),
        pytest.param(in_turns({0: (100, 104, 105), 1: (101, 105, 106)}), id="one number is of both"),
        pytest.param(
            in_turns({0: (100, 104, 105), 1: (150, 154, 155)}), id="the second begins after the first's threads"
        ),
        pytest.param(in_turns({0: (100, 940, 941), 1: (150, 950, 951)}), id="processes begin far apart"),
        pytest.param(in_turns({0: (100, 1 << 40, 9 << 40), 1: (101, 2 << 40, 3 << 40)}), id="addresses"),
        pytest.param(in_turns(name="localhost"), id="no host is named"),
        pytest.param(in_turns(apart_ms=2.4), id="ends are one distance apart"),
    ],
)
def test_other_numbers_and_ends_one_distance_apart_show_no_common_clock(run: Run) -> None:
    assert match_and_align(run).clocks.offset_ns != {0: 0.0, 1: 0.0}


def test_ranks_in_turns_wait_until_the_last_one_comes_and_neither_is_late_for_a_reason_of_its_own() -> None:
    """The shortest duration holds a wait: the rank that comes last sees the end last, too."""
    run = in_turns()
    starts = {rank: each.collectives.start_ns for rank, each in run.ranks.items()}
    ends = {rank: each.collectives.end_ns for rank, each in run.ranks.items()}
    skew = analyze(run).skew
    waited = {each.rank: each.wait_ns - each.late_end_ns - each.start_of_recording_ns for each in skew.ranks}
    assert waited[0] == 0
    assert waited[1] + skew.ranks[1].start_of_recording_ns == int((starts[0] - starts[1]).sum())
    assert {each.rank: each.late_end_ns for each in skew.ranks} == {0: int((ends[0] - ends[1]).sum()), 1: 0}
    assert skew.stragglers == []
