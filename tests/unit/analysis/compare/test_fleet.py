"""Fleets: probabilities against brute force, who is named and who is not, the trend of a job, the order of runs."""

from collections.abc import Sequence
from itertools import combinations, permutations, product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.compare import fleet as its
from overlapscope.analysis.compare.fleet import FleetRun, FleetStraggler, fleet, job_trends, straggling_hosts
from overlapscope.report.sheet.fleet import RUN_HEAD, lead, run_row

DAY_NS = 86_400 * 10**9


def run(
    name: str = "run",
    *,
    job: str = "job",
    hosts: str = "",
    accused: str = "",
    rank_of: dict[str, int] | None = None,
    exposed: int | None = None,
    step: int | None = None,
    hours: float | None = None,
    began: int | None = None,
    ranks_each: int = 1,
) -> FleetRun:
    """Return a run on hosts a, b, ... (one letter each), of which some are accused."""
    placed = {host: [at * ranks_each + each for each in range(ranks_each)] for at, host in enumerate(hosts)}
    for host, rank in (rank_of or {}).items():
        placed[host] = [rank]
    return FleetRun(
        name=name, job=job, started_ns=None if began is None else began * DAY_NS, world_size=len(hosts) * ranks_each,
        ranks=len(hosts) * ranks_each, steps=8, step_ns=step, exposed_ns=exposed, exposed_fraction=None,
        exposed_gpu_hours_a_day=hours, hosts=placed,
        stragglers=[FleetStraggler(rank=placed[host][0], host=host, held_by="host", step_ns=10) for host in accused],
    )  # fmt: skip


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(0, 9))
def test_the_tail_is_that_of_all_outcomes_counted(chances: list[float], at_least: int) -> None:
    counted = sum(
        prod(chance if happens else 1 - chance for chance, happens in zip(chances, outcome, strict=True))
        for outcome in product((False, True), repeat=len(chances))
        if sum(outcome) >= at_least
    )
    assert its.tail(chances, at_least) == pytest.approx(counted, abs=1e-12)


def drawn(ranks: Sequence[int], number: int, accused: int, host: int) -> float:
    """Return in how many of all ways to draw so many ranks of so many hosts one is of this host."""
    host_of = [at for at, each in enumerate(ranks) for _ in range(each)]
    ways = [{host_of[rank] for rank in way} for way in combinations(range(len(host_of)), number)]
    ways = [way for way in ways if len(way) == accused]
    return sum(host in way for way in ways) / len(ways) if ways else 1.0


@pytest.mark.parametrize(
    ("ranks", "accused", "late"),
    [((8, 4), 1, 2), ((8, 4), 1, 5), ((3, 1), 1, 2), ((4, 4, 2), 1, 3), ((4, 4, 2), 2, 4), ((5, 3, 2, 1), 2, 4),
     ((1, 1, 1, 6), 3, 5), ((4, 4, 3, 1), 2, 2), ((2, 2, 2), 2, 3)],
)  # fmt: skip
def test_the_chance_of_a_host_is_of_all_ways_to_draw_ranks_and_the_highest_of_them(
    ranks: tuple[int, ...], accused: int, late: int
) -> None:
    chances = its.accusation_chances({str(at): each for at, each in enumerate(ranks)}, accused, late)
    numbers = range(accused, late + 1)
    for at, own in enumerate(ranks):
        counted = [drawn(ranks, number, accused, at) for number in numbers]
        assert its.drawn_chances(tuple(sorted(ranks)), own, accused, late) == pytest.approx(counted)
        highest = accused / len(ranks) if len(set(ranks)) == 1 else max(accused / len(ranks), *counted)
        assert chances[str(at)] == pytest.approx(highest)


def test_two_stragglers_on_one_of_two_unequal_hosts_are_mostly_on_the_larger() -> None:
    assert its.accusation_chances({"a": 8, "b": 4}, 1, 2)["a"] == pytest.approx(28 / 34)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_of_healthy_fleets_on_unequal_hosts_with_several_stragglers_few_have_a_host_named(together: bool) -> None:
    placed = {"a": list(range(8)), "b": list(range(8, 12))}
    host_of = {rank: host for host, ranks in placed.items() for rank in ranks}
    named = 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 500])
        runs = []
        for at in range(40):
            late = rng.choice(12, 2, replace=False).tolist()
            if together:  # of a host drawn at random, several ranks at once
                late = placed[str(rng.choice(["a", "b"]))][: rng.integers(1, 5)]
            late = [FleetStraggler(rank=rank, host=host_of[rank], held_by="host", step_ns=10) for rank in late]
            runs.append(replace(run(f"r{at}"), hosts=placed, stragglers=late))
        named += bool(straggling_hosts(runs).straggling)
    assert named <= 0.05 * 300 + 2 * (300 * 0.05 * 0.95) ** 0.5


def test_the_probability_of_a_host_is_that_of_all_ways_to_accuse_as_many_hosts_of_each_run() -> None:
    runs = [
        run("r1", hosts="abc", accused="a"),
        run("r2", hosts="abcd", accused="ab"),
        run("r3", hosts="bd", accused="b"),
        run("r4", hosts="acd", accused="a"),
        run("r5", hosts="ab", accused="ab"),  # all of them: says nothing
        run("r6", hosts="ab"),
    ]
    telling = runs[:4]
    ways = [list(combinations(each.hosts, len(its.accused_hosts(each)))) for each in telling]
    everything = list(product(*ways))
    as_often = sum(sum("a" in chosen for chosen in way) >= 3 for way in everything)
    seen = [its.accusation_chances(dict.fromkeys(each.hosts, 1), *[len(its.accused_hosts(each))] * 2)["a"]
            for each in telling if "a" in each.hosts]  # fmt: skip
    assert its.tail(seen, 3) == pytest.approx(as_often / len(everything))
    found = straggling_hosts(runs)
    assert (found.known_runs, found.telling_runs, found.tested) == (6, 4, 4)


@given(st.lists(st.integers(0, 20), min_size=5, max_size=6))
def test_the_probability_of_a_trend_is_that_of_all_orders(values: list[int]) -> None:
    def rising(order: Sequence[int]) -> int:
        return sum(a < b for a, b in combinations(order, 2))

    found = its.trend(values)
    assert found is not None
    most = max(rising(values), rising(values[::-1]))
    by_order = sum(rising(order) >= most for order in permutations(range(len(values)))) / factorial(len(values))
    assert found.p == pytest.approx(min(1.0, 2 * by_order))
    slopes = sorted((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2))
    middle = len(slopes) // 2
    assert found.run_ns == pytest.approx(
        slopes[middle] if len(slopes) % 2 else sum(slopes[middle - 1 : middle + 1]) / 2
    )


@given(st.dictionaries(st.integers(), st.floats(0, 1), max_size=6))
def test_corrected_probabilities_are_those_of_holm(chances: dict[int, float]) -> None:
    order = sorted(chances.values())
    for key, corrected in its.holm(chances).items():
        below = [min(1.0, (len(order) - at) * p) for at, p in enumerate(order) if p <= chances[key]]
        first = [min(1.0, (len(order) - at) * p) for at, p in enumerate(order) if p < chances[key]]
        assert max(first, default=0.0) <= corrected <= max(below)
        assert corrected >= chances[key]


def test_the_chance_of_the_same_ranks_is_that_of_all_ways_to_choose_the_accusing_runs() -> None:
    holders = "aabbbc"
    accusing = (0, 1, 4)
    runs = [run(f"r{at}", hosts=f"{host}x", accused=host if at in accusing else "") for at, host in enumerate(holders)]
    ways = list(combinations(range(len(holders)), len(accusing)))
    for host, accused in (("a", 2), ("b", 1)):
        as_often = sum(sum(holders[at] == host for at in way) >= accused for way in ways)
        assert its.same_ranks_chance(host, runs) == pytest.approx(as_often / len(ways))


def test_beginning_lately_is_judged_by_all_orders() -> None:
    ways = list(combinations(range(7), 3))
    assert its.began_lately(7, 4, 3) == pytest.approx(sum(min(way) >= 3 for way in ways) / len(ways))


def fleet_of(accused: Sequence[str], hosts: Sequence[str]) -> list[FleetRun]:
    return [run(f"r{at:02d}", hosts=there, accused=late, began=at)
            for at, (there, late) in enumerate(zip(hosts, accused, strict=True))]  # fmt: skip


HOSTS = ("abcd", "bdef", "acef", "abef", "bcde", "adef", "abce", "bcdf", "acdf", "abde", "abcf", "bcef")


def test_a_host_that_is_accused_wherever_it_runs_is_named_and_nobody_else() -> None:
    late = ["a" if "a" in hosts else "" for hosts in HOSTS]
    found = fleet(fleet_of(late, HOSTS)).hosts.straggling
    assert [each.host for each in found] == ["a"]
    assert found[0].p == pytest.approx(0.25**8)
    assert (found[0].accused, found[0].runs) == (8, 8)
    assert found[0].expected == pytest.approx(2)
    assert (found[0].step_ns, found[0].held_by) == (10, {"host": 8})
    assert found[0].p_corrected == pytest.approx(6 * found[0].p)
    assert (found[0].new, found[0].since_ns) == (False, None)
    without = straggling_hosts([replace(each, started_ns=None) for each in fleet_of(late, HOSTS)])
    assert without.straggling[0].new is None


def test_hosts_that_are_accused_in_turn_are_not_named() -> None:
    late = [hosts[at % 4] for at, hosts in enumerate(HOSTS)]
    assert fleet(fleet_of(late, HOSTS)).hosts.straggling == []


def allotted(seed: int, bad: str = "") -> list[FleetRun]:
    """Return 30 runs on hosts drawn at random, half of them with a straggler; the bad host mostly is one."""
    rng = np.random.default_rng([seed, 400])
    runs = []
    for at in range(30):
        hosts = "".join(rng.choice(list("abcdefghijklmnopqrst"), rng.choice((4, 8)), replace=False))
        own = str(rng.choice(list(hosts))) if rng.random() < 0.5 else ""
        late = bad if bad in hosts and rng.random() < 0.8 else own
        runs.append(run(f"r{at:02d}", hosts=hosts, accused=late, began=at))
    return runs


@pytest.mark.slow
def test_of_many_healthy_fleets_few_have_a_host_named_and_a_bad_host_is_named_in_most() -> None:
    healthy = [straggling_hosts(allotted(seed)).straggling for seed in range(200)]
    assert sum(map(bool, healthy)) <= 0.05 * len(healthy)
    planted = [[each.host for each in straggling_hosts(allotted(seed, "c")).straggling] for seed in range(100)]
    assert sum("c" in named for named in planted) >= 75
    assert sum(bool(set(named) - {"c"}) for named in planted) <= 5


def test_a_host_that_begins_to_straggle_is_new_and_without_times_that_is_not_known() -> None:
    hosts = HOSTS * 2
    late = ["a" if "a" in there and at >= 12 else "" for at, there in enumerate(hosts)]
    runs = fleet_of(late, hosts)
    found = straggling_hosts(runs).straggling[0]
    assert (found.new, found.since_ns) == (True, 12 * DAY_NS)
    assert found.accusing[0] == "r12"
    without = straggling_hosts([replace(each, started_ns=None) for each in runs]).straggling[0]
    assert (without.new, without.since_ns) == (None, None)


def test_a_rank_that_is_always_on_one_host_may_be_late_for_its_role() -> None:
    stuck = [run(f"r{at}", hosts="abcd", accused="a", began=at) for at in range(8)]
    found = straggling_hosts(stuck).straggling[0]
    assert (found.host, found.ranks, found.ranks_p, found.apart_from_ranks) == ("a", [0], 1.0, False)
    moved = [run(f"m{at}", hosts="bacd", began=at) for at in range(8, 14)]
    assert straggling_hosts([*stuck, *moved]).straggling[0].apart_from_ranks


def test_runs_without_two_known_hosts_say_nothing_of_hosts() -> None:
    found = straggling_hosts([run(f"r{at}", hosts="a", accused="a") for at in range(20)])
    assert (found.known_runs, found.tested, found.straggling) == (0, 0, [])


def test_runs_that_set_no_host_apart_say_so_and_others_how_many_were_compared() -> None:
    unclear = "Hosts that straggle beyond chance: n/a, no run sets some of its hosts apart."
    assert unclear in lead(fleet([run("a", hosts="ab"), run("b", hosts="ab", accused="ab")], []))
    compared = lead(fleet([run(str(at), hosts="ab", accused="ab"[at % 2]) for at in range(6)], []))
    assert "No host straggles beyond chance." in compared
    unknown = lead(fleet([run("a"), run("b")], []))
    assert not any("straggle" in each for each in (*unknown, *(each for each in compared if each == unclear)))


def test_the_table_of_runs_has_tokens_a_second_where_they_are_known() -> None:
    at = RUN_HEAD.index("tokens/s")
    assert run_row(replace(run("a"), tokens_per_s=12_345.6))[at] == "12,346"
    assert run_row(run("b"))[at] == "n/a"
    assert len(run_row(run("b"))) == len(RUN_HEAD)


def test_the_worst_run_is_first_by_gpu_hours_then_by_exposed_time() -> None:
    runs = [run("cpu", exposed=9), run("small", hours=1.0, exposed=50), run("none"), run("large", hours=7.0, exposed=1),
            run("cpu, worse", exposed=20)]  # fmt: skip
    assert [each.name for each in fleet(runs).runs] == ["large", "small", "cpu, worse", "cpu", "none"]


def test_a_job_that_grows_is_named_and_comes_first() -> None:
    grows = [run(f"a-{at}", job="a", began=at, exposed=100 + 10 * at, step=1000) for at in range(8)]
    steady = [run(f"b-{at}", job="b", began=at, exposed=100 + 7 * at % 5, step=1000 - at) for at in range(8)]
    found = job_trends([*steady, *reversed(grows)])
    assert [each.job for each in found] == ["a", "b"]
    grown, kept = found[0].exposed, found[1].exposed
    assert grown is not None
    assert kept is not None
    assert (grown.verdict, grown.first_ns, grown.last_ns, grown.run_ns) == ("growing", 100, 170, 10)
    assert kept.verdict == "none"
    assert found[1].step is not None
    assert found[1].step.verdict == "falling"


def test_world_sizes_are_series_of_their_own_and_few_runs_have_no_trend() -> None:
    runs = [replace(run(f"a-{at}", job="a", began=at, exposed=at), world_size=at // 4) for at in range(8)]
    assert [(each.world_size, len(each.runs), each.exposed) for each in job_trends(runs)] == [
        (0, 4, None),
        (1, 4, None),
    ]


def test_jobs_are_by_name_then_world_size_and_two_runs_are_a_series() -> None:
    alone = run("z-0", job="z")
    sizes = [
        replace(run(f"{job}-{at}-{size}", job=job), world_size=size) for size in (8, 4) for job in "ba" for at in (0, 1)
    ]
    found = fleet([alone, *sizes], ["why"])
    assert [(each.job, each.world_size) for each in found.jobs] == [("a", 4), ("a", 8), ("b", 4), ("b", 8)]
    assert [each.ordered_by for each in found.jobs] == ["name"] * 4
    assert found.left_out == ["why"]


def test_runs_are_in_the_order_of_time_whatever_their_names() -> None:
    ordered, by = its.in_order([run("a", began=3), run("b", began=1), run("c", began=2)])
    assert ([each.name for each in ordered], by) == (["b", "c", "a"], "time")


def test_without_times_runs_are_in_the_order_of_the_numbers_in_their_names() -> None:
    runs = [run(name) for name in ("run-10", "run-9", "run-9b")]
    ordered, by = its.in_order(runs)
    assert ([each.name for each in ordered], by) == (["run-9", "run-9b", "run-10"], "name")


@pytest.mark.parametrize("number", [2, 5, 40, its.MAX_TREND_RUNS])
def test_probabilities_of_orders_stay_probabilities(number: int) -> None:
    most = number * (number - 1) // 2
    assert its.pairs_tail(number, 0) == pytest.approx(1)
    assert its.pairs_tail(number, most) >= 0
    assert its.pairs_tail(number, most // 2) > 0.45


@pytest.mark.parametrize("number", [5, 50, 100])
def test_small_probabilities_of_orders_are_exact(number: int) -> None:
    most = number * (number - 1) // 2
    assert its.pairs_tail(number, most) == pytest.approx(1 / factorial(number), rel=1e-9)
    assert its.pairs_tail(number, most - 1) == pytest.approx(number / factorial(number), rel=1e-9)
    found = its.trend(range(number))
    assert found is not None
    assert 0 < found.p < 0.05


def test_copies_of_a_run_count_once_for_hosts_and_trends() -> None:
    runs = [run(f"r{at}", hosts="abcd", accused="a", began=at, exposed=at, step=100) for at in range(3)]
    saved = [replace(each, name=f"saved/{each.name}-{at}", job=f"job{at}") for each in runs for at in range(3)]
    beside = [replace(each, name=f"{each.name} again") for each in runs]
    found = fleet([*runs, *saved, *beside])
    assert len(found.runs) == 15
    assert found.copies == [each.name for each in (*saved, *beside)]
    assert found.hosts == fleet(runs).hosts
    assert found.hosts.telling_runs == 3
    assert found.jobs[0] == fleet(runs).jobs[0]
    unknown = [replace(each, started_ns=None) for each in (*runs, *beside)]
    assert fleet(unknown).copies == []
