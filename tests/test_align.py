"""Alignment of call sequences against an oracle that tries all alignments there are."""

import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.align import Alignment, Nowhere, align
from overlapscope.ingest.correlate import WILD, fits_at, sums_over
from overlapscope.timeline.columns import NONE

tokens = st.integers(WILD, 2)
letters = st.integers(0, 2)


def ints(values: Sequence[int]) -> Any:
    return np.array(values, np.int64)


def fit(a: int, b: int) -> bool:
    return WILD in (a, b) or a == b


def all_alignments(pattern: Sequence[int], text: Sequence[int]) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """Every way to pair rows in order, with its gaps."""
    for size in range(1, len(pattern) + 1):
        for rows in combinations(range(len(pattern)), size):
            for places in combinations(range(len(text)), size):
                if all(fit(pattern[a], text[b]) for a, b in zip(rows, places, strict=True)):
                    gaps = len(pattern) - size + places[-1] - places[0] + 1 - size
                    yield gaps, tuple(zip(rows, places, strict=True))


def oracle(pattern: Sequence[int], text: Sequence[int], max_gaps: int) -> tuple[int, list[set[int]], list[bool]] | None:
    """The fewest gaps; for each row its possible partners; and whether it may have none."""
    ways = list(all_alignments(pattern, text))
    least = min((gaps for gaps, _ in ways), default=99)
    if least > max_gaps:
        return None
    slack = 1 if least else 0
    partners: list[set[int]] = [set() for _ in pattern]
    alone = [False] * len(pattern)
    for gaps, pairs in ways:
        if gaps <= least + slack:
            for row, place in pairs:
                partners[row].add(place)
        if gaps == least:
            for row in set(range(len(pattern))) - {row for row, _ in pairs}:
                alone[row] = True
    return least, partners, alone


def check(pattern: list[int], text: list[int], values: list[int], max_gaps: int) -> None:
    found = align(ints(pattern), ints(text), max_gaps)
    expected = oracle(pattern, text, max_gaps)
    if isinstance(found, Nowhere):
        assert found.why == "too_many" or expected is None
        return
    assert expected is not None
    least, partners, alone = expected
    assert found.gaps == least
    rows = [next(iter(p)) if len(p) == 1 and not a else NONE for p, a in zip(partners, alone, strict=True)]
    assert found.rows().tolist() == rows
    agreed, sure = found.agreed(ints(values))
    seen = [{values[place] for place in p} for p in partners]
    assert sure.tolist() == [len(s) == 1 and not a for s, a in zip(seen, alone, strict=True)]
    assert agreed.tolist() == [next(iter(s)) if k else NONE for s, k in zip(seen, sure.tolist(), strict=True)]


@given(st.lists(tokens, min_size=1, max_size=6), st.lists(tokens, max_size=9), st.data())
def test_places_without_gaps_are_those_of_the_oracle(pattern: list[int], text: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([NONE, 5, 7]), min_size=len(text), max_size=len(text)))
    check(pattern, text, values, 0)


@given(st.lists(letters, min_size=9, max_size=12), st.data())
def test_one_or_two_lost_calls_give_the_partners_of_the_oracle(text: list[int], data: st.DataObject) -> None:
    """The pattern is a piece of the text in which calls are missing, or that has calls the text does not."""
    first = data.draw(st.integers(0, 2))
    pattern = text[first : first + 7]
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(pattern) - 1))
        if data.draw(st.booleans()):
            pattern.insert(at, data.draw(tokens))
        else:
            del pattern[at]
    max_gaps = data.draw(st.integers(1, 2))
    if len(pattern) <= max_gaps + 2:
        return
    values = data.draw(st.lists(st.sampled_from([NONE, 5, 7]), min_size=len(text), max_size=len(text)))
    check(pattern, text, values, max_gaps)


@given(st.lists(letters, min_size=5, max_size=6), st.lists(tokens, max_size=9), st.integers(1, 2), st.data())
def test_unrelated_sequences_give_the_partners_of_the_oracle(
    pattern: list[int], text: list[int], max_gaps: int, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.sampled_from([5, 7]), min_size=len(text), max_size=len(text)))
    check(pattern, text, values, max_gaps)


@given(st.lists(tokens, min_size=1, max_size=5), st.lists(tokens, max_size=30), st.integers(0, 1 << 25))
def test_large_tokens_are_told_apart(pattern: list[int], text: list[int], factor: int) -> None:
    """Tokens that differ in one digit only, or only in their highest."""
    scaled = [[t if t == WILD else t * factor for t in each] for each in (pattern, text)]
    places = [
        s
        for s in range(len(text) - len(pattern) + 1)
        if all(fit(a, b) for a, b in zip(scaled[0], scaled[1][s:], strict=False))
    ]
    assert fits_at(ints(scaled[0]), ints(scaled[1])).tolist() == places


def test_a_periodic_sequence_agrees_on_values_but_not_on_places() -> None:
    step = [1, 2, 2, 3]
    found = align(ints(step * 2), ints([7, 8] + step * 5), 0)
    assert isinstance(found, Alignment)
    assert (found.gaps, found.count) == (0, 4)
    assert set(found.rows().tolist()) == {NONE}
    agreed, sure = found.agreed(ints([9, 9] + [10, 20, 21, 30] * 5))
    assert agreed.tolist() == [10, 20, 21, 30] * 2
    assert sure.all()
    other_in_third_step = ints([9, 9] + [10, 20, 21, 30] * 2 + [10, 99, 21, 30] + [10, 20, 21, 30] * 2)
    assert found.agreed(other_in_third_step)[1].tolist() == [True, False, True, True] * 2


def test_many_steps_with_one_lost_call_still_agree_on_values() -> None:
    """More places than are looked at one by one: they are of few kinds."""
    step = list(range(1, 13))
    lost = step * 3
    del lost[17]
    found = align(ints(lost), ints([50, 51] + step * 400 + [52]), 4)
    assert isinstance(found, Alignment)
    assert found.gaps == 1
    assert found.count > 390
    agreed, sure = found.agreed(ints([0, 0] + [10 * each for each in step] * 400 + [0]))
    assert sure.all()
    assert agreed.tolist() == [10 * each for each in lost]


def test_too_many_kinds_of_nearly_fitting_places_are_refused() -> None:
    rng = np.random.default_rng(1)
    text = rng.integers(0, 2, 4000)
    pattern = np.concatenate([rng.integers(0, 2, 5), np.full(20, 2)])  # its first fifth fits nearly everywhere
    assert align(pattern, text, 3) == Nowhere(why="too_many")


@pytest.mark.parametrize("alphabet", [4, 900, 200_000])
def test_a_million_calls_are_searched_for_a_hundred_thousand_without_rounding_errors(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    text = rng.integers(0, alphabet, 1 << 20)
    start = 700_001
    pattern = text[start : start + 100_000].copy()
    assert fits_at(pattern, text).tolist() == [start]
    pattern[50_000] = (pattern[50_000] + 1) % alphabet
    assert fits_at(pattern, text).size == 0
    found = align(np.delete(pattern, 50_000), text, 2)
    assert isinstance(found, Alignment)
    assert found.gaps == 1
    rows = found.rows()  # at either end a call may also be one further away, beyond a second gap
    assert rows[10_000] == start + 10_000
    assert rows[90_000] == start + 90_001


def test_time_grows_with_the_length_and_not_with_the_product() -> None:
    """Sixteen times as much of both takes 256 times as long by direct comparison; repeated steps are its worst case."""

    def seconds(scale: int) -> float:
        step = np.arange(50)
        pattern, text = np.tile(step, 40 * scale), np.tile(step, 400 * scale)
        begun = time.process_time()
        found = align(pattern, text, 0)
        assert isinstance(found, Alignment)
        found.agreed(np.arange(text.size) % 7)
        return time.process_time() - begun

    small = min(seconds(1) for _ in range(3))
    assert min(seconds(16) for _ in range(2)) < 100 * small


@given(st.sets(st.integers(0, 20), min_size=1), st.lists(st.integers(-4000, 4000), min_size=1, max_size=30))
def test_sums_over_places_are_exact(places: set[int], values: list[int]) -> None:
    expected = [sum(values[row + p] for p in places if row + p < len(values)) for row in range(len(values))]
    assert sums_over(ints(sorted(places)), ints(values)).tolist() == expected
