"""Ranges in which one step alone spends long are named; those of all steps, short and frameworks' ones are not."""

from collections.abc import Callable

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Call, Mark, Op, cpu_run


def run(lasts: Callable[[int, int], float], name: str = "data") -> Run:
    """Return two ranks that are in a range for so many us of each step, by its number and the rank."""

    def step(number: int, rank: int) -> list[Op | Call]:
        us = lasts(number, rank)
        return [Op("aten::mm", 400, 600), Call(start=610, end=700), *([Mark(name, 5, 5 + us)] if us else [])]

    return cpu_run(step)


def titles(job: Run) -> list[str]:
    return [each.title for each in analyze(job).findings if each.id.startswith("odd_range")]


def test_a_range_that_one_step_alone_spends_long_in_is_named_with_step_and_rank() -> None:
    assert titles(run(lambda step, rank: 300 if (step, rank) == (3, 1) else 2)) == [
        "step 3 alone is in data for 0.300 ms (rank 1), in no other step for more than 0.002 ms"
    ]


def test_ranks_that_do_so_in_the_same_step_are_named_together() -> None:
    assert titles(run(lambda step, rank: (step == 2) * (200 + rank), "evaluation")) == [
        "step 2 alone is in evaluation for 0.201 ms (ranks 0, 1), in no other step"
    ]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        pytest.param(run(lambda step, _: 80 if step == 2 else 8), True, id="8 % of a step, ten times the others"),
        pytest.param(run(lambda step, _: 79 if step == 2 else 2), False, id="less of a step"),
        pytest.param(run(lambda step, _: 80 if step == 2 else 9), False, id="less than ten times"),
        pytest.param(run(lambda step, _: 300 if step in (2, 4) else 2), False, id="two steps"),
        pytest.param(run(lambda step, _: 300 * (step == 2), "Optimizer.step#SGD.step"), False, id="the optimizer"),
    ],
)
def test_what_is_short_or_in_several_steps_is_not_named(job: Run, *, named: bool) -> None:
    assert bool(titles(job)) == named
