"""Rows sorted and numbered as the slow and sure ways do it, whatever the columns hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import (
    are_among,
    ascending,
    factorize_rows,
    is_one_of,
    largest_by,
    num_falls,
    smallest_by,
    sort_order,
    sum_by,
    values_in,
)
from tests.property.examples import examples

LARGEST = np.iinfo(np.int64).max
VALUES = st.one_of(st.integers(0, 3), st.integers(-5, 1 << 40), st.sampled_from([NONE, LARGEST, -1, 0]))


@st.composite
def columns(draw: st.DrawFn) -> list[np.ndarray]:
    rows = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.sampled_from([np.int64, np.int32, np.int8]), min_size=1, max_size=4))
    found = []
    for kind in kinds:
        values = VALUES if kind is np.int64 else st.integers(np.iinfo(kind).min, np.iinfo(kind).max)
        small = draw(st.booleans())
        values = st.integers(-1, 2) if small else values
        found.append(np.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind))
    return found


@pytest.mark.slow
@examples(300, deadline=None)
@given(columns())
def test_rows_are_in_the_order_of_their_columns_and_equals_stay_as_they_were(given: list[np.ndarray]) -> None:
    rows = list(zip(*(each.tolist() for each in given), strict=True))
    assert sort_order(*given).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


@pytest.mark.slow
@examples(300, deadline=None)
@given(columns())
def test_distinct_rows_are_numbered_in_the_order_of_their_first(given: list[np.ndarray]) -> None:
    rows = list(zip(*(each.tolist() for each in given), strict=True))
    which, first = factorize_rows(given)
    numbers: dict[tuple[int, ...], int] = {}
    assert which.tolist() == [numbers.setdefault(row, len(numbers)) for row in rows]
    assert first.tolist() == [rows.index(row) for row in numbers]


@pytest.mark.parametrize("falls", [0, 3, 900])
def test_many_values_are_put_in_order_however_few_of_them_are_out_of_it(falls: int) -> None:
    rng = np.random.default_rng(falls)
    values = np.arange(1_000)
    at = rng.choice(999, falls, replace=False)
    values[at], values[at + 1] = values[at + 1].copy(), values[at].copy()
    other = rng.integers(0, 5, values.size)
    assert ascending(values).tolist() == sorted(values.tolist())
    assert sort_order(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert sort_order(other, values).tolist() == np.lexsort((values, other)).tolist()
    assert num_falls(ascending(values)) == 0


@examples(200, deadline=None)
@given(st.lists(VALUES, max_size=20), st.lists(VALUES, max_size=20))
def test_values_among_others_are_those_that_occur_there(values: list[int], others: list[int]) -> None:
    found = are_among(np.array(values, np.int64), np.array(others, np.int64))
    assert found.tolist() == [each in others for each in values]
    assert is_one_of(np.array(values, np.int64), others).tolist() == found.tolist()


def test_a_row_fits_by_its_name_and_one_without_a_name_does_not() -> None:
    asked = []

    def fits(name: str) -> bool:
        asked.append(name)
        return name != "b"

    codes = np.array([2, -1, 1, 0, 2, 2], np.int32)
    assert rows_named(codes, ("a", "b", "c", "of no row"), fits).tolist() == [True, False, False, True, True, True]
    assert asked == ["a", "b", "c"]
    assert rows_named(np.empty(0, np.int32), (), fits).tolist() == []


@examples(300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.one_of(st.integers(-9, 9), st.integers(NONE // 64, LARGEST // 64)))),
    st.integers(7, 9),
)
def test_figures_by_group_are_those_of_its_rows(rows: list[tuple[int, int]], groups: int) -> None:
    group, values = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    each = [[value for own, value in rows if own == at] for at in range(groups)]
    assert sum_by(group, values, groups).tolist() == [sum(own) for own in each]
    assert largest_by(group, values, groups).tolist() == [max(own, default=NONE) for own in each]
    assert smallest_by(group, values, groups).tolist() == [min(own, default=LARGEST) for own in each]
    assert values_in(values).tolist() == sorted(set(values.tolist()))
    assert values_in(group).tolist() == sorted(set(group.tolist()))
