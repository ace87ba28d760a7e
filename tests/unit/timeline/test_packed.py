"""Tables that lie packed: every value comes back as it was, from fewer bytes, and copies are plain tables."""

import pickle
from copy import copy, deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Collectives, Spans, column_kinds, make, size, take
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.store.packed import PackedCollectives, PackedColumn, PackedIntervals, PackedTable
from tests.support.builders import EPOCH_NS

EVERY = st.integers(NONE, -NONE - 1)
NEAR = st.one_of(st.just(NONE), st.integers(EPOCH_NS, EPOCH_NS + 2**33))
SMALL = st.one_of(st.just(NONE), st.integers(-300, 300))
COLUMNS = st.one_of(st.lists(SMALL), st.lists(NEAR), st.lists(EVERY), st.lists(st.just(7)))


@given(COLUMNS)
def test_a_column_comes_back_as_it_was(values: list[int]) -> None:
    column = np.array(values, np.int64)
    found = PackedColumn.of(column, NONE).values()
    assert found.dtype == column.dtype
    assert found.tolist() == values


@given(st.lists(st.tuples(*[st.one_of(NEAR, EVERY)] * 3, SMALL, st.integers(-1, 300))))
def test_a_table_comes_back_as_it_was(rows: list[tuple[int, ...]]) -> None:
    start, end, launch, step, name = (list(each) for each in zip(*rows, strict=True)) if rows else ([],) * 5
    table = make(Spans, len(rows), start_ns=start, end_ns=end, launch_ns=launch, step=step, name=name, kind=1)
    found = PackedTable.of(table)
    assert found.rows == len(rows)
    for column in column_kinds(Spans):
        expected = getattr(table, column)
        assert getattr(found.table(Spans), column).dtype == expected.dtype
        assert found.column(column).tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(EPOCH_NS, EPOCH_NS + 2**34), st.integers(0, 2**33)), max_size=20))
def test_intervals_come_back_as_they_were(spans: list[tuple[int, int]]) -> None:
    plain = union((np.array([at for at, _ in spans], np.int64), np.array([at + more for at, more in spans], np.int64)))
    found = PackedIntervals.of(plain).intervals()
    assert [each.tolist() for each in found] == [each.tolist() for each in plain]


def test_stretches_of_kernels_take_half_of_what_they_take_plain() -> None:
    start = EPOCH_NS + np.cumsum(np.random.default_rng(1).integers(2_000, 900_000, 1000))
    found = PackedIntervals.of(Intervals(start, start + 1_500))
    assert sum(each.places.nbytes for each in (found.lengths, found.gaps) if each.places is not None) <= 8 * 1000
    assert found.intervals().ends.tolist() == (start + 1_500).tolist()


def _calls() -> Collectives:
    start = EPOCH_NS + np.arange(1000) * 5_000_000
    return make(
        Collectives, 1000, recording=0, step=np.arange(1000) // 100, group=np.arange(1000) % 3, seq=np.arange(1000),
        op=0, bytes=1 << 20, group_size=8, start_ns=start, end_ns=start + 40_000, launch_ns=start - 90_000,
    )  # fmt: skip


def test_calls_take_a_fraction_of_their_columns() -> None:
    calls = _calls()
    packed = PackedTable.of(calls)
    plain = sum(getattr(calls, name).nbytes for name in column_kinds(calls))
    assert sum(each.places.nbytes for each in packed.columns.values() if each.places is not None) < plain / 6


def test_packed_calls_are_a_table_like_any_other() -> None:
    calls = _calls()
    packed = PackedCollectives.of(PackedTable.of(calls))
    assert size(packed) == 1000
    assert packed.end_ns.tolist() == calls.end_ns.tolist()
    with pytest.raises(AttributeError):
        _ = packed.nothing  # type: ignore[attr-defined]


def test_copies_of_packed_calls_are_plain() -> None:
    packed = PackedCollectives.of(PackedTable.of(_calls()))
    for found in (copy(packed), take(packed, np.arange(1000)), deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert type(found) is Collectives
        assert found.launch_ns.tolist() == _calls().launch_ns.tolist()
    with pytest.raises(AttributeError, match="unset"):
        replace(packed, op=packed.op + 1)
