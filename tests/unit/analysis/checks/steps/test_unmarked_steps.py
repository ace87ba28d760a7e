"""Without marks of steps, optimizers at an even period show how long a step took."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.checks.steps.unmarked_steps import unmarked_steps
from overlapscope.timeline.columns import Steps, make, take
from overlapscope.timeline.run import Run
from tests.support.step_cases import Kernel, Range, made


def without_marks(run: Run, *, keep: int | None = None) -> Run:
    ranks = {}
    for rank, each in run.ranks.items():
        notes = take(each.annotations, np.arange(keep or each.annotations.name.size))
        ranks[rank] = replace(each, steps=make(Steps, 0), annotations=notes)
    return replace(run, ranks=ranks)


def updating(later_us: float = 0) -> Run:
    """Return a run of six steps of 1 ms; the optimizer of every other one begins `later_us` later."""
    return made(
        lambda number: [
            Kernel(start=0, end=900),
            Range(name="Optimizer.step#AdamW.step", start=800 + later_us * (number % 2), end=850 + later_us),
        ]
    )


def test_an_even_period_is_named() -> None:
    (found,) = unmarked_steps(without_marks(updating()))
    assert found.title.startswith("no step marks: the optimizer runs every 1.000 ms (6 times)")
    assert found.evidence == {"period_ns": 1_000_000, "optimizers": 6}


def behind(*, later: int = 0, ratio: float = 1.0, ran_ahead: bool = True) -> Run:
    """Return a run of six steps whose host begins optimizers unevenly, as it runs ahead, and launches one kernel in
    each, which begins on the device when the optimizer's turn comes: in every other step so many us later; then it
    takes `ratio` times as long."""

    def step(number: int) -> list[Kernel | Range]:
        begins = (-300 if number % 3 else 300) if ran_ahead else 700
        begun, length = 700 + later * (number % 2), 100 * (ratio if number % 2 else 1)
        return [
            Kernel(start=0, end=600, launch=-400),
            Kernel(start=begun, end=begun + length, launch=begins + 10, name="adam"),
            Range(name="Optimizer.step#AdamW.step", start=begins, end=begins + 20),
        ]

    return without_marks(made(step))


def test_where_the_host_runs_ahead_the_period_is_that_of_the_optimizers_kernels() -> None:
    (found,) = unmarked_steps(behind())
    assert found.title.startswith("no step marks: the optimizer runs every 1.000 ms (6 times)")


def test_where_steps_differ_it_is_said_by_how_much() -> None:
    (found,) = unmarked_steps(behind(later=60))
    assert "runs every 1.060 ms in the median (from 0.940 to 1.060 ms) (6 times)" in found.title


def twice(*, ratio: float = 1.0, apart_us: int = 1000, optimizer_us: int = 100) -> Run:
    """Return a run of two ranks whose optimizer runs twice, the second one `ratio` times as long."""

    def step(number: int) -> list[Kernel | Range]:
        if number > 1:
            return []
        at = 700 - (1000 - apart_us) * number
        mark = Range(name="Optimizer.step#AdamW.step", start=at - 50, end=at - 30)
        took = optimizer_us * (ratio if number else 1)
        return [mark, Kernel(start=at, end=at + took, launch=at - 40, name="adam")]

    return without_marks(made(step))


def test_two_optimizers_that_are_alike_tell_a_step_if_it_has_one() -> None:
    (found,) = unmarked_steps(twice())
    assert found.title.startswith(
        "no step marks: the optimizer runs twice, 1.000 ms apart on each of 2 ranks: a step takes that, if it has one"
    )
    assert found.evidence == {"period_ns": 1_000_000, "optimizers": 2}


@pytest.mark.parametrize("run", [twice(ratio=1.2), twice(apart_us=150)], ids=["not alike", "one after the other"])
def test_two_optimizers_that_may_be_of_one_step_tell_none(run: Run) -> None:
    assert unmarked_steps(run) == []


@pytest.mark.parametrize("run", [behind(later=200), behind(ratio=1.2)], ids=["far apart", "of two sizes"])
def test_optimizers_that_are_uneven_or_not_alike_on_the_device_tell_no_period(run: Run) -> None:
    assert unmarked_steps(run) == []


@pytest.mark.parametrize(
    "run",
    [updating(), without_marks(updating(later_us=60)), without_marks(updating(), keep=2), without_marks(made(
        lambda _: [Kernel(start=0, end=900)]))],
    ids=["marked", "uneven", "few", "no optimizer"],
)  # fmt: skip
def test_others_have_none(run: Run) -> None:
    assert unmarked_steps(run) == []
