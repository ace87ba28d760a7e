"""Pauses of one rank at one place in each step are named; those of all ranks, of some steps and short ones are not."""

from collections.abc import Callable

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.per_rank import operation_gaps
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import US, Call, Op, cpu_run

Pauses = Callable[[int, int], float]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count pauses from 25 us on: steps of these runs take 1 ms."""
    monkeypatch.setattr(operation_gaps, "LEAST_NS", 25 * US)


def run(pauses: Pauses, pieces: int = 1, after: str = "aten::layer_norm") -> Run:
    """Return two ranks that pause for so many us, by step and rank, after each addition, and then communicate."""

    def step(number: int, rank: int) -> list[Op | Call]:
        us, at, found = pauses(number, rank), 10.0, list[Op | Call]()
        for _ in range(pieces):
            found += [Op("aten::add", at, at + 20), Op(after, at + 21 + us, at + 60 + us)]
            at += 61 + us
        return [*found, Call(start=at + 1, end=at + 40), Op("aten::mul_", at + 45, 990)]

    return cpu_run(step)


def titles(job: Run) -> list[str]:
    return [each.title for each in analyze(job).findings if each.id.startswith("recurring_pause")]


def test_a_pause_at_one_place_in_each_step_is_named_with_the_operations_around_it() -> None:
    assert titles(run(lambda _, rank: 50 * rank)) == [
        "rank 1 does nothing that was recorded for 0.051 ms of each step, between aten::add and aten::layer_norm, and "
        "the others next to none there: Python, a sleep, a file, a lock"
    ]


def test_pauses_of_several_pieces_of_a_step_are_added_up() -> None:
    (title,) = titles(run(lambda _, rank: 30 * rank, pieces=3))
    assert "for 0.093 ms of each step in 3 pieces, between" in title


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pauses", "named"),
    [
        pytest.param(lambda _, rank: 42 * rank, True, id="4 % of a step"),
        pytest.param(lambda _, rank: 37 * rank, False, id="less"),
        pytest.param(lambda _, rank: 89 if rank else 29, True, id="the other a third of it"),
        pytest.param(lambda _, rank: 89 if rank else 30, False, id="the other more"),
        pytest.param(lambda step, rank: 90 * rank * (step != 2), False, id="not in each step"),
        pytest.param(lambda step, rank: 90 if rank or step else 0, False, id="the other in all steps but one"),
        pytest.param(lambda _, rank: 60 if rank else 23, False, id="the other more, in short pauses"),
        pytest.param(lambda *_: 90, False, id="all ranks"),
    ],
)
def test_what_is_short_or_of_all_or_not_in_each_step_is_not_named(pauses: Pauses, *, named: bool) -> None:
    assert bool(titles(run(pauses))) == named


def test_waiting_for_a_call_is_no_pause() -> None:
    def step(_: int, rank: int) -> list[Op | Call]:
        return [Op("aten::add", 10, 30), Call(start=31, end=130 + 100 * rank), Op("aten::mul_", 131 + 100 * rank, 990)]

    assert titles(cpu_run(step)) == []
