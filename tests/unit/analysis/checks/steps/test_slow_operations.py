"""Operations that take longer in most steps than in the fastest are named; those that vary, or are few, are not."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.steps.slow_operations import slow_operations
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.per_rank.host_operations import StepOperations
from tests.support.cpu_runs.cpu_steps import US, Call, Op, cpu_run

MS = 1_000_000
SLOW = (70, 71, 70, 46, 70)
"""In ms: in the median 70, in the fastest step 46."""
Rows = Mapping[str, Sequence[float]]


def operations(
    taken_ms: Rows, calls: Mapping[str, Sequence[int]] | None = None, first: int = 0, pieces: Rows | None = None
) -> StepOperations:
    """Return what each step spent in each operation; 12 equal calls of each, if not told otherwise: `pieces` has twelve
    times the median one."""
    number = len(next(iter(taken_ms.values())))
    return StepOperations(
        steps=tuple(range(first, first + number)),
        names=tuple(taken_ms),
        own_ns=np.array([[round(each * MS) for each in own] for own in taken_ms.values()], np.int64),
        calls=np.array([(calls or {}).get(name, [12] * number) for name in taken_ms], np.int64),
        piece_ns=np.array([[(pieces or {}).get(name, own)[at] * MS / 12 for at in range(number)]
                           for name, own in taken_ms.items()], np.float64),
    )  # fmt: skip


def found(*ranks: StepOperations, step_ms: float | None = 170) -> list[Finding]:
    return slow_operations(dict(enumerate(ranks)), None if step_ms is None else step_ms * MS)


def test_an_operation_that_takes_longer_in_most_steps_is_named_with_the_fastest_step_and_its_calls() -> None:
    (one,) = found(operations({"aten::mm": SLOW, "aten::add": [10] * 5}))
    assert (one.id, one.severity, one.known_from) == ("slow_operations", "warning", "trace")
    assert one.title == (
        "operations take longer in most steps than in fast ones, and most of their calls do: aten::mm 70.000 ms in "
        "the median, 46.000 ms in step 3 (12 calls); they had more to do in them, or cores were slower, or memory was "
        "slow or fresh"
    )
    assert one.evidence == {
        "operations": [
            {"name": "aten::mm", "calls": 12.0, "usual_ns": 70 * MS, "least_ns": 46 * MS, "fastest_step": 3}
        ],
        "lost_ns": 24 * MS,
    }


def test_steps_that_are_known_to_have_other_inputs_had_more_to_do() -> None:
    taken = operations({"aten::mm": SLOW})
    assert slow_operations({0: taken}, 170 * MS)
    assert slow_operations({0: taken}, 170 * MS, other_inputs=True) == []


@pytest.mark.parametrize(
    ("fastest_ms", "step_ms", "named"),
    [
        pytest.param(56.0, 170, True, id="1.25 times"),
        pytest.param(56.1, 170, False, id="less than 1.25 times"),
        pytest.param(46.0, 480, True, id="5 % of the step"),
        pytest.param(46.0, 481, False, id="less than 5 % of the step"),
        pytest.param(46.0, None, False, id="steps of unknown length"),
        pytest.param(46.0, 0, False, id="steps without length"),
    ],
)
def test_it_is_much_of_its_own_time_and_of_the_step(fastest_ms: float, step_ms: float | None, *, named: bool) -> None:
    taken = operations({"aten::mm": (70, 71, 70, fastest_ms, 70)})
    assert bool(found(taken, step_ms=step_ms)) is named


@pytest.mark.parametrize(
    "taken_ms",
    [
        pytest.param((46, 46, 46, 70, 46), id="one slow step"),
        pytest.param((46, 70, 46, 70, 46), id="most are as fast"),
        pytest.param((70, 71, 70, 70, 69), id="all alike"),
        pytest.param((70, 46, 70), id="three steps"),
    ],
)
def test_others_are_not_named(taken_ms: Sequence[float]) -> None:
    assert found(operations({"aten::mm": taken_ms})) == []


def test_four_steps_are_enough() -> None:
    (one,) = found(operations({"aten::mm": SLOW[1:]}))
    assert one.evidence["lost_ns"] == 24 * MS


@pytest.mark.parametrize(
    ("calls", "lost_ms"),
    [
        pytest.param([12, 12, 12, 8, 12], None, id="fewer calls in the fastest: the others are alike"),
        pytest.param([12, 12, 12, 12, 8], 24, id="more of another step's: four are compared"),
        pytest.param([12, 12, 11, 12, 8], None, id="three are as usual"),
        pytest.param([8, 12, 12, 12, 12], 24, id="fewer in the first"),
        pytest.param([10, 11, 12, 13, 14], None, id="each its own"),
    ],
)
def test_steps_with_other_numbers_of_calls_are_not_compared(calls: Sequence[int], lost_ms: int | None) -> None:
    named = found(operations({"aten::mm": SLOW}, {"aten::mm": calls}))
    assert [each.evidence["lost_ns"] for each in named] == ([] if lost_ms is None else [lost_ms * MS])
    assert all(each.evidence["operations"][0]["fastest_step"] == 3 for each in named)


def test_a_step_in_which_one_rank_made_other_calls_is_not_compared() -> None:
    """The fastest one: without it both ranks are alike in all steps."""
    first, second = operations({"aten::mm": SLOW}), operations({"aten::mm": SLOW}, {"aten::mm": [12, 12, 12, 8, 12]})
    assert found(first, first)
    assert found(first, second) == found(second, first) == []


def test_times_and_calls_are_means_over_ranks() -> None:
    """Of each step; alone the second rank is no finding, and the first one loses 40 ms."""
    slow = operations({"aten::mm": (80, 80, 80, 40, 80)})
    even = operations({"aten::mm": [70] * 5}, {"aten::mm": [8] * 5})
    (one,) = found(slow, even)
    (named,) = one.evidence["operations"]
    assert named == {"name": "aten::mm", "calls": 10.0, "usual_ns": 75 * MS, "least_ns": 55 * MS, "fastest_step": 3}
    assert "aten::mm 75.000 ms in the median, 55.000 ms in step 3 (10 calls)" in one.title
    assert found(even) == []
    assert found(slow)[0].evidence["lost_ns"] == 40 * MS


def test_ranks_that_are_slow_in_turn_are_not_slow_in_the_mean() -> None:
    """Each alone is at 70 ms in most steps, and 46 in one of its own: the mean falls by 12 ms and 1.2 times."""
    first, second = (operations({"aten::mm": own}) for own in (SLOW, (46, 70, 70, 70, 70)))
    assert [bool(found(own)) for own in (first, second)] == [True, True]
    assert found(first, second) == []


def test_an_operation_that_another_rank_does_not_make_takes_no_time_there() -> None:
    (one,) = found(operations({"aten::mm": SLOW}), operations({"aten::add": [1] * 5}))
    assert one.evidence["lost_ns"] == 12 * MS
    assert one.evidence["operations"][0]["calls"] == 6.0


def test_steps_count_that_all_ranks_recorded() -> None:
    """The fastest step of the second rank is no step of the first."""
    first = operations({"aten::mm": (70, 71, 70, 70, 69)})
    assert found(first, operations({"aten::mm": (5, 70, 71, 70, 70, 69)}, first=-1)) == []
    assert found(operations({"aten::mm": SLOW}), operations({"aten::mm": SLOW}, first=2)) == [], "three in common"
    (one,) = found(operations({"aten::mm": SLOW}), operations({"aten::mm": (70, 70, 46, 70, 5)}, first=1))
    assert one.evidence["operations"][0]["fastest_step"] == 3
    assert one.evidence["lost_ns"] == 24 * MS
    assert found() == []


def test_several_operations_are_listed_by_what_they_lose_and_three_of_them_named() -> None:
    def losing(ms: float) -> list[float]:
        return [20 + ms, 20 + ms, 20, 20 + ms, 20 + ms]

    lost = {"aten::add": 10, "aten::mm": 40, "aten::bmm": 20, "aten::cat": 30, "aten::mul": 6}
    (one,) = found(operations({name: losing(ms) for name, ms in lost.items()}), step_ms=170)
    listed = {each["name"]: each["usual_ns"] - each["least_ns"] for each in one.evidence["operations"]}
    assert list(listed.items()) == [
        ("aten::mm", 40 * MS), ("aten::cat", 30 * MS), ("aten::bmm", 20 * MS), ("aten::add", 10 * MS)
    ]  # fmt: skip
    assert one.evidence["lost_ns"] == 100 * MS, "6 ms are less than 5 % of the step"
    named = [name for name in lost if f"{name} " in one.title]
    assert sorted(named) == ["aten::bmm", "aten::cat", "aten::mm"]
    assert one.title.index("aten::mm") < one.title.index("aten::cat") < one.title.index("aten::bmm")


def test_a_run_without_a_device_whose_products_take_longer_in_most_steps_has_the_finding() -> None:
    """Each step of 1 ms has a linear with a product of 300 us in it, or of 200 us in two; both ranks alike."""
    run = cpu_run(
        lambda step, rank: [
            Op("aten::linear", 0, 500), Op("aten::mm", 100, 300 if step in (2, 3) else 400), Call(start=700, end=720)
        ]
    )  # fmt: skip
    (one,) = (each for each in analyze(run).findings if each.id == "slow_operations")
    assert one.evidence == {
        "operations": [
            {"name": "aten::mm", "calls": 1.0, "usual_ns": 300 * US, "least_ns": 200 * US, "fastest_step": 3}
        ],
        "lost_ns": 100 * US,
    }


@pytest.mark.parametrize(
    ("usual_piece", "named"),
    [
        pytest.param(46.0, False, id="none"),
        pytest.param(52.8, False, id="a little"),
        pytest.param(53.0, True, id="all"),
    ],
)
def test_a_few_calls_that_are_longer_are_no_slow_operation(usual_piece: float, named: bool) -> None:
    """A core that is taken from a thread for a turn makes a few calls far longer, and the others as long as ever."""
    pieces = {"aten::mm": [usual_piece, usual_piece, usual_piece, 46.0, usual_piece]}
    assert bool(found(operations({"aten::mm": SLOW}, pieces=pieces))) is named
