"""When a step time, or a waiting time, has left its usual range."""

import random

import pytest

from overlapscope.capture.trigger.usual_range import LEARNED_BLOCKS, SUSTAINED_BLOCKS, Excursion, UsualRange

MS = 1_000_000
STEP = 100 * MS
FOR_SECONDS = 10.0
STEPS_A_BLOCK = 20


def observed(steps: list[tuple[int, int | None]], slower: float = 1.2) -> list[tuple[int, Excursion]]:
    """The excursions in steps of (nanoseconds, waiting), each with the number of the step that completed it."""
    usual = UsualRange(slower, FOR_SECONDS)
    found = ((number, usual.observe(*step)) for number, step in enumerate(steps))
    return [(number, each) for number, each in found if each is not None]


def noisy(
    steps: int, times: float = 1.0, waits: float = 0.1, spread: float = 0.05, seed: int = 0
) -> list[tuple[int, int | None]]:
    draw = random.Random(seed)
    lengths = [round(STEP * times * draw.lognormvariate(0, spread)) for _ in range(steps)]
    return [(length, round(STEP * waits)) for length in lengths]


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_a_job_that_only_scatters_never_leaves_its_range(spread: float) -> None:
    assert observed(noisy(6_000, spread=spread)) == []


@pytest.mark.parametrize("kind", ["own", "waiting"])
def test_a_slower_job_is_said_once_with_what_grew(kind: str) -> None:
    before = noisy(1000)
    after = noisy(2000, times=1.3, waits=0.1 if kind == "own" else 0.4)
    ((number, found),) = observed(before + after)
    assert found.kind == kind
    assert number - 1000 <= (SUSTAINED_BLOCKS + 1) * STEPS_A_BLOCK
    assert found.seconds >= FOR_SECONDS
    assert found.observed_ns - found.usual_ns == pytest.approx(0.3 * STEP, rel=0.1)
    what = "own work a step" if kind == "own" else "waiting a step"
    assert found.sentence().startswith(f"{what} took ")


def test_where_waiting_is_not_known_it_is_the_step_that_grew() -> None:
    steps = [(length, None) for length, _ in noisy(1000) + noisy(500, times=1.3)]
    ((_, found),) = observed(steps)
    assert found.kind == "step"


def test_waiting_that_grows_at_the_cost_of_work_is_an_excursion_too() -> None:
    ((_, found),) = observed(noisy(1000, waits=0.1) + noisy(500, waits=0.4))
    assert found.kind == "waiting"


def late_rank(steps: int, work: float, seed: int = 0) -> list[tuple[int, int | None]]:
    """Steps of a rank that waits for others until its own work is longer than theirs."""
    draw = random.Random(seed)
    own = [STEP * work * draw.lognormvariate(0, 0.02) for _ in range(steps)]
    return [(round(max(STEP, each) + 0.01 * STEP), round(max(STEP - each, 0) + 0.01 * STEP)) for each in own]


def test_a_rank_whose_waiting_hides_how_much_its_work_grew_says_so() -> None:
    ((_, found),) = observed(late_rank(1000, 0.85) + late_rank(500, 1.13), slower=1.2)
    assert found.kind == "own"


def test_work_that_grows_into_the_waiting_makes_no_slower_job() -> None:
    assert observed(late_rank(1000, 0.6) + late_rank(1000, 0.95), slower=1.2) == []


def test_what_passes_soon_is_no_excursion() -> None:
    calm, checkpoint = noisy(1000), [(50 * STEP, 0)]
    assert observed(calm + checkpoint + noisy(1000, seed=1) + noisy(60, times=1.5) + noisy(500, seed=2)) == []


def test_nothing_is_said_before_the_range_is_learned() -> None:
    few = STEPS_A_BLOCK * (LEARNED_BLOCKS - 1)
    assert observed(noisy(few // 2) + noisy(few // 6, times=3)) == []


def test_a_slower_job_is_the_usual_one_from_then_on_and_can_become_slower_still() -> None:
    steps = noisy(1000) + noisy(1000, times=1.4) + noisy(1000, times=2.0)
    assert [found.usual_ns < 1.2 * STEP for _, found in observed(steps)] == [True, False]


def test_steps_of_which_the_waiting_is_not_known_do_not_count_as_own_work() -> None:
    def sampled(steps: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
        return [(length, waited if number % 50 == 0 else None) for number, (length, waited) in enumerate(steps)]

    ((_, found),) = observed(sampled(noisy(1000, waits=0.5)) + sampled(noisy(500, times=1.4, waits=0.9)))
    assert found.kind == "waiting"
    assert found.usual_ns == pytest.approx(0.5 * STEP, rel=0.02)
