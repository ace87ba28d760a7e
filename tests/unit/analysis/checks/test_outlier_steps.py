"""Outlier steps, of one rank and of many."""

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.checks.outlier_steps import MAX_RANKS, MAX_STEPS, outlier_steps

MS = 1_000_000
Row = tuple[int, int | None, int | None, int | None, int | None]


def rank_with(step: int | None, *, steps: int = 8, odd_ms: int = 300) -> list[Row]:
    """Return (number, window, communication, compute, idle) of a rank's steps, one of which is long."""
    return [(at, (odd_ms if at == step else 100) * MS, 10 * MS, 80 * MS, None) for at in range(steps)]


def ids(ranks: dict[int, list[Row]]) -> list[str]:
    return [each.id for each in outlier_steps(ranks, dict.fromkeys(ranks, "trace"))]


def test_a_step_of_one_rank_is_named_with_that_rank() -> None:
    (found,) = outlier_steps({0: rank_with(None), 1: rank_with(6)}, {0: "trace", 1: "events"})
    assert found.id == "odd_step:window_ns:rank1:step6"
    assert found.title == "step 6 of rank 1 takes 300.000 ms, 3.0 times the median of the other steps (100.000 ms)"
    assert found.evidence == {"rank": 1, "step": 6, "window_ns": 300 * MS, "median_of_others_ns": 100 * MS}
    assert found.known_from == "events"


def test_a_step_that_stands_out_on_all_of_256_ranks_is_one_finding_that_names_the_worst() -> None:
    ranks = {rank: rank_with(3, odd_ms=300 + (rank == 17) * 50) for rank in range(256)}
    (found,) = outlier_steps(ranks, dict.fromkeys(ranks, "trace"))
    assert found.id == "odd_step:window_ns:step3"
    assert found.title == (
        "step 3 is an outlier on 256 ranks (0, 1, 2, 3, 4, 5, 6, 7 and 248 more): on rank 17, the worst, it takes "
        "350.000 ms, 3.5 times the median of the other steps (100.000 ms)"
    )
    assert found.evidence["rank"] == 17
    assert found.evidence["ranks_in_all"] == 256
    assert found.evidence["ranks"] == list(range(MAX_RANKS))


def test_steps_that_stand_out_on_a_rank_each_are_bounded_and_counted() -> None:
    ranks = {rank: rank_with(rank, steps=40, odd_ms=200 + rank) for rank in range(40)}
    found = outlier_steps(ranks, dict.fromkeys(ranks, "trace"))
    assert len(found) == MAX_STEPS + 1
    assert [each.evidence["rank"] for each in found[:MAX_STEPS]] == [36, 37, 38, 39]
    assert found[-1].id == "odd_step:window_ns:others"
    assert found[-1].title.startswith(
        "36 more steps are outliers, each on few ranks: the worst, step 35 of rank 35, takes 235.0"
    )
    assert {(each["rank"], each["step"]) for each in found[-1].evidence["steps"]} == {(at, at) for at in range(36)}
    one_less = {rank: ranks[rank] for rank in range(MAX_STEPS + 1)}
    assert ids(one_less) == [f"odd_step:window_ns:rank{at}:step{at}" for at in range(MAX_STEPS + 1)]


@pytest.mark.parametrize("steps", range(3, 14))
@pytest.mark.parametrize("first", range(4))
def test_the_step_that_reduces_what_others_accumulated_is_of_another_kind(steps: int, first: int) -> None:
    """Of any recording of an accumulation over four steps, however few of the steps that communicate are in it."""
    at = [(number, (number + first) % 4 == 3) for number in range(steps)]
    rows: list[Row] = [
        (number, 160 * MS if reduces else 100 * MS, 60 * MS * reduces, 80 * MS, None) for number, reduces in at
    ]
    assert ids({0: rows, 1: rows}) == []


@pytest.mark.parametrize(
    ("long", "words"), [(5, "that communicate nothing (100.000 ms)"), (7, "that communicate (160.000 ms)")]
)
def test_a_step_is_odd_among_those_of_its_kind(long: int, words: str) -> None:
    rows: list[Row] = [
        (at, (400 if at == long else 160 if at % 4 == 3 else 100) * MS, 60 * MS * (at % 4 == 3), 80 * MS, None)
        for at in range(24)
    ]
    (found,) = outlier_steps({0: rows}, {0: "trace"})
    assert found.id == f"odd_step:window_ns:rank0:step{long}"
    assert found.title.endswith(f"the median of the other steps {words}")


def test_two_long_steps_of_a_rank_are_no_odd_ones_and_neither_is_a_millisecond() -> None:
    several = [(at, (300 if at in (2, 5) else 100) * MS, None, None, None) for at in range(8)]
    small = [(at, 1_900_000 if at == 2 else MS, None, None, None) for at in range(8)]
    assert outlier_steps({0: several, 1: small, 2: several[:2]}, dict.fromkeys(range(3), "trace")) == []


def test_a_step_among_others_that_differ_as_much_is_no_odd_one() -> None:
    # Communication of real jobs over gloo, in ms: each step is far from the next. The fewer steps, the more often the
    # longest of equal ones is far from the others.
    odd = ["odd_step:window_ns:rank0:step1"]
    for taken, found in (
        ((63, 188, 277, 116), []),
        ((16, 43, 16, 12), odd),
        ((52, 109, 79), []),
        ((167, 277, 179), []),
        ((167, 400, 179), odd),
        ((347, 1273, 604, 404, 281, 308), odd),
        ((98, 222, 137, 71, 91, 133), []),
    ):
        assert ids({0: [(at, ms * MS, None, None, None) for at, ms in enumerate(taken)]}) == found


@pytest.mark.parametrize(
    ("computed", "odd"),
    [
        (358, False),  # it computed for less than usual and waited for the others
        (600, True),  # the others were late, or their link was
        (None, True),
    ],
)
def test_a_rank_that_came_early_waited_and_its_step_is_not_odd(computed: int | None, *, odd: bool) -> None:
    usual = [(0, 505, 589), (1, 429, 686), (2, 504, 560), (4, 426, 652)]
    steps: list[Row] = [(at, None, comm * MS, compute * MS, None) for at, comm, compute in usual]
    steps.insert(3, (3, None, 755 * MS, None if computed is None else computed * MS, None))
    assert ids({0: steps}) == ["odd_step:comm_ns:rank0:step3"] * odd


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        # Parameters are averaged in every second step, as local SGD does: alike, none of them is odd.
        ((27, 0, 12, 0, 24, 0, 16, 0), None),
        ((9, 0, 72, 0, 7, 0, 8), "72.000 ms, 9.0 times the median of the other steps that communicate (8.000 ms)"),
        ((40, 0, 0, 0, 16, 0, 0, 0), None),
        ((9, 0, 72, 0, 7, 0, 8, 0), "72.000 ms, 9.0 times the median of the other steps that communicate (8.000 ms)"),
        ((0, 0, 0, 0, 16, 0, 0, 0), None),
    ],
)
def test_a_step_that_communicates_is_compared_with_those_that_do(taken: tuple[int, ...], said: str | None) -> None:
    steps: list[Row] = [(at, 100 * MS, ms * MS, None, None) for at, ms in enumerate(taken)]
    found = [each.title.partition("communicates for ")[2] for each in outlier_steps({0: steps}, {0: "trace"})]
    assert found == [said] * (said is not None)


@pytest.mark.parametrize(("step_ms", "found"), [(1000, ["odd_step:comm_ns:rank0:step1"]), (1300, [])])
def test_more_communication_is_odd_only_where_it_is_much_of_a_step(step_ms: int, found: list[str]) -> None:
    # 60 ms more than usual: 6 % of a step of 1 s, 4.6 % of one of 1.3 s.
    assert ids({0: [(at, step_ms * MS, ms * MS, None, None) for at, ms in enumerate((40, 100, 40, 42, 39))]}) == found


@pytest.mark.parametrize(
    ("step_ms", "idle_ms", "found"),
    [
        ((149, 97, 196, 61), (3, 2, 134, 6), ["odd_step:idle_ns:rank0:step2"]),  # its length is nothing special
        ((100, 97, 500, 91), (3, 2, 405, 6), ["odd_step:window_ns:rank0:step2"]),  # its length says it
        ((90, 91, 107, 88), (2, 3, 11, 2), []),  # 8 ms more are less than a tenth of a step
        ((149, 97, 196, 61), (40, 2, 134, 70), []),
    ],
)
def test_a_step_in_which_a_rank_paused_is_odd_though_steps_vary(
    step_ms: tuple[int, ...], idle_ms: tuple[int, ...], found: list[str]
) -> None:
    assert ids({0: [(at, step_ms[at] * MS, None, None, idle_ms[at] * MS) for at in range(4)]}) == found


@pytest.mark.parametrize(("by_chance", "found"), [(False, ["comm_ns", "window_ns", "idle_ns"]), (True, ["window_ns"])])
def test_where_hosts_share_cores_only_the_length_of_a_step_is_compared(by_chance: bool, found: list[str]) -> None:
    """Which rank waits, in which step, is the scheduler's choice there."""
    steps: list[Row] = [(at, 100 * MS, 200 * MS if at == 2 else 20 * MS, None, 5 * MS) for at in range(5)]
    steps += [(5, 900 * MS, 20 * MS, None, 5 * MS), (6, 100 * MS, 20 * MS, None, 60 * MS)]
    each = outlier_steps({0: steps}, {0: "trace"}, by_chance=by_chance)
    assert [finding.id.split(":")[1] for finding in each] == found


times = st.lists(st.integers(0, 20).map(lambda each: each * MS // 2), max_size=9)


def odd_by_hand(values: Sequence[int]) -> list[int]:
    """Return the places of the odd values, each against the others, by sorting these anew."""
    found = []
    for at, value in enumerate(values):
        others = [*values[:at], *values[at + 1 :]]
        if len(others) < 2:
            continue
        usual = statistics.median(others)
        least, most = min(others), max(others)
        far = {3: 8, 4: 3, 5: 2, 6: 1.6, 7: 1.4, 8: 1.2, 9: 1.1}.get(len(values), 1) * max(most - least, usual / 10)
        if value >= max(1.5 * usual, 1.25 * most, usual + MS) and value - most > far:
            found.append(at)
    return found


@given(st.dictionaries(st.integers(0, 5), times, max_size=4))
def test_each_rank_is_compared_with_its_own_steps(ranks: dict[int, list[int]]) -> None:
    rows = {rank: [(at, value, None, None, None) for at, value in enumerate(values)] for rank, values in ranks.items()}
    expected = {(rank, at) for rank, values in ranks.items() for at in odd_by_hand(values)}
    found = set()
    for each in outlier_steps(rows, dict.fromkeys(ranks, "trace")):
        evidence = each.evidence
        if "steps" in evidence:
            found |= {(one["rank"], one["step"]) for one in evidence["steps"]}
        else:
            found |= {(rank, evidence["step"]) for rank in evidence.get("ranks", [evidence["rank"]])}
    assert found == expected


@pytest.mark.parametrize("basis", [{0: "trace", 1: "trace"}, {0: "trace", 1: "events"}])
def test_what_several_ranks_rest_on_is_named(basis: dict[int, str]) -> None:
    (found,) = outlier_steps({0: rank_with(1), 1: rank_with(1)}, basis)
    assert found.known_from == ", ".join(sorted(set(basis.values())))
