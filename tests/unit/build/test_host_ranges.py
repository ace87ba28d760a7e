"""The innermost host range against a search of all ranges."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.timeline.columns import NONE, Annotations, make
from tests.property.examples import examples

Range = tuple[int, int, int]


def table(ranges: list[Range]) -> Annotations:
    lane, start_ns, end_ns = np.array(ranges, np.int64).reshape(-1, 3).T
    return make(Annotations, len(ranges), lane=lane, start_ns=start_ns, end_ns=end_ns)


def searched(ranges: list[Range], lane: int, moment: int, chosen: list[bool] | None = None) -> Range | None:
    """Return the range around the moment that started last, the shortest of those that started together."""
    around = [
        each
        for row, each in enumerate(ranges)
        if each[0] == lane and each[1] <= moment < each[2] and (chosen is None or chosen[row])
    ]
    return max(around, key=lambda each: (each[1], -each[2]), default=None)


def assert_found(ranges: list[Range], asked: list[tuple[int, int]], chosen: list[bool] | None = None) -> None:
    lanes, moments = np.array(asked, np.int64).reshape(-1, 2).T
    mask = None if chosen is None else np.array(chosen, np.bool_)
    rows = innermost_range(table(ranges), lanes, moments, mask)
    assert rows.shape == (len(asked),)
    for row, (lane, moment) in zip(rows.tolist(), asked, strict=True):
        expected = searched(ranges, lane, moment, chosen)
        assert (None if row == NOWHERE else ranges[row]) == expected, (lane, moment)
        assert chosen is None or row == NOWHERE or chosen[row]


lanes = st.integers(0, 2)
times = st.integers(0, 30)
any_ranges = st.lists(st.tuples(lanes, times, times), max_size=15)
questions = st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 33)), max_size=15)


@examples(300)
@given(any_ranges, questions)
def test_the_innermost_range_is_the_one_a_full_search_finds(ranges, asked):
    """Ranges overlap without nesting, share starts, are empty or reversed, and lie on several lanes."""
    assert_found(ranges, asked)


@examples(200)
@given(st.lists(st.tuples(st.tuples(lanes, times, times), st.booleans()), max_size=15), questions)
def test_only_chosen_ranges_are_found(ranges, asked):
    assert_found([each for each, _ in ranges], asked, [is_chosen for _, is_chosen in ranges])


@examples(60)
@given(
    siblings=st.integers(1, 130),
    parents=st.lists(st.tuples(st.integers(0, 1300), st.integers(0, 1300)), max_size=4),
    lane=st.integers(0, 1),
)
def test_a_parent_is_found_behind_any_number_of_finished_siblings(siblings, parents, lane):
    children = [(lane, 10 * at, 10 * at + 3) for at in range(siblings)]
    elders = [(lane, min(pair), max(pair)) for pair in parents]
    asked = [(lane, moment) for at in range(0, siblings, 7) for moment in (10 * at + 2, 10 * at + 3, 10 * at + 9)]
    assert_found([*children, *elders], [*asked, (lane, 10 * siblings + 1)])


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(50, 600))
def test_long_lists_of_nested_and_crossing_ranges_agree_with_a_full_search(seed, number):
    """Most of these ranges are short and over before the moment asked for, so that the far search has work."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, 5000, number)
    lengths = np.where(random.random(number) < 0.05, random.integers(0, 4000, number), random.integers(0, 4, number))
    ranges = list(
        zip(random.integers(0, 2, number).tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
    )
    asked = list(zip(random.integers(0, 2, 40).tolist(), random.integers(-5, 6000, 40).tolist(), strict=True))
    long_ends = [(lane, end) for lane, start, end in ranges if end - start >= 4]
    asked += [(lane, end + late) for lane, end in long_ends for late in (-1, 0)]
    assert_found(ranges, asked)


def test_times_of_our_days_differ_to_the_nanosecond():
    base = 1_700_000_000_000_000_001
    ranges = [(0, base, base + 100), (0, base + 2, base + 3)]
    assert_found(ranges, [(0, base - 1), (0, base + 1), (0, base + 2), (0, base + 3), (0, base + 99), (0, base + 100)])
    assert_found(ranges, [(0, NONE), (NONE, base), (NONE, NONE)])
