"""When the host of a CPU run certainly ran and paused, by its calls: counted by hand, and on made schedules."""

from collections.abc import Sequence

import numpy as np
import pytest

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_runs import HostRuns, host_runs
from overlapscope.analysis.stragglers.core_turns import taking_turns
from overlapscope.timeline.intervals import length
from tests.support.cpu_runs.scheduled_hosts import LENGTH, MS, Pairs, operations_on_cores, pairs_of
from tests.support.rank_rows import rank_timeline

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))


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


def of_operations(steps: Sequence[Pairs], *, waits: Pairs = ()) -> HostRuns:
    """Return what a host did that computes in the operations of these steps, on one thread, and waits in others."""
    operations = [each for step in steps for each in step]
    calls = [{"name": "aten::mm", "start_ns": start, "end_ns": end} for start, end in operations]
    calls += [{"name": "c10d::barrier", "start_ns": start, "end_ns": end} for start, end in waits]
    work = [{"start_ns": start, "end_ns": end, "name": "host operations"} for start, end in operations]
    timeline = rank_timeline(
        work=work, host=[{"lane": 0, **each} for each in sorted(calls, key=lambda each: each["start_ns"])],
        steps=[{"step": at, "start_ns": own[0][0], "end_ns": own[-1][1] + 1} for at, own in enumerate(steps)],
        recordings=[{"start_ns": 0, "end_ns": LENGTH, "host_events": True}], has_device=False,
    )  # fmt: skip
    own = host_runs(timeline, Coverage.of(timeline.spans))
    assert own
    return own


def test_a_host_ran_through_operations_that_are_shorter_than_a_turn() -> None:
    short, longer, long = (0, 800_000), (10 * MS, 10 * MS + 1_600_000), (20 * MS, 26 * MS)
    own = of_operations([[short, longer, long]], waits=[(40 * MS, 40 * MS + 800_000)])
    assert pairs_of(own.ran) == [(100_000, 700_000)]
    assert pairs_of(own.wanted) == pairs_of(own.ran)  # of one step it is not known what it needs usually
    assert pairs_of(own.paused) == []


def steps_with(took_ns: Sequence[int]) -> list[Pairs]:
    """Return steps of a short operation, one that takes so long, and a long one; 5 ms lie between two of them."""
    made = []
    for at, took in enumerate(took_ns):
        begin = at * 50 * MS
        end = begin + 6 * MS + took
        made.append([(begin, begin + 800_000), (begin + 6 * MS, end), (end + 5 * MS, end + 15 * MS)])
    return made


def test_what_is_usually_short_and_took_a_turn_longer_is_a_pause() -> None:
    """It wanted to run all the while; when it paused in it is not known, and is counted at the end."""
    own = of_operations(steps_with([800_000, 800_000, 5 * MS]))
    assert pairs_of(own.wanted)[-1] == (106 * MS + 100_000, 111 * MS - 100_000)
    assert len(pairs_of(own.wanted)) == len(pairs_of(own.ran)) + 1
    assert pairs_of(own.paused) == [(106 * MS + 800_000, 111 * MS)]
    assert own.usual_ns == 800_000 + 800_000 + 10 * MS
    assert of_operations(steps_with([800_000, 5 * MS])).usual_ns == 0, "of two steps it is not known"


@pytest.mark.parametrize(
    ("took_ns", "paused"),
    [
        pytest.param([800_000, 5 * MS], 0, id="two steps do not show what is usual"),
        pytest.param([800_000, 800_000, 1_700_000], 0, id="less than a turn longer"),
        pytest.param([900_000, 900_000, 2_600_000], 1_700_000, id="it may be slowed"),
        pytest.param([2 * MS, 2 * MS, 9 * MS], 7 * MS, id="not certainly running otherwise"),
    ],
)
def test_else_it_did_not_certainly_want_to_run(took_ns: Sequence[int], paused: int) -> None:
    own = of_operations(steps_with(took_ns))
    assert pairs_of(own.wanted) == pairs_of(own.ran)
    assert length(own.paused) == paused


@pytest.mark.parametrize(("took_ns", "stretches"), [(690_000, 3), (710_000, 4)])
def test_what_took_three_times_as_long_does_not_show_that_a_host_ran(took_ns: int, stretches: int) -> None:
    """Nor that it paused: it needs 200 us, and three times that and 100 us may be a turn that was cut short."""
    steps = []
    for at, took in enumerate((200_000, 200_000, took_ns)):
        first = at * 50 * MS + 600_000
        last = first + took
        steps.append([(first - 600_000, first), (first, last), (last, last + 600_000)])
    own = of_operations(steps)
    assert len(pairs_of(own.ran)) == len(pairs_of(own.wanted)) == stretches
    assert pairs_of(own.paused) == []


@pytest.mark.parametrize(
    ("last", "stood"),
    [
        pytest.param((4, 10, 4), 6, id="one operation of three"),
        pytest.param((8, 8, 8), 0, id="a larger batch"),
        pytest.param((4, 8, 8), 0, id="most of the step"),
    ],
)
def test_a_host_stands_still_only_in_a_step_that_else_takes_what_it_usually_takes(
    last: tuple[int, ...], stood: int
) -> None:
    steps = []
    for at, took_ms in enumerate([(4, 4, 4)] * 3 + [last]):
        ends = np.cumsum(took_ms) * MS + at * 50 * MS
        begins = np.append(at * 50 * MS, ends[:-1])
        first = (at * 50 * MS - 600_000, at * 50 * MS - 100_000)  # short: it certainly ran
        steps.append([first, *zip((begins + 1).tolist(), ends.tolist(), strict=True)])
    own = of_operations(steps)
    assert round(length(own.stood_still) / MS) == stood
    assert round(length(own.paused) / MS) == sum(last) - 12


def test_steps_that_make_other_calls_are_not_compared() -> None:
    *usual, last = steps_with([800_000, 800_000, 5 * MS])
    assert of_operations([*usual, [*last, (142 * MS, 142 * MS + 800_000)]]).paused.starts.size == 0


def test_a_longer_time_between_operations_is_no_pause() -> None:
    """It may wait there."""
    *usual, last = steps_with([800_000, 800_000, 800_000])
    later = [last[0], *((start + 4 * MS, end + 4 * MS) for start, end in last[1:])]
    assert of_operations([*usual, later]).paused.starts.size == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("hosts", "cores"), [(2, 1), (3, 2), (4, 2)])
def test_operations_of_hosts_that_share_cores_show_how_many(seed: int, hosts: int, cores: int) -> None:
    def found(cores: int) -> int | None:
        made = operations_on_cores(hosts, cores, seed, most_ns=5 * MS)
        turns = taking_turns(dict(enumerate(map(of_operations, made))))
        return turns and turns.cores

    assert found(cores) == cores
    assert found(hosts) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slowed", [1.3, 1.7, 2.0])
def test_operations_that_are_short_only_alone_show_no_turns(seed: int, slowed: float) -> None:
    """As hosts make them that share a memory, or the halves of a core."""
    made = operations_on_cores(2, 2, seed, slowed=slowed)
    assert not taking_turns(dict(enumerate(map(of_operations, made))))


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
