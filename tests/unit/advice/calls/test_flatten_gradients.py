"""Reductions one by one of unknown sizes, in traces of CPU runs: after backward they are of gradients."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.calls.flatten_gradients import flatten_gradients
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support import step_cases
from tests.support.cpu_runs.cpu_steps import US, Call, Item, Op, cpu_run
from tests.support.step_cases import Kernel, Sent, made
from tests.unit.advice.calls.test_savings import looked_at
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


@pytest.mark.slow
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


def reducing(late_steps: int, *, in_turn: bool = False) -> Run:
    """Return two ranks that reduce 40 gradients one by one, in 2 us each; in so many steps of six rank 1 comes 300 us
    later than rank 0, whose first call waits for it, and with `in_turn` rank 0 in the others."""

    def of_rank(rank: int) -> RankTimeline:
        def step(number: int) -> list[step_cases.Item]:
            late = 300 * (in_turn or number < late_steps)
            own = late if rank == (number < late_steps) else 0
            calls = [Sent(start=500 + own, end=502 + late)]
            calls += [Sent(start=502 + late + 2 * at, end=504 + late + 2 * at) for at in range(39)]
            return [Kernel(start=0, end=490 + own), *calls, Kernel(start=600 + late, end=640 + late, name="optimizer")]

        return made(step).ranks[rank]

    return replace(made(lambda _: [Kernel(start=0, end=1)]), ranks={rank: of_rank(rank) for rank in range(2)})


@pytest.mark.parametrize(("late_steps", "in_turn"), [(0, False), (3, False), (3, True)])
def test_on_devices_waiting_is_no_part_of_a_burst_though_no_rank_is_a_straggler(
    late_steps: int, *, in_turn: bool
) -> None:
    given = looked_at(reducing(late_steps, in_turn=in_turn))
    none = replace(given.analysis.skew, stragglers=[])
    found = flatten_gradients(replace(given, analysis=replace(given.analysis, skew=none)))
    assert found is not None
    assert found.gain_high_ns == 80 * US
    assert ("besides waiting for late ranks" in found.title) is (late_steps > 0)


def test_idle_time_in_bursts_is_addressed_by_what_names_them() -> None:
    """Of 520 us idle in a step about 120 lie in a burst of 200 us; of the other 400 another rule names 200."""
    calls = [Sent(start=300 + 5 * at, end=302 + 5 * at) for at in range(40)]
    given = looked_at(made(lambda _: [Kernel(start=0, end=300), *calls, Kernel(start=500, end=600)]))
    flat = flatten_gradients(given)
    assert flat is not None
    launches = replace(flat, id="launch_bound", loss_ns=200 * US)
    assert largest_loss(given, [launches]) is not None
    assert largest_loss(given, [flat]) is not None
    assert largest_loss(given, [launches, flat]) is None
