"""Alignment against brute force: no alignment that keeps the order of both pairs more equal calls."""

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.structure import alignment
from overlapscope.analysis.structure.alignment import Sequence, align

KEYS = st.lists(st.integers(0, 3), max_size=9)


def sequence(keys: list[int], hints: list[int] | None = None, sorts: list[int] | None = None) -> Sequence:
    rows = len(keys)
    return Sequence(
        np.array(keys, np.int64),
        np.array(sorts if sorts is not None else [0] * rows, np.int64),
        np.zeros((rows, 0), np.int64),
        np.array(hints if hints is not None else [0] * rows, np.int64).reshape(rows, 1),
        np.zeros(rows),
    )


def longest_common(ours: list[int], theirs: list[int]) -> int:
    @cache
    def best(at: int, to: int) -> int:
        if at == len(ours) or to == len(theirs):
            return 0
        both = 1 + best(at + 1, to + 1) if ours[at] == theirs[to] else 0
        return max(both, best(at + 1, to), best(at, to + 1))

    return best(0, 0)


@given(KEYS, KEYS)
def test_as_many_equal_calls_are_paired_as_any_alignment_can(ours: list[int], theirs: list[int]) -> None:
    found = align(sequence(ours), sequence(theirs))
    equal = sum(ours[a] == theirs[b] for a, b in zip(found.base.tolist(), found.candidate.tolist(), strict=True))
    assert equal == longest_common(ours, theirs)


@given(KEYS, KEYS)
def test_pairs_keep_the_order_of_both_and_every_row_is_paired_or_left(ours: list[int], theirs: list[int]) -> None:
    found = align(sequence(ours), sequence(theirs))
    for paired, left, rows in ((found.base, found.removed, len(ours)), (found.candidate, found.added, len(theirs))):
        assert (np.diff(paired) > 0).all()
        assert sorted([*paired.tolist(), *left.tolist()]) == list(range(rows))


@given(KEYS, KEYS)
def test_calls_of_another_sort_are_never_paired(ours: list[int], theirs: list[int]) -> None:
    found = align(sequence(ours, sorts=ours), sequence(theirs, sorts=theirs))
    assert [ours[row] for row in found.base.tolist()] == [theirs[row] for row in found.candidate.tolist()]


def test_hints_say_which_of_equal_calls_is_new() -> None:
    assert align(sequence([7, 7], [1, 2]), sequence([7, 7, 7], [1, 5, 2])).added.tolist() == [1]


def test_hints_never_cost_an_equal_pair() -> None:
    shifted = align(sequence([7, 7, 7], [0, 1, 2]), sequence([7, 7, 7], [1, 2, 3]))
    assert shifted.added.size == shifted.removed.size == 0


@given(KEYS, KEYS)
def test_sequences_too_long_to_weigh_are_paired_by_equal_calls(ours: list[int], theirs: list[int]) -> None:
    found = alignment._in_order(sequence(ours), sequence(theirs))
    assert [ours[row] for row in found[0].tolist()] == [theirs[row] for row in found[1].tolist()]
    assert found[0].size == sum(min(ours.count(key), theirs.count(key)) for key in set(ours))
