"""Calls that get longer from one to the next, in every step, show a slower rank that was not recorded."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from overlapscope.analysis.exposure.slower_unseen import SlowerUnseen, slower_unseen
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import STEP, STEPS, US, Sent, made

WINDOWS = tuple((EPOCH_NS + n * STEP * US, EPOCH_NS + (n + 1) * STEP * US) for n in range(STEPS))


def found(step: Callable[[int], Sequence[Sent]], *others: Callable[[int], Sequence[Sent]]) -> SlowerUnseen | None:
    runs: list[Run] = [made(each) for each in (step, *others)]
    timelines = [replace(run.ranks[0], rank=rank) for rank, run in enumerate(runs)]
    return slower_unseen(timelines, dict.fromkeys(range(len(runs)), WINDOWS))


def falls_behind(share: float, *, every: int = 150, least: float = 20) -> Callable[[int], list[Sent]]:
    """Return five calls a step; each waits for a member that takes `share` longer from one to the next."""

    def step(_: int) -> list[Sent]:
        begins = [100 + at * every for at in range(5)]
        return [Sent(start=each, end=each + least + share * each) for each in begins]

    return step


def test_calls_that_get_longer_by_equal_steps_wait_for_a_rank_that_was_not_recorded() -> None:
    slower = found(falls_behind(0.08))
    assert slower is not None
    assert slower.share == pytest.approx(0.08, rel=1e-3)
    assert (slower.first_ns, slower.last_ns) == (28 * US, 76 * US)
    assert slower.at_end_ns == pytest.approx(0.08 * 700 * US, rel=1e-3)


def test_what_the_slowest_recorded_rank_shows_is_said() -> None:
    slower = found(falls_behind(0.1), falls_behind(0.05))
    assert slower is not None
    assert slower.share == pytest.approx(0.05, rel=1e-3)
    assert found(falls_behind(0.1), falls_behind(0.0)) is None, "a recorded rank is as slow"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda n: falls_behind(0.1)(n)[: 3 + 2 * (n < 2)], id="few steps with many calls"),
        pytest.param(lambda _: [Sent(start=100, end=120)], id="few calls"),
        pytest.param(lambda _: [Sent(start=100, end=120, op="broadcast")], id="calls of another kind"),
    ],
)
def test_a_recorded_rank_whose_calls_do_not_show_it_may_be_the_slower_one(
    other: Callable[[int], Sequence[Sent]],
) -> None:
    assert found(falls_behind(0.1), falls_behind(0.1)) is not None
    assert found(falls_behind(0.1), other) is None


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(falls_behind(0.0), id="as long each"),
        pytest.param(falls_behind(0.01), id="devices differ by as much"),
        pytest.param(falls_behind(0.08, every=40, least=60), id="calls that queue begin when others end"),
        pytest.param(lambda n: falls_behind(0.08 * (n != 3))(n), id="not in one step"),
        pytest.param(lambda n: falls_behind(0.08)(n)[:3], id="few calls"),
        pytest.param(
            lambda _: [Sent(start=100 + at * 150, end=140 + at * 150 + 50 * (at == 4)) for at in range(5)],
            id="one long call",
        ),
    ],
)
def test_other_calls_show_none(step: Callable[[int], list[Sent]]) -> None:
    assert found(step) is None
