"""Of one rank of many it is said first what its own calls show, then what recording all ranks would add; and nothing is
asked for that was recorded."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.exposed_calls import take_alike
from overlapscope.advice.losses.exposed_remedies import INSTEAD, RECORD_LATE, SHAPES, SIZES, TAKE_ALIKE, remedies
from overlapscope.advice.rule_input import RuleInput
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.support.step_cases import Kernel, Sent, made
from tests.unit.advice.test_exposed_calls import MIB, looked_at


def of_one_rank(*, late: int = 0, sized: bool = True) -> RuleInput:
    """Return one rank of eight, whose next compute waits for a call of 300 us in each step, of 600 in `late` of six."""

    def step(number: int) -> list[Kernel | Sent]:
        end = 600 + 300 * (number < late)
        call = Sent(start=300, end=end, launch=250, size_bytes=36 * MIB)
        return [Kernel(start=0, end=300), call, Kernel(start=end, end=990, launch=60)]

    run = made(step)
    run = replace(
        run, ranks={0: run.ranks[0]}, world_size=8, groups=(replace(run.groups[0], size=8, ranks=tuple(range(8))),)
    )
    given = looked_at(run if sized else without_sizes(run))
    figures = replace(given.figures, causes={"dependency": given.figures.exposed_comm_ns or 0})
    ranks = [replace(each, no_causes_reason=None) for each in given.analysis.ranks]
    return replace(given, figures=figures, analysis=replace(given.analysis, ranks=ranks))


def without_sizes(run: Run) -> Run:
    ranks = {
        rank: replace(each, collectives=replace(each.collectives, bytes=np.full_like(each.collectives.bytes, NONE)))
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


@pytest.mark.parametrize(("late", "alike"), [(0, True), (1, True), (3, False)])
def test_nearly_all_exposed_time_may_be_of_calls_that_take_as_long_as_their_like(late: int, *, alike: bool) -> None:
    given = of_one_rank(late=late)
    assert take_alike(given) == (alike and not late)
    assert not take_alike(of_one_rank(late=late, sized=False)), "which calls are alike is not known"


def test_what_like_calls_show_is_said_before_what_all_ranks_would_add() -> None:
    said = remedies(of_one_rank(), "unknown", None, 0)
    assert said["look"] == TAKE_ALIKE.format(lacking="all ranks")
    assert said["look"].startswith("# calls of one kind and size take about as long each")
    assert "give it other work" in said["torch"], "which helps if it is transfer"
    unknown = remedies(of_one_rank(sized=False), "unknown", None, 0)
    assert unknown["look"] == INSTEAD["unknown"].format(lacking="all ranks")


def test_what_some_take_longer_is_said_before_all_ranks_too() -> None:
    said = remedies(of_one_rank(late=3), "unknown", None, 150_000)
    assert said["look"] == RECORD_LATE.format(longer="0.15 ms", lacking="all ranks")
    assert "record" not in said["torch"], "it is said once"
    assert said["look"].index("0.15 ms") < said["look"].index("record all ranks")


@pytest.mark.parametrize(("shapes", "said"), [(True, SIZES), (False, SHAPES)])
def test_shapes_are_not_asked_for_where_they_were_recorded(*, shapes: bool, said: str) -> None:
    given = of_one_rank(sized=False)
    if shapes:
        steps = given.run.ranks[0].steps
        rank = replace(given.run.ranks[0], steps=replace(steps, input_elements=np.ones_like(steps.input_elements)))
        given = replace(given, run=replace(given.run, ranks={0: rank}))
    given = replace(given, analysis=replace(given.analysis, skew=replace(given.analysis.skew, unmatched=6)))
    asked = remedies(given, "unknown", None, 0)["look"]
    assert asked == INSTEAD["unknown"].format(lacking=f"all ranks, {said}")
    assert ("record_shapes" in asked) != shapes
