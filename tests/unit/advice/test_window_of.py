"""In which window a moment lies, against asking each window."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.advice.rule_input import window_of
from overlapscope.timeline.columns import NONE

CUTS = st.lists(st.integers(0, 40), unique=True, max_size=8).map(sorted)


@given(CUTS, st.lists(st.integers(-2, 45), max_size=12))
def test_a_moment_lies_in_the_window_that_holds_it(cuts: list[int], moments: list[int]) -> None:
    windows = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    asked = [next((at for at, (a, b) in enumerate(windows) if a <= each < b), NONE) for each in moments]
    assert window_of(windows[::-1], np.array(moments, np.int64)).tolist() == asked
