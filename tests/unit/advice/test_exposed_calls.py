"""Of exposed calls nothing is advised that is in effect, or helps nothing: queues on a full link, averages of
parameters, gradients that go beside backward."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.exposed_calls import average_parameters, go_beside_backward, link_is_full
from overlapscope.advice.losses.largest_loss import AVERAGES, BESIDE_BACKWARD, INSTEAD, LINK_IS_FULL, _instead
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.step_cases import Item, Kernel, Range, Sent, made

MIB = 1 << 20


def looked_at(run: Run) -> RuleInput:
    together = match_and_align(run)
    return RuleInput.of(run, analyze(run, together), together)


def queue(*calls: Sent) -> list[Item]:
    """Return a step whose compute ends at 300 us, and goes on when all calls have ended."""
    return [Kernel(start=0, end=300), *calls, Kernel(start=max(each.end for each in calls), end=990, launch=60)]


def in_a_row(count: int, gap: float = 2, **more: object) -> list[Sent]:
    """Return calls of 100 us, launched together."""
    begin = [200 + at * (100 + gap) for at in range(count)]
    return [Sent(start=at, end=at + 100, launch=50, **more) for at in begin]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("calls", "full"),
    [
        pytest.param(in_a_row(5, size_bytes=36 * MIB), True, id="buckets"),
        pytest.param(in_a_row(5, size_bytes=4096), False, id="small calls, which take their latency"),
        pytest.param(in_a_row(4, gap=40, size_bytes=36 * MIB), False, id="with gaps, in which other calls had room"),
        pytest.param(
            [replace(each, op="reduce_scatter" if at % 2 else "all_gather")
             for at, each in enumerate(in_a_row(5, size_bytes=36 * MIB))],
            False, id="of two operations: the other one may come first",
        ),
        pytest.param(
            [replace(each, group="h" if at % 2 else "g") for at, each in enumerate(in_a_row(5, size_bytes=36 * MIB))],
            False, id="of two groups",
        ),
        pytest.param(
            [*in_a_row(4, size_bytes=36 * MIB), Sent(start=610, end=700, launch=50, size_bytes=4)], True,
            id="a small one behind them, which is less than they",
        ),
        pytest.param([Sent(start=200, end=700, launch=50, size_bytes=36 * MIB)], False, id="one call"),
    ],
)  # fmt: skip
def test_no_other_order_is_advised_where_large_calls_of_one_kind_directly_follow_each_other(
    calls: Sequence[Sent], *, full: bool
) -> None:
    given = looked_at(made(lambda _: queue(*calls)))
    assert link_is_full(given) == full
    assert _instead(given, "queued") == (LINK_IS_FULL if full else INSTEAD["queued"])


def averaging(every: int, *, after: bool = True) -> Run:
    """Return a job whose optimizer's range lies before, or after, the launch of all-reduces of every n-th step."""
    optimizer = Range(name="Optimizer.step#AdamW.step", start=50 if after else 70, end=60 if after else 80)
    calls = [Sent(start=600, end=950, launch=65, size_bytes=36 * MIB)]
    return made(lambda step: [Kernel(start=0, end=600), optimizer, *(calls if step % every == 1 % every else [])])


def test_calls_that_follow_the_optimizer_in_some_steps_average_parameters() -> None:
    assert average_parameters(looked_at(averaging(2)))
    assert not average_parameters(looked_at(averaging(1))), "in every step, as parameters are gathered"
    assert not average_parameters(looked_at(averaging(2, after=False))), "gradients, of every second step"
    for cause in ("dependency", "tail", "queued"):
        assert _instead(looked_at(averaging(2)), cause) == AVERAGES


@pytest.mark.parametrize(
    ("phase", "start", "beside"), [("backward", 300, True), ("backward", 600, False), (None, 300, False)]
)
def test_buckets_during_backward_are_not_advised_where_reductions_begin_there_beside_compute(
    phase: str | None, start: float, *, beside: bool
) -> None:
    call = Sent(start=start, end=800, launch=250, phase=phase, size_bytes=36 * MIB)
    given = looked_at(made(lambda _: [Kernel(start=0, end=600), call, Kernel(start=800, end=990)]))
    assert go_beside_backward(given) == beside
    for cause, instead in BESIDE_BACKWARD.items():
        assert _instead(given, cause) == (instead if beside else INSTEAD[cause])
        assert "in buckets" not in instead
