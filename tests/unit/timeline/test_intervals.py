"""Sets of time against a raster with one cell a nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.timeline.intervals import (
    EMPTY,
    BusyTime,
    Intervals,
    clip,
    complement,
    difference,
    intersection,
    length,
    parts_inside,
    union,
)
from tests.property.examples import examples
from tests.support.builders import (
    EPOCH_NS,
    FIRST_NS,
    Pairs,
    blocks,
    columns_of_pairs,
    instants,
    intervals,
    moments,
    pairs_of,
    raster,
)

windows = st.tuples(instants, instants)
ordered_windows = windows.map(lambda window: (min(window), max(window))).filter(lambda window: window[0] < window[1])


def of(pairs: Pairs, offset: int = 0) -> Intervals:
    return union(columns_of_pairs(pairs, offset))


def assert_well_formed(value: Intervals) -> None:
    assert value.starts.dtype == value.ends.dtype == np.int64
    assert value.starts.size == value.ends.size
    assert (value.starts < value.ends).all(), "an interval is empty or reversed"
    assert (value.ends[:-1] < value.starts[1:]).all(), "intervals are out of order, overlap or touch"


@examples(300)
@given(st.lists(intervals, max_size=4))
def test_a_union_covers_what_any_interval_of_any_part_covers(parts):
    result = union(*(columns_of_pairs(part) for part in parts))
    assert_well_formed(result)
    assert pairs_of(result) == blocks(raster(pair for part in parts for pair in part))


def test_touching_intervals_become_one():
    assert pairs_of(of([(5, 7), (1, 5), (9, 12)])) == [(1, 7), (9, 12)]


def test_a_long_interval_swallows_later_short_ones():
    assert pairs_of(of([(0, 40), (1, 2), (5, 6), (39, 40)])) == [(0, 40)]


def test_empty_and_reversed_intervals_cover_nothing():
    assert pairs_of(of([(5, 5), (9, 3)])) == []
    assert pairs_of(union()) == []


def test_a_union_leaves_its_arguments_as_they_were():
    starts, ends = columns_of_pairs([(9, 3), (5, 8), (1, 6)])
    union((starts, ends))
    assert pairs_of((starts, ends)) == [(9, 3), (5, 8), (1, 6)]


def test_a_union_is_of_64_bit_integers_whatever_its_parts_are_of():
    """Beside a part of other numbers, or an empty list, numpy would go on in doubles, which step by 256 ns there."""
    instant = np.array([EPOCH_NS + 1]), np.array([EPOCH_NS + 4])
    unsigned = np.array([EPOCH_NS + 3], np.uint64), np.array([EPOCH_NS + 7], np.uint64)
    short = np.array([1], np.int32), np.array([3], np.int32)
    for parts, expected in (
        ([short], [(1, 3)]),
        ([instant, ([], [])], [(EPOCH_NS + 1, EPOCH_NS + 4)]),
        ([instant, unsigned], [(EPOCH_NS + 1, EPOCH_NS + 7)]),
    ):
        result = union(*parts)
        assert_well_formed(result)
        assert pairs_of(result) == expected


def test_nothing_has_no_parts():
    some = of([(2, 6)])
    for first, second in ((EMPTY, some), (some, EMPTY)):
        parts, owner = parts_inside(first, second)
        assert pairs_of(parts) == []
        assert (owner.dtype, owner.tolist()) == (np.int64, [])


@examples(300)
@given(intervals, intervals)
def test_an_intersection_covers_what_both_cover(first, second):
    result = intersection(of(first), of(second))
    assert_well_formed(result)
    assert pairs_of(result) == blocks(raster(first) & raster(second))


@examples(300)
@given(intervals, intervals)
def test_a_difference_covers_what_only_the_first_covers(first, second):
    result = difference(of(first), of(second))
    assert_well_formed(result)
    assert pairs_of(result) == blocks(raster(first) & ~raster(second))


@examples(200)
@given(intervals, windows)
def test_a_complement_covers_the_rest_of_its_window(pairs, window):
    result = complement(of(pairs), *window)
    assert_well_formed(result)
    assert pairs_of(result) == blocks(raster([window]) & ~raster(pairs))


@examples(200)
@given(intervals, ordered_windows)
def test_a_clip_covers_what_lies_inside_its_window(pairs, window):
    result = clip(of(pairs), *window)
    assert_well_formed(result)
    assert pairs_of(result) == blocks(raster(pairs) & raster([window]))


@examples(200)
@given(intervals, instants, st.integers(0, 10))
def test_a_clip_to_an_empty_or_reversed_window_is_empty(pairs, start, back):
    result = clip(of(pairs), start, start - back)
    assert_well_formed(result)
    assert pairs_of(result) == []


@examples(200)
@given(intervals, intervals)
def test_lengths_add_up_exactly(first, second):
    a, b = of(first), of(second)
    assert length(a) == raster(first).sum()
    assert length(a) + length(b) == length(union(a, b)) + length(intersection(a, b))
    assert length(a) == length(intersection(a, b)) + length(difference(a, b))


@examples(300)
@given(intervals, st.lists(instants, max_size=8))
def test_busy_time_before_a_moment_counts_the_covered_cells_before_it(pairs, times):
    cells = raster(pairs)
    counted = BusyTime(of(pairs)).before(times)
    assert counted.dtype == np.int64
    assert counted.tolist() == [cells[: time - FIRST_NS].sum() for time in times]


@examples(300)
@given(intervals, st.lists(windows, max_size=8))
def test_busy_time_within_windows_counts_the_covered_cells_inside(pairs, asked):
    cells = raster(pairs)
    counted = BusyTime(of(pairs)).within([start for start, _ in asked], [end for _, end in asked])
    assert counted.dtype == np.int64
    assert counted.tolist() == [(cells & raster([window])).sum() for window in asked]


def test_busy_time_of_nothing_is_zero():
    assert BusyTime(EMPTY).before([3, 9]).tolist() == [0, 0]
    assert BusyTime(EMPTY).within([3], [9]).tolist() == [0]


def test_busy_time_takes_a_single_moment_as_well():
    busy = BusyTime(of([(2, 6), (8, 9)]))
    assert int(busy.before(5)) == 3
    assert int(busy.within(3, 9)) == 4


@examples(200)
@given(intervals, intervals, st.tuples(moments, moments))
def test_moving_everything_by_fifty_years_moves_the_results_and_nothing_else(first, second, window):
    """A double steps by 256 ns at these times: any detour through one would show."""
    assert float(EPOCH_NS + 40) - float(EPOCH_NS) != 40
    start, end = min(window), max(window)
    near, far = (of(first), of(second)), (of(first, EPOCH_NS), of(second, EPOCH_NS))

    def moved(value: Intervals) -> list[tuple[int, int]]:
        return [(s - EPOCH_NS, e - EPOCH_NS) for s, e in pairs_of(value)]

    for operation in (union, intersection, difference):
        assert moved(operation(*far)) == pairs_of(operation(*near))
    assert moved(complement(far[0], start + EPOCH_NS, end + EPOCH_NS)) == pairs_of(complement(near[0], start, end))
    if start < end:
        assert moved(clip(far[0], start + EPOCH_NS, end + EPOCH_NS)) == pairs_of(clip(near[0], start, end))
    assert length(far[0]) == length(near[0])
    there = BusyTime(far[0])
    assert there.before(start + EPOCH_NS) == BusyTime(near[0]).before(start)
    assert there.within(start + EPOCH_NS, end + EPOCH_NS) == BusyTime(near[0]).within(start, end)
