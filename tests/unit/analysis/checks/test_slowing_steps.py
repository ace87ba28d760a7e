"""Steps that get slower over a recording are found, and what of them; those that vary, or are few, are not."""

from collections.abc import Sequence

import numpy as np
import pytest

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.job_step.headline import Headline, StepOfJob
from overlapscope.analysis.job_step.slowing_steps import slowing_steps

MS = 1_000_000


def found(steps_ms: Sequence[float], exposed_ms: Sequence[float] = ()) -> list[Finding]:
    exposed = [round(each * MS) for each in exposed_ms] or [0] * len(steps_ms)
    steps = [
        StepOfJob(
            step=at, step_ns=round(ms * MS), overlapped_ns=0, exposed_comm_ns=exposed[at],
            compute_only_ns=round(ms * MS) - exposed[at], copy_only_ns=0, idle_ns=0, start_of_recording_ns=0,
            outside_ns=0,
        )
        for at, ms in enumerate(steps_ms)
    ]  # fmt: skip
    return slowing_steps(Headline(window="step", steps=len(steps), job_steps=steps), "trace")


SLOWING = [100.0 + 3 * at for at in range(18)]


def test_steps_that_get_slower_are_named_with_what_they_spend_it_on() -> None:
    (one,) = found(SLOWING)
    assert one.title == (
        "steps get slower: the last third of them take 143.500 ms in the median, the first third 107.500 ms; 36.000 ms "
        "of the difference are compute"
    )
    assert one.evidence["lost_ns"] == pytest.approx((100 + 3 * 8.5 - 107.5) * MS)
    waits = [5.0 + 2.5 * at for at in range(18)]
    (other,) = found(SLOWING, waits)
    assert "30.000 ms of the difference are exposed communication" in other.title


@pytest.mark.parametrize(
    "steps_ms",
    [
        pytest.param(SLOWING[:11], id="few"),
        pytest.param([100.0 + each for each in range(18)], id="by a tenth"),
        pytest.param(SLOWING[::-1], id="faster"),
        pytest.param([100.0, 160.0] * 9, id="by turns"),
        pytest.param([100.0] * 12 + [100.0, 300.0, 100.0, 300.0, 300.0, 300.0], id="some of the last"),
    ],
)
def test_others_are_not(steps_ms: list[float]) -> None:
    assert found(steps_ms) == []


def test_steps_that_vary_by_chance_get_slower_once_in_many_recordings() -> None:
    random = np.random.default_rng(3)
    named = sum(bool(found(random.exponential(40, 18) + 60)) for _ in range(2_000))
    assert named <= 10
