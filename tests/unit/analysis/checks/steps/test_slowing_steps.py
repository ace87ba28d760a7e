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


def test_a_rise_from_some_step_on_is_named_with_the_step() -> None:
    (one,) = found([100.0, 104.0, 102.0, 150.0, 149.0, 151.0, 190.0])
    assert one.title == (
        "steps get slower: from step 3 on they take 150.500 ms in the median, none less than 149.000 ms; before it "
        "102.000 ms, none more than 104.000 ms; 48.500 ms of the difference are compute"
    )
    assert one.evidence["from_step"] == 3
    assert len(found([100.0, 100.0, 100.0, 115.0, 115.0, 115.0])) == 1


def test_a_few_steps_that_each_take_longer_than_the_one_before_are_named() -> None:
    (one,) = found([100.0, 105.0, 110.0, 112.0, 116.0])
    assert one.title == (
        "steps get slower: each takes longer than the one before, the first 100.000 ms, the last 116.000 ms; 16.000 ms "
        "of the difference are compute"
    )


@pytest.mark.parametrize(
    "steps_ms",
    [
        pytest.param(SLOWING[:4], id="few"),
        pytest.param([*SLOWING[:8], 110.0, *SLOWING[9:11]], id="not each of a few"),
        pytest.param([100.0, 101.0, 100.0, 130.0, 131.0], id="a rise of two steps"),
        pytest.param([100.0, 101.0, 115.0, 130.0, 131.0, 129.0], id="a rise that one step of those before is near"),
        pytest.param([100.0, 103.0, 106.0, 109.0, 112.0], id="growing by an eighth"),
        pytest.param([100.0 + 0.8 * each for each in range(18)], id="by an eighth"),
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
