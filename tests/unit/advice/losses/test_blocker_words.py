"""What the host does in most of the idle time is said with its range and its steps; less is not said."""

import pytest

from overlapscope.advice.losses.host_time import blocker_words
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made


def waiting(steps: tuple[int, ...], name: str = "data") -> Run:
    """Return two ranks whose devices are idle from 500 us on, for 90 us in some steps; the host is in a range then."""

    def step(number: int) -> list[Item]:
        until = 590 if number in steps else 502
        return [
            Kernel(start=0, end=500), Sent(start=100, end=200), Range(name=name, start=400, end=until),
            Kernel(start=until + 1, end=999, launch=until + 0.5),
            Range(name=f"ProfilerStep#{number}", start=-0.5, end=999.5),
        ]  # fmt: skip

    return made(step)


def said(run: Run, idle_us: float) -> str:
    together = match_and_align(run)
    return blocker_words(RuleInput.of(run, analyze(run, together), together), round(idle_us * US))


@pytest.mark.parametrize(
    ("steps", "where"),
    [((0, 2, 3, 5), "on rank 0 in steps 0, 2, 3, 5 the host"), (tuple(range(6)), "on rank 0 the host")],
)
def test_the_range_and_the_steps_are_named(steps: tuple[int, ...], where: str) -> None:
    assert said(waiting(steps), 90) == f" ({where} fetches a batch, in data)"


def test_of_less_than_half_of_the_idle_time_nothing_is_said() -> None:
    assert said(waiting((0, 2, 3, 5)), 150) == ""


def test_neither_is_of_what_no_mark_names() -> None:
    """Short times without a launch are those of launches one after the other."""
    assert said(waiting((0, 2, 3, 5), "mine"), 90) == ""
