"""Hosts of CPU runs that take turns on cores: made schedules, with what chance has counted by hand."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise, zip_longest

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.per_rank.host_runs import HostRuns
from overlapscope.analysis.result import Straggler
from overlapscope.analysis.stragglers.core_turns import Turns, _by_chance, _wanted
from overlapscope.analysis.stragglers.shared_cores import hosts_in_turns, shared_cores
from overlapscope.timeline.intervals import Intervals, difference, length
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.cpu_runs.scheduled_hosts import LENGTH, MS, Pairs, intervals, pairs_of, scheduled
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.stragglers.test_host_cause import with_operations
from tests.unit.analysis.stragglers.test_stragglers import CULPRIT, RANKS, STEP_NS, STEPS, accused, job

WHOLE = [(0, LENGTH)]


def runs(wanted: Pairs, ran: Pairs, stretch_ns: float = MS) -> HostRuns:
    """Return what a host did that computes only where it wants to run, and pauses there where it does not run."""
    return HostRuns(
        computing=intervals(wanted), ran=intervals(ran), wanted=intervals(wanted),
        paused=difference(intervals(wanted), intervals(ran)), stood_still=intervals([]), recorded_ns=LENGTH,
        stretch_ns=stretch_ns,
    )  # fmt: skip


def in_turns(hosts: Sequence[HostRuns]) -> list[Turns]:
    run = Run(world_size=len(hosts), ranks={rank: rank_timeline(rank) for rank in range(len(hosts))})
    return hosts_in_turns(run, dict(enumerate(hosts)), Clocks(tied=dict.fromkeys(range(len(hosts)), 0)))


def on_cores(hosts: int, cores: int) -> list[HostRuns]:
    """Return hosts that want to run all the time, on so many cores."""
    ran = [difference(intervals(WHOLE), intervals(each)) for each in scheduled(hosts, cores, hosts)]
    return [runs(WHOLE, pairs_of(each)) for each in ran]


def busy(number: int, seed: int) -> list[HostRuns]:
    """Return hosts with cores of their own, that run nearly always where they want to."""
    draw, made = random.Random(seed), []
    for _ in range(number):
        wanted = [(at, at + draw.randint(MS, 3 * MS)) for at in range(0, LENGTH, 4 * MS)]
        ran = [(begin, end - draw.randrange(MS)) for begin, end in wanted]
        made.append(replace(runs(wanted, ran), computing=intervals(WHOLE)))
    return made


def test_what_chance_has_is_worked_out_for_few_numbers_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the cube of the number of hosts for each."""
    asked = []

    def counted(hosts: Sequence[HostRuns], cores: int) -> float:
        asked.append(cores)
        return _by_chance(hosts, cores)

    monkeypatch.setattr("overlapscope.analysis.stragglers.core_turns._by_chance", counted)
    assert in_turns(busy(24, seed=1)) == []
    assert len(asked) <= 2
    assert in_turns(on_cores(8, 6))
    assert 6 in asked


@pytest.mark.parametrize("seed", range(5))
def test_no_number_of_cores_is_ruled_out_by_less_than_chance_has(seed: int) -> None:
    """Some hosts run always, some seldom."""
    draw = random.Random(seed)
    often = [runs(WHOLE, [(at, at + MS) for at in draw.sample(range(0, LENGTH, MS), n)]) for n in (5, 160, 390)]
    hosts = [*busy(4, seed), *often, runs(WHOLE, WHOLE)]
    most = _wanted(hosts)
    for cores in range(1, len(hosts)):
        assert most.beyond(cores) >= _by_chance(hosts, cores) * (1 - 1e-9)
        assert most.beyond(cores) <= LENGTH
    equal = [runs(WHOLE, [(0, LENGTH // 2)])] * 3
    assert _wanted(equal).beyond(2) == pytest.approx(LENGTH / 8)


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "cores"), [(2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (4, 3), (8, 6)])
def test_hosts_of_a_cpu_run_that_take_turns_share_so_many_cores(hosts: int, cores: int) -> None:
    """All compute all the time; with a core each more would run at once, as often as counted over all their subsets."""
    made = on_cores(hosts, cores)
    (one,) = in_turns(made)
    often = [length(each.ran) / LENGTH for each in made]
    by_chance = sum(
        np.prod([p if at in chosen else 1 - p for at, p in enumerate(often)])
        for number in range(cores + 1, hosts + 1)
        for chosen in combinations(range(hosts), number)
    )
    assert one.by_chance_ns == pytest.approx(LENGTH * by_chance)
    assert (one.ranks, one.cores, one.share, one.at_once_ns) == (tuple(range(hosts)), cores, 1.0, 0)
    assert one.waited_share == pytest.approx(1 - cores / hosts)


def test_the_finding_says_how_many_cores() -> None:
    (of_one,), (of_two,) = (
        shared_cores(Run(world_size=3, ranks={}), (), in_turns(on_cores(3, cores))) for cores in (1, 2)
    )
    assert of_one.title.startswith("no two of the 3 hosts of ranks 0-2 ran at once, though two or more computed 100")
    assert "they share one core" in of_one.title
    assert of_two.title.startswith("never more than 2 of the 3 hosts of ranks 0-2 ran at once, though more computed")
    assert "they share about 2 cores" in of_two.title
    assert [each.evidence["cores"] for each in (of_one, of_two)] == [1, 2]


def test_a_host_waits_for_a_core_where_it_pauses_while_others_compute_on_all() -> None:
    """The third one computes in the first half only: in the second half the pauses of the others are their own."""
    half = [(0, LENGTH // 2)]
    first, second, third = on_cores(3, 2)
    third = replace(third, **{
        name: Intervals(*(np.minimum(each, LENGTH // 2) for each in getattr(third, name))) for name in ("computing",)
    })  # fmt: skip
    (one,) = in_turns([first, second, third])
    for rank, own in enumerate((first, second)):
        outside = difference(one.waits[rank], intervals(half))
        assert length(outside) == 0
        assert length(one.waits[rank]) == length(own.paused) - length(difference(own.paused, intervals(half)))


def on_one_core(seed: int) -> list[HostRuns]:
    """Return two hosts that take turns of lengths drawn by chance."""
    draw, ends = random.Random(seed), [0]
    while ends[-1] < LENGTH:
        ends.append(min(ends[-1] + draw.randint(MS, 4 * MS), LENGTH))
    turns = list(pairwise(ends))
    return [runs(WHOLE, turns[first::2]) for first in (0, 1)]


def mixed(*groups: Sequence[HostRuns]) -> list[HostRuns]:
    """Return the hosts of several sets of cores, the first of each first."""
    return [each for together in zip_longest(*groups) for each in together if each is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "shared"),
    [
        pytest.param(mixed(on_cores(2, 1), busy(1, seed=3)), [((0, 2), 1)], id="two of three"),
        pytest.param(mixed(on_cores(2, 1), busy(4, seed=4)), [((0, 2), 1)], id="two of six"),
        pytest.param(mixed(on_one_core(1), on_one_core(2)), [((0, 2), 1), ((1, 3), 1)], id="two and two"),
        pytest.param(mixed(on_cores(3, 1), busy(2, seed=5)), [((0, 2, 4), 1)], id="three of five"),
        pytest.param(on_cores(4, 2), [((0, 1, 2, 3), 2)], id="any of four on any of two cores"),
        pytest.param(
            mixed(on_one_core(3), on_cores(3, 2)), [((0, 2), 1), ((1, 3, 4), 2)], id="two on one core, three on two"
        ),
        pytest.param(busy(6, seed=6), [], id="each on its own"),
    ],
)
def test_hosts_that_share_one_core_are_told_from_those_that_have_others(
    hosts: list[HostRuns], shared: list[tuple[tuple[int, ...], int]]
) -> None:
    assert [(each.ranks, each.cores) for each in in_turns(hosts)] == shared


def test_of_two_that_share_a_core_it_is_said_that_they_never_ran_at_once() -> None:
    (found,) = shared_cores(Run(world_size=3, ranks={}), (), in_turns(mixed(on_cores(2, 1), busy(1, seed=3))))
    assert found.title.startswith("the hosts of ranks 0 and 2 never ran at once, though both computed 100")
    assert "they share one core, and the scheduler can make either late" in found.title


@pytest.mark.parametrize("names", [("a", "b", None), ("a", None, "b")])
def test_hosts_of_machines_of_two_names_share_no_core(names: Sequence[str | None]) -> None:
    """Whatever they do, and though the clocks of all agree, and one rank's machine has no name."""
    hosts = on_cores(3, 1)
    run = Run(world_size=3, ranks={
        rank: replace(rank_timeline(rank), recorded={"host": name} if name else {}) for rank, name in enumerate(names)
    })  # fmt: skip
    clocks = Clocks(tied=dict.fromkeys(range(3), 0))
    assert hosts_in_turns(run, dict(enumerate(hosts)), clocks) == []
    assert [each.ranks for each in in_turns(hosts)] == [(0, 1, 2)]


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_hosts_of_a_cpu_run_with_cores_of_their_own_share_none(seed: int, hosts: int) -> None:
    """They pause often, each by itself."""
    draw = random.Random(seed)
    own = [[(at, at + MS) for at in draw.sample(range(0, LENGTH, MS), 160)] for _ in range(hosts)]
    assert in_turns([runs(WHOLE, each) for each in own]) == []


def test_hosts_that_compute_one_after_the_other_take_no_turns() -> None:
    """Stages of a pipeline never run at once either, but neither do they want to."""
    first = [(at, at + 10 * MS) for at in range(0, LENGTH, 20 * MS)]
    second = [(at + 10 * MS, at + 20 * MS) for at, _ in first]
    assert in_turns([runs(first, first), runs(second, second)]) == []


def test_hosts_that_do_little_and_much_in_turn_take_no_turns() -> None:
    """Both compute all the time. Of long operations nothing is known: what is short alone shows that a host runs."""
    little = [(at, at + 10 * MS) for at in range(0, LENGTH, 20 * MS)]
    much = [(at + 10 * MS, at + 20 * MS) for at, _ in little]
    assert in_turns([replace(runs(each, each), computing=intervals(WHOLE)) for each in (little, much)]) == []


def test_hosts_that_miss_each_other_in_each_micro_batch_anew_take_no_turns() -> None:
    """Two stages of a pipeline, each with small operations for 5 ms of 25 ms, the second one always 20 ms later."""
    long = 25 * LENGTH
    each = [[(at + lag, at + lag + 5 * MS) for at in range(0, long, 25 * MS)] for lag in (0, 20 * MS)]
    hosts = [replace(runs([(0, long)], ran, 5 * MS), recorded_ns=long) for ran in each]
    assert in_turns(hosts) == []


@pytest.mark.slow
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
    rare = [[(at + shift, at + shift + MS) for at in range(0, LENGTH, 20 * MS)] for shift in (0, 10 * MS)]
    assert in_turns([runs(WHOLE, each) for each in rare]) == []


def test_two_meetings_missed_by_a_host_that_runs_nearly_always_show_no_turns() -> None:
    """It would seldom pause twice just when the other one runs; but twice is not often."""
    pauses = [(at, at + 1_200_000) for at in (100 * MS, 300 * MS)]
    often = runs(WHOLE, pairs_of(difference(intervals(WHOLE), intervals(pauses))), 133 * MS)
    assert in_turns([often, runs(WHOLE, [(at + 100_000, at + 1_100_000) for at, _ in pauses])]) == []


def test_turns_in_a_small_part_of_a_recording_are_not_reported() -> None:
    for longer, found in ((30, 1), (40, 0)):  # all compute for a 30th of it, or a 40th
        assert len(in_turns([replace(each, recorded_ns=longer * LENGTH) for each in on_cores(2, 1)])) == found


def late_on_shared_cores(
    monkeypatch: pytest.MonkeyPatch, run: Run, waited_ns: Mapping[int, int]
) -> list[Straggler]:  # fmt: skip
    """Return the stragglers of a CPU run of which each rank waited for a core so long in each step."""
    waits = {
        rank: intervals([(step * STEP_NS, step * STEP_NS + waited_ns.get(rank, 0)) for step in range(STEPS)])
        for rank in range(RANKS)
    }
    (turns,) = in_turns(on_cores(2, 1))
    monkeypatch.setattr(
        "overlapscope.analysis.late_ranks.hosts_in_turns",
        lambda *_: [replace(turns, ranks=tuple(range(RANKS)), waits=waits)],
    )
    return accused(run)


@pytest.mark.slow
def test_a_rank_that_computes_longer_for_lack_of_a_core_is_no_straggler(monkeypatch: pytest.MonkeyPatch) -> None:
    late = with_operations(job(fault="slower_compute"))
    (named,) = late_on_shared_cores(monkeypatch, late, {})
    assert (named.rank, named.held_by) == (CULPRIT, "longer_compute")
    longer = named.evidence["compute_ns"] - named.evidence["peers_compute_ns"]
    most = round(0.9 * longer / STEPS)
    assert late_on_shared_cores(monkeypatch, late, {CULPRIT: most}) == []


def test_a_rank_that_waits_for_a_core_as_long_as_its_peers_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = with_operations(job(fault="slower_compute"))
    everybody = dict.fromkeys(range(RANKS), 20 * MS)
    assert [each.rank for each in late_on_shared_cores(monkeypatch, late, everybody)] == [CULPRIT]


def test_a_rank_that_made_more_calls_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = with_operations(job(fault="slower_compute"), later=100)
    assert [each.rank for each in late_on_shared_cores(monkeypatch, late, {CULPRIT: 90 * MS})] == [CULPRIT]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "others", "held_by"),
    [
        pytest.param(0.9, 0.0, "paused", id="nearly all that it computed longer"),
        pytest.param(0.9, 0.3, "paused", id="three times as long as its peers"),
        pytest.param(0.3, 0.0, "longer_compute", id="less than half of it"),
        pytest.param(1.5, 0.9, "longer_compute", id="less than twice as long as its peers"),
    ],
)
def test_a_rank_that_stood_still_in_operations_did_not_compute_longer(
    monkeypatch: pytest.MonkeyPatch, own: float, others: float, held_by: str
) -> None:
    """Shares of what it computed longer than its peers, in each step."""
    run = with_operations(job(fault="slower_compute"))
    (named,) = accused(run)
    longer = (named.evidence["compute_ns"] - named.evidence["peers_compute_ns"]) / STEPS

    def paused(timeline: RankTimeline, _: object) -> HostRuns:
        lasts = round(longer * (own if timeline.rank == CULPRIT else others))
        pauses = [(step * STEP_NS, step * STEP_NS + lasts) for step in range(STEPS)]
        return replace(runs([(0, LENGTH)], [(0, LENGTH)]), stood_still=intervals(pauses))

    monkeypatch.setattr("overlapscope.analysis.per_rank.host_runs.host_runs", paused)
    assert [(each.rank, each.held_by) for each in accused(run)] == [(CULPRIT, held_by)]


def test_a_rank_that_made_other_calls_than_its_peers_was_not_merely_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_operations(job(fault="slower_compute"), later=100)
    pauses = replace(runs([(0, LENGTH)], [(0, LENGTH)]), stood_still=intervals([(0, STEPS * STEP_NS)]))
    nothing = replace(pauses, stood_still=intervals([]))
    monkeypatch.setattr(
        "overlapscope.analysis.per_rank.host_runs.host_runs",
        lambda timeline, _: pauses if timeline.rank == CULPRIT else nothing,
    )
    assert [(each.rank, each.held_by) for each in accused(run)] == [(CULPRIT, "longer_compute")]
