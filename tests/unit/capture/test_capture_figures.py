"""Figures that capture computes without a profiler: waiting at the end of backward, and its own cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.capture.bucket_waits import bucket_waits
from overlapscope.capture.overhead import MIN_STEPS, differences, overhead


def finalized(
    begin_ns: int, done_ns: list[int], size_bytes: list[int], speed: int
) -> tuple[list[tuple[int, int]], int]:
    """Do what DDP does at the end of backward, step by step: wait for each bucket, then copy it, `speed` ns a byte."""
    now, waits = begin_ns, []
    for done, size in zip(done_ns, size_bytes, strict=True):
        if done > now:
            waits.append((now, done))
            now = done
        now += speed * size
    return waits, now


buckets = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 500)), min_size=1, max_size=8)


@given(begin_ns=st.integers(0, 5_000), drawn=buckets, speed=st.integers(1, 20))
def test_waits_between_copies_are_found_from_the_end_alone(
    begin_ns: int, drawn: list[tuple[int, int]], speed: int
) -> None:
    done, sizes = [each[0] for each in drawn], [each[1] for each in drawn]
    waits, end = finalized(begin_ns, done, sizes, speed)
    found = bucket_waits(begin_ns, end, done, sizes, copies=True)
    assert sum(stop - start for start, stop in found) == pytest.approx(
        sum(stop - start for start, stop in waits), abs=2 * len(waits) + 2
    )


def test_without_copies_all_time_to_the_last_bucket_is_waiting() -> None:
    assert bucket_waits(100, 900, [150, 500, 400], [10, 10, 10], copies=False) == [(100, 150), (150, 500)]


def test_buckets_that_were_done_before_are_not_waited_for() -> None:
    assert bucket_waits(100, 900, [50, 60], [10, 10], copies=True) == []


def test_an_end_mark_later_than_backward_is_cut_there() -> None:
    assert bucket_waits(100, 900, [950], [10], copies=True) == [(100, 900)]


def test_a_drifting_machine_does_not_change_the_cost_that_is_found() -> None:
    cost, captured = 1_000, [number % 2 == 0 for number in range(201)]
    drift = [1_000_000 + 5_000 * number for number in range(201)]
    lasted = [base + cost * with_us for base, with_us in zip(drift, captured, strict=True)]
    found = overhead(lasted, captured)
    assert found is not None
    assert found.median_ns == found.low_ns == found.high_ns == cost


def test_only_steps_between_two_of_the_other_kind_have_a_difference_and_none_is_used_twice() -> None:
    captured = [False, True, False, True, True, False, False, True, False]
    assert differences([0, 10, 0, 20, 0, 0, 4, 9, 6], captured).tolist() == [15.0, 4.0]


def test_steps_captured_in_a_block_are_compared_to_the_ones_near_them() -> None:
    far, near, block = [5_000] * 100, [1_000] * 8, [1_300] * 4
    lasted, captured = [*block, *near, *far], [True] * 4 + [False] * 108
    found = overhead(lasted, captured)
    assert found is not None
    assert found.median_ns == pytest.approx(300)


def test_too_few_steps_have_no_cost() -> None:
    assert overhead([1] * MIN_STEPS, [True] * MIN_STEPS) is None
    assert overhead([], []) is None


@pytest.mark.slow
def test_the_interval_holds_the_true_cost_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    captured = [number % 2 == 0 for number in range(101)]
    held = 0
    for _ in range(200):
        noise = rng.normal(1_000_000, 30_000, 101)
        found = overhead(
            [round(each) + 5_000 * with_us for each, with_us in zip(noise, captured, strict=True)], captured
        )
        assert found is not None
        held += found.low_ns <= 5_000 <= found.high_ns
    assert held / 200 >= 0.88
