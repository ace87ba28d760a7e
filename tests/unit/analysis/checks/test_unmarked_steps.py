"""Without marks of steps, optimizers at an even period show how long a step took."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.checks.unmarked_steps import unmarked_steps
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


@pytest.mark.parametrize(
    "run",
    [updating(), without_marks(updating(later_us=60)), without_marks(updating(), keep=2), without_marks(made(
        lambda _: [Kernel(start=0, end=900)]))],
    ids=["marked", "uneven", "few", "no optimizer"],
)  # fmt: skip
def test_others_have_none(run: Run) -> None:
    assert unmarked_steps(run) == []
