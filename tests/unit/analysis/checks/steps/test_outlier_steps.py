"""Outlier steps, of one rank and of many."""

import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.checks.steps.odd_step_findings import MAX_RANKS, MAX_STEPS, outlier_steps, waits_in_calls
from overlapscope.analysis.checks.steps.outlier_steps import long_steps
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Call, cpu_run
from tests.support.step_cases import Kernel, made

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
    steps: list[Row] = [(at, 1100 * MS, comm * MS, compute * MS, None) for at, comm, compute in usual]
    steps.insert(3, (3, 1350 * MS, 755 * MS, None if computed is None else computed * MS, None))
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
    steps: list[Row] = [(at, (200 + ms) * MS, ms * MS, None, None) for at, ms in enumerate(taken)]
    found = [each.title.partition("communicates for ")[2] for each in outlier_steps({0: steps}, {0: "trace"})]
    assert found == [said] * (said is not None)


@pytest.mark.parametrize(
    ("step_ms", "comm_ms", "found"),
    [
        ((500, 560, 500, 502, 499), (40, 100, 40, 42, 39), True),
        ((1000, 1060, 1000, 1002, 999), (40, 100, 40, 42, 39), False),  # hardly longer
        ((500, 500, 500, 502, 499), (40, 100, 40, 42, 39), False),  # hidden, or made up for
        ((500, 560, 500, 552, 499), (40, 100, 40, 42, 39), False),  # another step was as long without it
        ((500, 740, 500, 502, 499), (40, 100, 40, 42, 39), False),  # longer for another reason
        ((500, 560, 500, 502, 499), (40, 200, 40, 42, 39), False),  # most of it did not make the step longer
        ((None, None, None, None, None), (40, 100, 40, 42, 39), False),
    ],
)
def test_more_communication_is_odd_only_where_it_is_what_made_the_step_longer(
    step_ms: tuple[int | None, ...], comm_ms: tuple[int, ...], *, found: bool
) -> None:
    steps: list[Row] = [
        (at, None if step is None else step * MS, comm * MS, None, None)
        for at, (step, comm) in enumerate(zip(step_ms, comm_ms, strict=True))
    ]
    assert ids({0: steps}) == ["odd_step:comm_ns:rank0:step1"] * found


@pytest.mark.parametrize(("waited_ms", "found"), [(20, True), (40, False)])
def test_communication_that_was_longer_because_a_rank_waited_is_no_odd_one(waited_ms: int, *, found: bool) -> None:
    steps: list[Row] = [(at, (560 if at == 1 else 500) * MS, (100 if at == 1 else 40) * MS, 9, 0) for at in range(6)]
    waited = {(0, at): (5 + waited_ms * (at == 1)) * MS for at in range(6)}
    assert [each.id for each in outlier_steps({0: steps}, {0: "trace"}, waited_ns=waited)] == [
        "odd_step:comm_ns:rank0:step1"
    ] * found


def test_overlapped_waiting_makes_no_odd_communication_either() -> None:
    steps: list[Row] = [(at, (560 if at == 1 else 500) * MS, (100 if at == 1 else 40) * MS, 9, 0) for at in range(6)]
    for waited_ms, found in ((29, True), (30, False)):
        in_calls = {(0, at): (5 + waited_ms * (at == 1)) * MS for at in range(6)}
        odd = [each.id for each in outlier_steps({0: steps}, {0: "trace"}, in_calls_ns=in_calls)]
        assert odd == ["odd_step:comm_ns:rank0:step1"] * found


def test_waits_in_matched_calls_are_summed_by_rank_and_step() -> None:
    """Of two calls a step, rank 0 comes 100 us before rank 1 to each in step 2, with it in the others."""
    run = cpu_run(
        lambda step, rank: [
            Call(start=at - 100 * (step == 2 and rank == 0), end=at + 50) for at in (300, 600)
        ]
    )  # fmt: skip
    waits = waits_in_calls(run, match_and_align(run).splits)
    assert {key: ns for key, ns in waits.items() if ns} == {(0, 2): 200_000}


@pytest.mark.parametrize(
    ("waits_ms", "idles_ms", "said"),
    [
        (150, 0, "; it waits for other ranks for 150.000 ms more than usual"),
        (0, 120, "; it idles for 120.000 ms more than usual"),
        (90, 90, ""),
    ],
)
def test_what_most_of_a_long_step_is_stands_beside_it_where_it_is_known(
    waits_ms: int, idles_ms: int, said: str
) -> None:
    steps: list[Row] = [
        (at, (300 if at == 4 else 100) * MS, (20 + waits_ms * (at == 4)) * MS, 50 * MS, (5 + idles_ms * (at == 4)) * MS)
        for at in range(6)
    ]
    waited = {(0, at): (3 + waits_ms * (at == 4)) * MS for at in range(6)}
    (found,) = outlier_steps({0: steps}, {0: "trace"}, waited_ns=waited)
    assert found.title == (
        f"step 4 of rank 0 takes 300.000 ms, 3.0 times the median of the other steps (100.000 ms){said}"
    )
    assert found.evidence.get("mostly_more_ns") == (max(waits_ms, idles_ms) * MS if said else None)


def test_communication_is_no_odd_one_in_a_step_that_is_named_for_another_rank() -> None:
    waits: list[Row] = [(at, (270 if at == 3 else 200) * MS, (90 if at == 3 else 20) * MS, None, 0) for at in range(6)]
    assert ids({1: waits}) == ["odd_step:comm_ns:rank1:step3"]
    assert ids({0: rank_with(3, steps=6), 1: waits}) == ["odd_step:window_ns:rank0:step3"]


def test_a_rank_whose_other_steps_differ_shares_an_odd_step() -> None:
    lengths = {0: (116, 112, 233, 180), 1: (116, 112, 233, 115), 2: (116, 112, 190, 180)}
    ranks: dict[int, list[Row]] = {
        rank: [(at, ms * MS, None, None, None) for at, ms in enumerate(own)] for rank, own in lengths.items()
    }
    assert ids({0: ranks[0]}) == []
    (found,) = outlier_steps(ranks, dict.fromkeys(ranks, "trace"))
    assert found.evidence["ranks"] == [0, 1]


@pytest.mark.parametrize(("stopped_ms", "found"), [(99, True), (100, False)])
def test_a_step_that_is_longer_by_what_may_be_the_stop_of_the_recorder_is_no_odd_one(
    stopped_ms: int, *, found: bool
) -> None:
    stopped = {(0, 7): stopped_ms * MS}
    each = outlier_steps({0: rank_with(7)}, {0: "trace"}, stopped_ns=stopped)
    assert [finding.id for finding in each] == ["odd_step:window_ns:rank0:step7"] * found


@pytest.mark.parametrize(
    ("led_ms", "compute_ms", "found"),
    [
        (99, 80, True),  # of 200 ms more
        (100, 80, False),
        (100, 180, True),  # it computes for half of it
        (100, 179, False),
    ],
)
def test_a_last_step_in_which_a_rank_pays_its_lead_is_no_odd_one(led_ms: int, compute_ms: int, *, found: bool) -> None:
    *before, last = rank_with(7)
    ranks = {0: [*before, (last[0], last[1], last[2], compute_ms * MS, last[4])], 1: rank_with(None)}
    each = outlier_steps(ranks, dict.fromkeys(ranks, "trace"), led_ns={(0, 7): led_ms * MS})
    assert [finding.id for finding in each] == ["odd_step:window_ns:rank0:step7"] * found


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


@pytest.mark.parametrize(
    ("step_ms", "idle_ms", "longer_ms"),
    [
        ((149, 97, 196, 61), (3, 2, 134, 6), {2: 99}),  # than 97
        ((149, 97, 196, 61), (3, 2, 63, 6), {2: 60}),  # than 3
        ((149, 97, 196, 61), (3, 2, 4, 6), {}),
        ((100, 97, 500, 91), (3, 2, 405, 6), {2: 403}),
    ],
)
def test_a_step_in_which_a_rank_paused_is_longer_by_that(
    step_ms: tuple[int, ...], idle_ms: tuple[int, ...], longer_ms: dict[int, int]
) -> None:
    steps = [(at, step_ms[at] * MS, None, None, idle_ms[at] * MS) for at in range(4)]
    assert {each.step: each.more_ns / MS for each in long_steps({0: steps})} == longer_ms


@pytest.mark.parametrize(("by_chance", "found"), [(False, ["comm_ns", "window_ns", "idle_ns"]), (True, ["window_ns"])])
def test_where_hosts_share_cores_only_the_length_of_a_step_is_compared(by_chance: bool, found: list[str]) -> None:
    """Which rank waits, in which step, is the scheduler's choice there."""
    ranks: dict[int, list[Row]] = {
        0: [(at, (270 if at == 2 else 200) * MS, (90 if at == 2 else 20) * MS, None, 5 * MS) for at in range(7)],
        1: rank_with(5, steps=7),
        2: [(at, (260 if at == 6 else 200) * MS, 20 * MS, None, (65 if at == 6 else 5) * MS) for at in range(7)],
    }
    each = outlier_steps(ranks, dict.fromkeys(ranks, "trace"), by_chance=by_chance)
    assert [finding.id.split(":")[1] for finding in each] == found


times = st.lists(st.integers(0, 20).map(lambda each: each * MS // 2), max_size=9)


def odd_by_hand(values: Sequence[int], *, far: bool) -> set[int]:
    """Return the places of the odd values, each against the others, by sorting these anew; only those `far` off."""
    found = set()
    for at, value in enumerate(values):
        others = [*values[:at], *values[at + 1 :]]
        if len(others) < 2:
            continue
        usual = statistics.median(others)
        least, most = min(others), max(others)
        margin = {3: 8, 4: 3, 5: 2, 6: 1.6, 7: 1.4, 8: 1.2, 9: 1.1}.get(len(values), 1) * max(most - least, usual / 10)
        if value >= max(1.5 * usual, 1.25 * most, usual + MS) and (value - most > margin or not far):
            found.add(at)
    return found


@given(st.dictionaries(st.integers(0, 5), times, max_size=4))
def test_each_rank_is_compared_with_its_own_steps(ranks: dict[int, list[int]]) -> None:
    rows = {rank: [(at, value, None, None, None) for at, value in enumerate(values)] for rank, values in ranks.items()}
    known = {at for values in ranks.values() for at in odd_by_hand(values, far=True)}
    expected = {(rank, at) for rank, values in ranks.items() for at in known & odd_by_hand(values, far=False)}
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


def working(step: int, kernels: int, *, us: float = 80, ranks: int = 2) -> Run:
    """Return ranks that run ten kernels in each step, and so many in this one, each for so long."""

    def run_step(number: int) -> list[Kernel]:
        count = kernels if number == step else 10
        lasts = 80 if number != step else us
        return [Kernel(start=at * (lasts + 1), end=at * (lasts + 1) + lasts) for at in range(count)]

    return made(run_step, ranks=ranks)


def figures(run: Run, step: int, odd_ms: int, compute_ms: int) -> dict[int, list[Row]]:
    """Return three steps of each rank, of which this one is long."""
    return {
        rank: [(at, odd_ms * MS, MS, compute_ms * MS, None) if at == step else (at, 100 * MS, MS, 80 * MS, None)
               for at in (1, 2, 3)]
        for rank in run.ranks
    }  # fmt: skip


def test_a_step_with_more_kernels_on_all_ranks_does_other_work_which_is_information() -> None:
    """Of three steps, two that are alike may be so by chance: not so where the third runs more kernels."""
    run = working(3, 19, us=40)
    ranks = figures(run, 3, 172, 150)
    (found,) = outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=run)
    assert (found.id, found.severity) == ("odd_step:window_ns:step3", "info")
    assert found.title.endswith(
        "it takes 172.000 ms, 1.7 times the median of the other steps (100.000 ms); it computes for 70.000 ms more "
        "than usual, in 19 kernels, not 10: other work on each rank, as an evaluation, or the optimizer where "
        "gradients accumulate"
    )
    assert outlier_steps(ranks, dict.fromkeys(ranks, "trace")) == []


@pytest.mark.parametrize(
    ("kernels", "odd_ms", "compute_ms"),
    [
        pytest.param(12, 172, 150, id="as many kernels"),
        pytest.param(19, 172, 110, id="less compute than it is longer"),
        pytest.param(19, 109, 89, id="hardly longer"),
    ],
)
def test_a_step_that_is_not_longer_for_more_work_stays_a_matter_of_chance(
    kernels: int, odd_ms: int, compute_ms: int
) -> None:
    run = working(3, kernels, us=40)
    ranks = figures(run, 3, odd_ms, compute_ms)
    assert outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=run) == []


def test_a_step_with_more_work_on_some_ranks_is_no_other_work() -> None:
    run = working(3, 19, us=40)
    ranks = figures(run, 3, 172, 150) | {1: figures(run, 3, 100, 80)[1]}
    assert outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=run) == []
    vary = working(2, 14, us=40)
    ranks = figures(vary, 3, 172, 150)
    assert outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=vary) == []


ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor>"


def longer_in(step: int, *, times: float = 2, of_memory: float = 2, of_optimizer: float = 1, last: str = ADAM) -> Run:
    """Return ranks whose products, kernels that wait for memory, and optimizer take so many times as long in a step,
    which ends with a kernel of this name."""

    def run_step(number: int) -> list[Kernel]:
        factors = (times, times, of_memory, of_optimizer) if number == step else (1, 1, 1, 1)
        names = ("gemm", "gemm", "elementwise_kernel", last if number == step else ADAM)
        found, at = [], 0.0
        for name, factor, us in zip(names, factors, (100, 100, 50, 50), strict=True):
            found.append(Kernel(start=at, end=at + factor * us, name=name))
            at += factor * us + 1
        return found

    return made(run_step)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(
            longer_in(3),
            "all but the optimizer's take 2.00 times as long, those 1.00 times: more to compute, as with a longer "
            "batch or longer sequences, and no slower device",
            id="a longer batch",
        ),
        pytest.param(
            longer_in(3, of_optimizer=2),
            "nearly all take 2.00 times as long, the optimizer's, too (2.00 times): a lower clock, or another process "
            "there",
            id="a slower device",
        ),
        pytest.param(longer_in(3, of_memory=1), None, id="a lower clock slows no memory"),
        pytest.param(longer_in(3, of_optimizer=1.4), None, id="neither"),
        pytest.param(longer_in(3, last="norm"), None, id="another kernel"),
        pytest.param(longer_in(1), None, id="in another step"),
    ],
)
def test_a_step_that_computes_longer_in_the_same_kernels_says_whether_the_optimizer_is_slower_too(
    run: Run, words: str | None
) -> None:
    ranks = figures(run, 3, 200, 170)
    (found,) = outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=run)
    _, _, said = found.title.partition("; ")
    longer = f"it computes for 90.000 ms more than usual, in the same 4 kernels: {words}"
    assert said == ("" if words is None else longer)
    idle = figures(run, 3, 200, 129)  # 49 ms of 100: it is longer for something else
    (found,) = outlier_steps(idle, dict.fromkeys(idle, "trace"), run=run)
    assert "the same" not in found.title


@pytest.mark.parametrize(
    ("of_optimizer", "blocks", "said"), [(1, 192, True), (1, 191, False), (2, 160, True), (2, 161, False)]
)
def test_what_grids_of_the_same_kernels_contradict_is_not_said(of_optimizer: int, blocks: int, *, said: bool) -> None:
    """Twice as long: more to compute needs grids half as large again, of 128 blocks, a slower device none much
    larger."""
    run = longer_in(3, of_optimizer=of_optimizer)
    for timeline in run.ranks.values():
        timeline.spans.blocks[:] = np.where(timeline.spans.step == 3, blocks, 128)
    ranks = figures(run, 3, 200, 170)
    (found,) = outlier_steps(ranks, dict.fromkeys(ranks, "trace"), run=run)
    assert ("the same 4 kernels" in found.title) is said
