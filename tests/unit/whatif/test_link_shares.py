"""Time of a link is split between calls that ran at once as calls like them take alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.whatif.step_graph.graph_calls import alone_times, times_of_link


def columns(*calls: tuple[str, int, int]) -> tuple[list[str], np.ndarray, np.ndarray]:
    kinds, begun, done = zip(*calls, strict=True)
    return list(kinds), np.array(begun, np.int64), np.array(done, np.int64)


def test_only_calls_that_nothing_shared_the_link_with_tell_what_they_take_alone() -> None:
    calls = columns(
        ("gather", 0, 85), ("gather", 100, 193), ("reduce", 141, 309), ("reduce", 309, 425), ("none", 430, 430)
    )
    assert alone_times(*calls) == {"gather": [85.0], "reduce": [116.0]}


def test_what_two_calls_took_together_is_split_as_they_take_alone() -> None:
    calls = columns(("gather", 100, 193), ("reduce", 141, 309))
    split = times_of_link(*calls, {"gather": 85.0, "reduce": 116.0})
    assert split.tolist() == pytest.approx([209 * 85 / 201, 209 * 116 / 201])
    # Of a kind that was never alone: the shares of each moment, 41 alone and half of 52; half of 52 and 116 alone.
    assert times_of_link(*calls, {"gather": 85.0}).tolist() == pytest.approx([67, 142])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(1, 20)), max_size=8))
def test_times_sum_to_the_time_in_which_the_link_was_busy(drawn: list[tuple[str, int, int]]) -> None:
    if not drawn:
        assert times_of_link([], np.empty(0, np.int64), np.empty(0, np.int64), {}).size == 0
        return
    calls = columns(*((kind, start, start + long) for kind, start, long in drawn))
    busy = {at for _, start, long in drawn for at in range(start, start + long)}
    for alone in ({}, {"a": 3.0, "b": 7.0}):
        own = times_of_link(*calls, alone)
        assert own.sum() == pytest.approx(len(busy))
        assert (own > 0).all()
