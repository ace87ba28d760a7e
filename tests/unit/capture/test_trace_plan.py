"""Which steps the profiler records, by hand and against torch's own schedule."""

import warnings
from inspect import signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from torch import profiler  # noqa: E402 - behind the check for torch

from overlapscope.capture.hooks.profiler import plan  # noqa: E402

pytestmark = pytest.mark.torch
LETTERS = {"NONE": ".", "WARMUP": "w", "RECORD": "r", "RECORD_AND_SAVE": "S"}


@pytest.mark.parametrize(
    ("warmup", "steps", "repeat", "planned"),
    [
        (0, 1, None, "S......"),
        (2, 3, None, ".wrrS.."),
        (1, 2, 4, "wrS.wrS"),
        (3, 1, 3, "..wS.wS"),
        (0, 1, 3, "wS.wS.w"),
    ],
)
def test_the_steps_that_are_asked_for_are_recorded(warmup: int, steps: int, repeat: int | None, planned: str) -> None:
    action = plan(warmup, steps, repeat)
    assert "".join(LETTERS[action(step).name] for step in range(len(planned))) == planned


@given(warmup=st.integers(0, 5), steps=st.integers(1, 5), pause=st.none() | st.integers(1, 5))
def test_torchs_own_schedule_says_the_same(warmup: int, steps: int, pause: int | None) -> None:
    if "skip_first_wait" not in signature(profiler.schedule).parameters:
        pytest.skip("this torch cannot begin a schedule without its wait")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a schedule without warm-up
        theirs = profiler.schedule(
            skip_first=max(warmup - 1, 0),
            wait=0 if pause is None else pause - 1,
            warmup=min(warmup, 1) if pause is None else 1,
            active=steps,
            repeat=1 if pause is None else 0,
            skip_first_wait=1,
        )
    ours = plan(warmup, steps, None if pause is None else steps + pause)
    assert [ours(step) for step in range(40)] == [theirs(step) for step in range(40)]
