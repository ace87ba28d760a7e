"""Calls that were launched before a recording began are of the step before: no layers, but gradients as in backward."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls.calls_in_flight import in_flight_at_start
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import STEPS, US, Item, Kernel, Sent, made
from tests.unit.advice.calls.test_sixteen_bit_gradients import BFLOAT16, MIB
from tests.unit.advice.test_advice_rules import fired

CALLS = 6


def rows(run: Run, *, launched: bool = False) -> Run:
    """Return a recording without marks of steps, whose first calls have no launch."""
    return replace(run, ranks={rank: _unmarked(each, launched=launched) for rank, each in run.ranks.items()})


def _unmarked(timeline: RankTimeline, *, launched: bool) -> RankTimeline:
    calls, steps = timeline.collectives, timeline.steps
    launch = calls.launch_ns.copy()
    if not launched:
        launch[np.argsort(calls.start_ns)[:CALLS]] = NONE
    none = {name: getattr(steps, name)[:0] for name in steps.__struct_fields__}
    return replace(timeline, collectives=replace(calls, launch_ns=launch), steps=replace(steps, **none))


def recorded(*, size_bytes: int = 36 * MIB, apart: float = 0, launched: bool = False) -> Run:
    """Return a job of which a row of calls of the step before is in flight, with compute between them if `apart`, and
    then each step reduces as many in backward."""

    def step(number: int) -> list[Item]:
        compute = Kernel(start=400, end=500, launch=350, name=BFLOAT16)
        if number:
            sent = [
                Sent(start=500 + 50 * at, end=550 + 50 * at, launch=420, phase="backward", size_bytes=36 * MIB)
                for at in range(CALLS)
            ]
            return [compute, *sent, Kernel(start=800, end=990, launch=450, name=BFLOAT16)]
        width = 50 + apart
        tail: list[Item] = [
            Sent(start=width * at, end=width * at + 50, launch=0, size_bytes=size_bytes) for at in range(CALLS)
        ]
        between = [Kernel(start=width * at + 50, end=width * (at + 1), launch=1, name=BFLOAT16) for at in range(CALLS)]
        return [*tail, *between * (apart > 0), compute]

    return rows(made(step), launched=launched)


def test_calls_without_a_launch_before_all_others_are_in_flight() -> None:
    found = in_flight_at_start(recorded().ranks[0])
    assert found.tolist() == [True] * CALLS + [False] * CALLS * (STEPS - 1)
    assert not in_flight_at_start(recorded(launched=True).ranks[0]).any()
    timeline = recorded().ranks[0]
    nowhere = replace(timeline.collectives, launch_ns=np.full_like(timeline.collectives.launch_ns, NONE))
    assert not in_flight_at_start(replace(timeline, collectives=nowhere)).any(), "no launch is recorded"


@pytest.mark.parametrize(
    ("run", "is_found"),
    [
        pytest.param(recorded(apart=15, launched=True), True, id="compute follows each"),
        pytest.param(recorded(apart=15), False, id="in flight as the recording begins"),
        pytest.param(recorded(launched=True), False, id="one follows the other"),
    ],
)
def test_all_reduces_before_backward_are_those_of_layers_if_compute_follows_each(run: Run, *, is_found: bool) -> None:
    assert ("tensor_parallel" in fired(run)) == is_found


def test_gradients_of_the_step_before_are_halved_too() -> None:
    """A row of others is no gradients."""
    found, other = (fired(recorded(size_bytes=size * MIB))["sixteen_bit_gradients"] for size in (36, 37))
    assert found.evidence["bytes"] - other.evidence["bytes"] == CALLS * 36 * MIB
    assert found.gain_high_ns is not None
    assert other.gain_high_ns is not None
    assert found.gain_high_ns - other.gain_high_ns == pytest.approx(CALLS * 25 * US, rel=0.01)
