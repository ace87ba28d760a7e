"""A few steps that are alike, and longer than the others, are found with what is longer; other kinds are not."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.job_step.headline import Headline, StepOfJob
from overlapscope.analysis.job_step.slower_steps import returns, slow_steps, slower_steps
from tests.support.step_cases import Kernel, Sent, made

US = 1_000
SLOW_US = (100, 400, 410, 104, 98, 101)


def found(
    calls_us: Sequence[int] = SLOW_US,
    *,
    computes_us: int = 0,
    sent_bytes: int = 1 << 20,
    said: Sequence[Finding] = (),
    world_size: int = 2,
) -> list[Finding]:
    """Return the findings on six steps of two ranks that expose a call of so many us and compute for 500 us; of those
    whose call is longer than 200 us, `computes_us` of the rest are computed, and `sent_bytes` are sent."""

    def step(number: int) -> list[Kernel | Sent]:
        size_bytes = sent_bytes if calls_us[number] > 200 else 1 << 20
        return [Kernel(start=0, end=300), Sent(start=300, end=300 + calls_us[number], size_bytes=size_bytes)]

    exposed = [us - computes_us * (us > 200) for us in calls_us]
    steps = [
        StepOfJob(
            step=at, step_ns=(500 + us) * US, overlapped_ns=0, exposed_comm_ns=exposed[at] * US,
            compute_only_ns=(500 + us - exposed[at]) * US, copy_only_ns=0, idle_ns=0, start_of_recording_ns=0,
            outside_ns=0,
        )
        for at, us in enumerate(calls_us)
    ]  # fmt: skip
    head = Headline(window="step", steps=len(steps), job_steps=steps, ranks=[0, 1])
    return slower_steps(replace(made(step), world_size=world_size), head, said)


def test_two_steps_that_mask_each_other_are_named_with_what_is_longer() -> None:
    (each,) = found()
    assert each.title == (
        "steps 1, 2 take 0.905 ms in the median, the other 4 steps 0.601 ms, for the same calls; 0.304 ms of the "
        "difference are exposed communication: calls of all_reduce of 1 MiB last 0.405 ms a step instead of "
        "0.101 ms, waiting included"
    )
    assert each.evidence["steps"] == [1, 2]
    assert each.evidence["lost_ns"] == pytest.approx(304.5 * US / 3)


def test_steps_that_do_other_work_are_not_slow() -> None:
    assert found(sent_bytes=2 << 20) == []  # as of a longer sequence
    assert found(computes_us=200) == []
    assert found((100, 400, 104, 98, 410, 101)) == []  # every third


def test_half_of_the_steps_are_slow_where_they_follow_each_other_and_their_calls_last_much_longer() -> None:
    (each,) = found((100, 400, 410, 404, 98, 101))
    assert each.title.startswith("steps 1, 2, 3 take 0.904 ms in the median, the other 3 steps 0.600 ms")
    assert found((300, 400, 402, 404, 301, 299)) == []  # by a third: neither half is the usual one
    assert found((300, 400, 402, 298, 301, 299)) != []  # nor would it be said of few


def test_ranks_that_were_not_recorded_may_be_what_calls_wait_for() -> None:
    (each,) = found(world_size=4)
    assert each.title.endswith("instead of 0.101 ms, waiting included, for ranks that were not recorded, too")


def test_a_step_that_was_said_to_be_odd_is_not_said_again() -> None:
    odd = Finding(
        id="odd_step:window_ns:rank0:step2", severity="warning", title="", evidence={"step": 2}, known_from=""
    )
    assert found(said=[odd]) == []


@pytest.mark.parametrize(
    ("took", "slow"),
    [
        ((31.4, 42.2, 42.3, 31.3, 31.5), [1, 2]),
        ((31.4, 42.2, 42.3, 31.3), None),  # few
        ((31.4, 42.2, 31.3, 31.5, 31.4), None),  # one, which would stand out alone
        ((31.4, 42.2, 42.3, 42.1, 31.5), None),  # most
        ((31.4, 42.2, 42.3, 42.1, 31.5, 31.4), [1, 2, 3]),  # half, in a row
        ((31.4, 42.2, 31.5, 42.3, 42.1, 31.4), None),  # half, here and there
        ((31.4, 34.5, 34.6, 31.3, 31.5), None),  # less than a tenth
        ((31.4, 35.0, 34.9, 31.3, 31.5), [1, 2]),
        ((31.4, 42.2, 45.8, 31.3, 31.5), None),  # they differ themselves
        ((31.4, 42.2, 45.6, 31.3, 31.5), [1, 2]),
    ],
)
def test_slow_steps_are_few_alike_and_far_from_the_others(took: Sequence[float], slow: list[int] | None) -> None:
    which = slow_steps(np.array(took) * 1e6)
    assert (None if which is None else np.flatnonzero(which).tolist()) == slow


@pytest.mark.parametrize(
    ("flags", "regular"),
    [
        ("01100", False),
        ("00011", False),
        ("01001000", False),
        ("010010", True),
        ("0110011", True),
        ("10101", True),
        ("100001", False),
    ],
)
def test_steps_that_come_again_in_a_fixed_number_of_steps_are_known(flags: str, *, regular: bool) -> None:
    assert returns(np.array([each == "1" for each in flags])) == regular
