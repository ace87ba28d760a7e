"""A device that runs the same kernels slower in some steps, all by one factor, is named with these steps."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Straggler
from overlapscope.analysis.stragglers.slow_in_steps import AS_USUAL_STEPS, SLOW_STEPS, TIMES_IN_SLOW_STEPS
from overlapscope.report.text import cross_rank
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.unit.advice.test_slower_in_turn import IN_TURN, MS, STEP_NS, job, late
from tests.unit.analysis.stragglers.test_host_cause import with_readings

NOBODY, SLOW = -1, 2
SOMETIMES = (NOBODY, NOBODY, SLOW, SLOW, NOBODY, NOBODY)
THIRD = 4 / 3


def stragglers(run: Run) -> list[Straggler]:
    return analyze(run).skew.stragglers


def test_the_steps_in_which_a_device_is_slower_are_named_with_the_factor() -> None:
    """Four kernels of 10 ms take 13.3 ms each in two of six steps: chance alone would be one in nine."""
    run = job(SOMETIMES, longer=THIRD, sent_ns=MS)
    (found,) = stragglers(run)
    assert (found.rank, found.held_by) == (SLOW, "slower_compute")
    assert found.evidence[SLOW_STEPS] == [2, 3]
    assert found.evidence[TIMES_IN_SLOW_STEPS] == pytest.approx(THIRD)
    assert found.evidence[AS_USUAL_STEPS] == [0, 1, 4, 5]
    (sentence,) = cross_rank.straggler_sentences(analyze(run), 3)
    words = ", in steps 2, 3, where its kernels take 1.33 times as long as its peers'"
    assert f"{words}, and longer than in its other steps." in sentence
    recommended = late(run)
    assert recommended is not None
    assert recommended.title.startswith(f"Look at rank {SLOW} (slower compute){words}: waiting is ")


@pytest.mark.parametrize(
    ("slow_in", "longer", "times"),
    [
        pytest.param((SLOW, SLOW), 1.125, 1.125, id="in both of two steps"),
        pytest.param((NOBODY, SLOW, NOBODY, SLOW), 1.25, 1.25, id="now and then"),
    ],
)
def test_a_device_is_slower_by_one_factor_in_two_steps_by_no_chance(
    slow_in: Sequence[int], longer: float, times: float
) -> None:
    (found,) = stragglers(job(slow_in, longer=longer))
    assert (found.rank, found.held_by) == (SLOW, "slower_compute")
    assert found.evidence[TIMES_IN_SLOW_STEPS] == pytest.approx(times)
    assert bool(found.slow_in) == (NOBODY in slow_in), "of one that always is slower no steps are named"


def without_grids(run: Run) -> Run:
    ranks = {
        rank: replace(each, spans=replace(each.spans, blocks=np.full_like(each.spans.blocks, NONE)))
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(job(SOMETIMES, more=2, longer=1.0), id="more kernels"),
        pytest.param(job(SOMETIMES, longer=1.5, larger=2), id="larger grids"),
        pytest.param(job(SOMETIMES, longer=2.0, longer_kernels=1), id="one of four kernels"),
        pytest.param(without_grids(job(SOMETIMES, longer=1.5)), id="grids are not known: there may be more work"),
        pytest.param(job((NOBODY, SLOW, NOBODY, NOBODY), longer=1.5), id="one step is an event"),
        pytest.param(job(SOMETIMES, longer=1.08), id="equal devices may differ by so much"),
    ],
)
def test_other_work_and_little_of_it_is_no_slower_device(run: Run) -> None:
    assert not [each for each in stragglers(run) if SLOW_STEPS in each.evidence]


def test_devices_that_are_slower_in_turn_are_no_straggler() -> None:
    assert stragglers(job(IN_TURN, longer=THIRD)) == []


@pytest.mark.parametrize(("clock", "held_by"), [(1300, "throttled"), (1755, "slower_compute")])
def test_a_clock_that_is_low_in_the_slow_steps_is_throttling(clock: float, held_by: str) -> None:
    """In the median of the whole recording it is not low."""
    readings = {
        rank: [
            ("gpu0.sm_clock_mhz", step * STEP_NS, step, clock if rank == slow else 1755)
            for step, slow in enumerate(SOMETIMES)
        ]
        for rank in range(3)
    }
    (found,) = stragglers(with_readings(job(SOMETIMES, longer=THIRD), readings))
    assert (found.rank, found.held_by) == (SLOW, held_by)
    assert found.evidence.get("sm_clock_mhz") == (1300 if held_by == "throttled" else None)
