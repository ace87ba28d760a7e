"""Reductions one by one of unknown sizes, in traces of CPU runs: after backward they are of gradients."""

import pytest

from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from tests.support.cpu_runs.cpu_steps import US, Call, Item, Op, cpu_run
from tests.unit.advice.test_advice_rules import fired

AUTOGRAD = "autograd::engine::evaluate_function: AddmmBackward0"


def reduced(calls: int, *, autograd: str = AUTOGRAD, longer: int = 0) -> Recommendation | None:
    """Return the recommendation for steps with so many calls after backward, each of 10 us; in every fourth step of
    `longer` us more."""

    def step(number: int, rank: int) -> list[Item]:
        each = 10 + (longer if number % 4 == 0 else 0)
        return [
            Op("aten::addmm", 0, 300),
            Op(autograd, 380, 500),
            *(
                Call(start=510 + (each + 2) * at, end=510 + each + (each + 2) * at, elements=NONE)
                for at in range(calls)
            ),
            Op("aten::add_", 950, 990),
        ]

    return fired(cpu_run(step)).get("flatten_gradients")


@pytest.mark.parametrize(
    ("calls", "autograd", "said"),
    [
        pytest.param(20, AUTOGRAD, True, id="20 after backward"),
        pytest.param(12, AUTOGRAD, False, id="12 may be buckets"),
        pytest.param(20, "aten::mm", False, id="backward is not seen: they may be layers'"),
    ],
)
def test_calls_of_unknown_sizes_after_backward_reduce_gradients(calls: int, autograd: str, said: bool) -> None:
    found = reduced(calls, autograd=autograd)
    assert (found is not None) is said
    if found:
        assert f"{calls} all-reduces in a row take" in found.title


def test_a_median_step_says_how_long_they_take() -> None:
    """In two of six steps they take twice as long."""
    usual, some = reduced(16), reduced(16, longer=10)
    assert usual
    assert some
    assert usual.gain_high_ns == some.gain_high_ns == (15 * 12 + 10) * US
