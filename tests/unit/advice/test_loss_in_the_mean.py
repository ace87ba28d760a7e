"""Where few steps communicate, the largest loss is that of the mean step, and where steps overlap all losses are of it;
trials of compute follow what has a bound."""

from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.order import ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Because, Recommendation
from overlapscope.timeline.run import Run
from tests.support.step_cases import Item, Kernel, Sent, made


def averaging(every: int) -> Run:
    """Return ranks that exchange 300 us in every n-th step, and idle for 20 us in all."""

    def step(number: int) -> list[Item]:
        work: list[Item] = [Kernel(start=0, end=600), Kernel(start=920, end=990, launch=30)]
        return [*work, Sent(start=600, end=900)] if number % every == 0 else [*work, Kernel(start=620, end=900)]

    return made(step)


@pytest.mark.parametrize("every", [2, 3])
def test_the_mean_step_decides_what_is_lost_where_few_steps_communicate(every: int) -> None:
    analysis = analyze_with_advice(averaging(every))
    first = analysis.recommendations[0]
    steps = analysis.headline.steps
    communicate = sum(each.exposed_comm_ns > 0 for each in analysis.headline.job_steps)
    assert first.id == "exposed_communication"
    assert f"step in the mean ({communicate} of {steps} steps communicate) are exposed communication" in first.title
    assert first.loss_ns == pytest.approx(300_000 * communicate / steps, rel=0.01)


@pytest.mark.parametrize(
    ("because", "step_us", "exposed_us", "words"),
    [
        ("steps_overlap", 700, 70, "a 0.7 ms step in the mean"),
        ("two_kinds", 700, 70, "a 0.7 ms step in the mean"),
        ("few_lose", 1000, 150, "a 1 ms step"),
    ],
)
def test_losses_are_of_the_mean_step_where_steps_of_ranks_overlap_or_are_of_two_kinds(
    because: Because, step_us: int, exposed_us: int, words: str
) -> None:
    run = averaging(2)
    together = match_and_align(run)
    analysis = analyze(run, together)
    assert analysis.mean_step is not None
    mean = replace(analysis.mean_step, because=because, step_ns=700_000, exposed_comm_ns=70_000)
    given = RuleInput.of(run, replace(analysis, mean_step=mean), together)
    assert (given.step_ns, given.figures.exposed_comm_ns) == (step_us * 1000, exposed_us * 1000)
    assert given.of_step == words


def trial(of: str, **more: Any) -> Recommendation:
    known = analyze_with_advice(averaging(2)).recommendations[0]
    return replace(known, id=of, verdict="trial", gain_low_ns=None, gain_high_ns=None, **more)


def test_a_trial_of_compute_without_a_bound_comes_after_changes_of_numerics_that_have_one() -> None:
    bits = replace(trial("sixteen_bit_gradients", loss_ns=10, changes_numerics=True), gain_high_ns=10)
    compute = trial("unfused_elementwise", loss_ns=1_000_000, changes_numerics=False)
    communication = trial("fewer_channels", loss_ns=5, changes_numerics=False)
    found = ranked([compute, bits, communication])
    assert [each.id for each in found] == ["fewer_channels", "sixteen_bit_gradients", "unfused_elementwise"]
