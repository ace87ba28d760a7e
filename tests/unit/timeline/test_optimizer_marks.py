"""Marks of optimizer steps are found once each, however they are nested."""

import pytest

from overlapscope.timeline.optimizer_marks import optimizer_marks
from tests.support.rank_rows import Row, rank_timeline

TORCH, OWN = "Optimizer.step#AdamW.step", "overlapscope.optimizer"


def begun(*marks: tuple[str, int, int]) -> list[int]:
    """Return when the marks found began, of these ranges: name, begin, end."""
    notes: list[Row] = [{"name": name, "start_ns": start, "end_ns": end} for name, start, end in marks]
    timeline = rank_timeline(0, annotations=notes)
    return list(timeline.annotations.start_ns[optimizer_marks(timeline)].tolist())


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(TORCH, 50, 60), (TORCH, 10, 20)], [10, 50], id="in order of time"),
        pytest.param([(TORCH, 12, 18), ("optimizer", 10, 20), (TORCH, 50, 60)], [10, 50], id="the outer one"),
        pytest.param([("optimizer", 10, 30), (TORCH, 12, 15), (TORCH, 16, 30)], [10], id="two in one"),
        pytest.param([(TORCH, 10, 20), (OWN, 10, 20)], [10], id="the same time"),
        pytest.param([(TORCH, 10, 20), (TORCH, 20, 30)], [10, 20], id="one after the other"),
        pytest.param([("optimizer_of_mine", 10, 20), ("backward", 30, 40)], [], id="other ranges"),
    ],
)
def test_marks_inside_others_are_no_steps(marks: list[tuple[str, int, int]], found: list[int]) -> None:
    assert begun(*marks) == found
