"""The gate's statistics: against every permutation, against tables, and against simulated runs of unchanged code."""

import itertools
import math
from statistics import NormalDist, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.gate.statistics import (
    DRAWS,
    EXACT_RUNS,
    bootstrap,
    holm,
    noise_factor,
    permutation_test,
    shift_interval,
    student_quantile,
    tail_probabilities,
)
from tests.property.examples import examples

RUNS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def middle_ranks(values: list[float]) -> list[float]:
    return [sum(o < v for o in values) + (sum(o == v for o in values) + 1) / 2 for v in values]


@examples(60)
@given(base=RUNS, candidate=RUNS)
def test_the_permutation_test_counts_every_way_to_choose_the_candidates_runs(
    base: list[int], candidate: list[int]
) -> None:
    ranks = middle_ranks([*base, *candidate])
    observed = sum(ranks[len(base) :])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(candidate))]
    expected = (sum(s >= observed for s in sums) / len(sums), sum(s <= observed for s in sums) / len(sums))
    assert permutation_test(base, candidate) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3, 3), (4, 4), (5, 7)])
def test_the_permutation_test_is_scipys(sizes: tuple[int, int]) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    generator = np.random.default_rng(sum(sizes))
    for _ in range(20):
        base, candidate = (np.round(generator.normal(size=size), 6).tolist() for size in sizes)
        expected = [
            stats.mannwhitneyu(candidate, base, alternative=side, method="exact").pvalue for side in ("greater", "less")
        ]
        assert permutation_test(base, candidate) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_the_permutation_test_is_scipys_with_ties_too() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    base, candidate = [1.0, 2.0, 2.0, 3.0], [2.0, 3.0, 3.0, 4.0]

    def rank_sum(ours: list[float], theirs: list[float]) -> float:
        return float(stats.rankdata([*theirs, *ours])[len(theirs) :].sum())

    expected = [
        stats.permutation_test((candidate, base), rank_sum, n_resamples=np.inf, alternative=side).pvalue
        for side in ("greater", "less")
    ]
    assert permutation_test(base, candidate) == pytest.approx(expected, abs=1e-12)


def test_students_quantile_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for freedom in (2, 3, 7, 11, 40):
        for share in (0.5, 0.9, 0.95, 0.975, 0.99):
            assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-4, abs=1e-9)


def test_three_runs_a_side_cannot_be_more_certain_than_one_in_twenty() -> None:
    assert permutation_test([1, 2, 3], [4, 5, 6])[0] == pytest.approx(1 / 20)
    assert permutation_test([1, 2, 3, 4], [5, 6, 7, 8])[0] == pytest.approx(1 / 70)


@pytest.mark.slow
def test_where_the_exact_distribution_ends_the_approximation_takes_over_without_a_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(1)
    for shift in (0.0, 0.2, 0.4):
        values = np.round(generator.normal(size=EXACT_RUNS), 1)
        values[50:] += shift
        sides = values[:50].tolist(), values[50:].tolist()
        exact = permutation_test(*sides), shift_interval(*sides, 0.9)
        with monkeypatch.context() as patched:
            patched.setattr("overlapscope.gate.statistics.EXACT_RUNS", 1)
            assert permutation_test(*sides) == pytest.approx(exact[0], abs=1e-3)
            assert shift_interval(*sides, 0.9) == pytest.approx(exact[1], abs=0.05)
    assert permutation_test([1.0] * 80, [1.0] * 80)[0] > 0.4


def test_the_approximation_counts_half_a_step_of_the_rank_sum_as_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 16 pairs have the candidate above; by chance 8 with a deviation of sqrt(4 * 4 * 9 / 12)."""
    monkeypatch.setattr("overlapscope.gate.statistics.EXACT_RUNS", 1)
    pairs = NormalDist(8, math.sqrt(12))
    expected = 1 - pairs.cdf(15.5), pairs.cdf(16.5)
    assert permutation_test([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(expected, abs=1e-12)


def test_the_approximation_is_scipys_ties_included() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    generator = np.random.default_rng(8)
    for sizes in ((60, 60), (90, 30)):
        base, candidate = (np.round(generator.normal(size=size), 1).tolist() for size in sizes)
        expected = [
            stats.mannwhitneyu(candidate, base, alternative=side, method="asymptotic").pvalue
            for side in ("greater", "less")
        ]
        assert permutation_test(base, candidate) == pytest.approx(expected, abs=1e-12)


def test_the_approximation_begins_above_a_hundred_runs() -> None:
    half = EXACT_RUNS // 2
    exact = permutation_test(range(half), range(half, 2 * half))[0]
    assert exact == pytest.approx(1 / math.comb(2 * half, half), rel=1e-9, abs=0)


@pytest.mark.parametrize("runs", [(2, 3), (4, 4), (21, 41), (80, 80)])
def test_runs_that_are_all_equal_are_certain_to_rank_so(runs: tuple[int, int]) -> None:
    found = permutation_test([1.0] * runs[0], [1.0] * runs[1])
    assert found == pytest.approx((1, 1))
    assert max(found) <= 1


@pytest.mark.parametrize(("n", "m"), [(51, 51), (60, 60), (70, 40), (30, 200)])
def test_the_interval_of_many_runs_leaves_out_as_many_pairs_as_the_normal_distribution_says(n: int, m: int) -> None:
    """The candidate's runs lie 1 apart and the base's m: their differences are all whole numbers, each once."""
    left_out = math.floor(n * m / 2 - NormalDist().inv_cdf(0.95) * math.sqrt(n * m * (n + m + 1) / 12))
    lowest, highest = -(n - 1) * m, m - 1
    expected = lowest + left_out - 1, highest - left_out + 1
    assert shift_interval([m * at for at in range(n)], range(m), 0.9) == expected


def test_the_interval_of_a_hundred_runs_leaves_out_as_many_pairs_as_all_ways_to_rank_them_say() -> None:
    """Three runs among a hundred: the normal distribution would leave out one pair more."""
    above = np.array([sum(places) - 3 for places in itertools.combinations(range(EXACT_RUNS), 3)])
    left_out = sum((above <= pairs).mean() <= 0.05 for pairs in range(200))
    assert shift_interval([3 * at for at in range(97)], range(3), 0.9) == (-288 + left_out - 1, 2 - left_out + 1)


def test_two_runs_have_no_interval() -> None:
    assert shift_interval([1.0], [2.0], 0.9) is None


def test_the_approximation_is_close_to_the_share_of_random_permutations() -> None:
    generator = np.random.default_rng(2)
    values = np.round(generator.normal(size=120), 1)  # with ties
    values[60:] += 0.3
    ranks = np.array(middle_ranks(values.tolist()))
    drawn = np.array([generator.permutation(ranks)[60:].sum() for _ in range(4_000)])
    expected = (drawn >= ranks[60:].sum()).mean()
    assert permutation_test(values[:60].tolist(), values[60:].tolist())[0] == pytest.approx(expected, abs=0.02)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(2, 5), st.integers(2, 5), st.randoms(use_true_random=False))
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(n: int, m: int, random: object) -> None:
    values = random.sample(range(1000), n + m)  # type: ignore[attr-defined]
    base, candidate = values[:n], values[n:]
    found = shift_interval(base, candidate, 0.9)
    for shift in np.arange(-1000.5, 1000.5, 31):
        high, low = permutation_test(base, [value - shift for value in candidate])
        ties = {c - b for c in candidate for b in base}
        if shift in ties:
            continue
        kept = high > 0.05 + 1e-9 and low > 0.05 + 1e-9
        inside = found is None or found[0] <= shift <= found[1]
        assert inside == kept


@pytest.mark.parametrize(
    ("freedom", "share", "expected"),
    [
        (1, 0.975, 12.7062), (3, 0.95, 2.3534), (5, 0.975, 2.5706), (10, 0.99, 2.7638), (120, 0.975, 1.9799),
        (None, 0.975, 1.95996),
    ],
)  # fmt: skip
def test_student_quantiles_are_those_of_the_tables(freedom: int | None, share: float, expected: float) -> None:
    assert student_quantile(share, freedom) == pytest.approx(expected, rel=1e-4)


def test_the_noise_of_medians_is_that_of_drawn_runs() -> None:
    generator = np.random.default_rng(3)
    for n, m, tolerance in ((1, 1, 0.02), (1, 3, 0.02), (2, 3, 0.02), (3, 3, 0.02), (9, 3, 0.1)):
        sides = [np.median(generator.normal(size=(40_000, runs)), axis=1) for runs in (n, m)]
        assert noise_factor(n, m) == pytest.approx(float((sides[1] - sides[0]).std()), rel=tolerance)


def test_the_noise_of_medians_of_many_runs_is_the_limit() -> None:
    assert noise_factor(4, 4) == pytest.approx(math.sqrt(math.pi / 4))
    assert noise_factor(1, 8) == pytest.approx(math.sqrt(1 + math.pi / 16))


def test_tail_probabilities_by_hand_count_what_is_drawn_and_what_is_seen() -> None:
    assert tail_probabilities(np.array([-1.0, 0.0, 0.5, 3.0])) == (3 / 5, 4 / 5)
    assert tail_probabilities(np.array([2.0])) == (1 / 2, 1)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_bootstrap_is_deterministic_and_stays_within_the_steps() -> None:
    generator = np.random.default_rng(4)
    base, candidate = [generator.normal(100, 2, 20)], [generator.normal(110, 2, 20) for _ in range(2)]
    draws = bootstrap(base, candidate, seed=7)
    again = bootstrap(base, candidate, seed=7)
    assert draws is not None
    assert again is not None
    assert draws.tobytes() == again.tobytes()
    assert draws.size == DRAWS
    assert draws[0] >= min(map(np.min, candidate)) - base[0].max()
    assert draws[-1] <= max(map(np.max, candidate)) - base[0].min()
    assert abs(float(np.median(draws)) - (median(map(np.median, candidate)) - np.median(base[0]))) < 1.5
    assert tail_probabilities(draws) == (1 / 2000, 1.0)


def test_blocks_keep_what_neighbouring_steps_have_in_common() -> None:
    """Steps that drift slowly tell less than their number says: the interval is wider than that of shuffled steps."""
    generator = np.random.default_rng(5)
    slow = np.repeat(generator.normal(0, 1, 16), 4)
    flat = np.zeros(64)
    widths = []
    for series in (slow, generator.permutation(slow)):
        draws = bootstrap([flat], [series], seed=0)
        assert draws is not None
        widths.append(float(draws[-DRAWS // 20] - draws[DRAWS // 20]))
    assert widths[0] > 1.3 * widths[1]


@pytest.mark.parametrize("size", [4, 8, 9, 27, 30, 2_500])
def test_the_bootstrap_is_that_of_plain_loops_over_circular_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.gate.statistics.DRAWS", 20)
    series = np.random.default_rng(size).normal(size=size)
    kept = series.tolist() if size <= 2_048 else series.tolist()[::2]
    length = next(each for each in range(1, 99) if each**3 >= len(kept))
    starts = np.random.default_rng(7).integers(0, len(kept), (20, math.ceil(len(kept) / length))).tolist()
    drawn = [[kept[(start + at) % len(kept)] for start in row for at in range(length)][: len(kept)] for row in starts]
    found = bootstrap([series], [np.zeros(size)], seed=7)
    assert found is not None
    assert found.tolist() == pytest.approx(sorted(-median(each) for each in drawn))


def test_few_steps_and_long_runs() -> None:
    assert bootstrap([np.zeros(4)], [np.zeros(4)], seed=0) is not None
    assert bootstrap([np.zeros(3)], [np.zeros(30)], seed=0) is None
    draws = bootstrap([np.zeros(300_000)], [np.ones(300_000)], seed=0)
    assert draws is not None
    assert set(draws.tolist()) == {1.0}
