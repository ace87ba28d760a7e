"""What the threads of collectives compute in them is said, where it is much of a step and exposed."""

import pytest

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Beside, Call, Inside, Op, cpu_run

CALL = Call(start=300, end=800)
ADD = Inside("aten::add", 350, 650)
SORT = Inside("aten::sort", 650, 700)


def run(*items: Op | Call, on: tuple[int, ...] = (0, 1)) -> Run:
    """Return two ranks that compute, communicate and compute again, the ranks `on` with these items, too."""
    usual = (Op("aten::mm", 100, 300), CALL, Op("aten::mul_", 810, 990))
    return cpu_run(lambda _, rank: [*usual, *(items if rank in on else ())])


def titles(found: Analysis) -> list[str]:
    return [each.title for each in found.findings if each.id == "computing_calls"]


def test_operations_on_the_thread_of_a_call_are_named_with_the_call_and_their_time() -> None:
    found = analyze(run(ADD, SORT))
    assert titles(found) == [
        "threads of all_reduce compute for 0.350 ms of a step beside which nothing else computes (aten::add, "
        "aten::sort): it counts as transfer, and a faster link would not shorten it"
    ]
    assert next(each.evidence["computed_ns"] for each in found.findings if each.id == "computing_calls") == 350_000
    path = found.critical_path.steps[2]
    assert (path.parts["transfer"], path.computed_in_calls_ns) == (500_000, 350_000)
    assert "in 0.350 ms of the communication its own threads computed" in critical_path_text(found.critical_path)


@pytest.mark.parametrize(
    ("items", "on", "computed_ms"),
    [
        pytest.param((ADD,), (0,), "0.150", id="one of two ranks: their mean"),
        pytest.param((ADD, Inside("aten::add_", 340, 660)), (0, 1), "0.320", id="an operation inside another"),
        pytest.param((ADD, Beside("aten::mm", 350, 550)), (0, 1), "0.100", id="compute beside it"),
    ],
)
def test_each_moment_counts_once_and_only_where_nothing_else_computes(
    items: tuple[Op, ...], on: tuple[int, ...], computed_ms: str
) -> None:
    (title,) = titles(analyze(run(*items, on=on)))
    assert f"compute for {computed_ms} ms of a step" in title


@pytest.mark.slow
@pytest.mark.parametrize(
    "items",
    [
        pytest.param((), id="none"),
        pytest.param((Inside("aten::add", 400, 440),), id="less than 5 % of a step"),
        pytest.param((Inside("aten::add", 820, 900),), id="after the call"),
        pytest.param((ADD, Beside("aten::mm", 340, 680)), id="all beside compute"),
        pytest.param((Op("aten::mm", 350, 650),), id="on the thread that called"),
    ],
)
def test_little_of_it_or_beside_compute_is_not_worth_a_finding(items: tuple[Op, ...]) -> None:
    assert titles(analyze(run(*items))) == []


def test_sparse_gradients_are_named_as_what_to_change_and_other_calls_are_not() -> None:
    def advised(op: str) -> list[str]:
        job = cpu_run(lambda *_: [Op("aten::mm", 100, 300), Call(start=300, end=800, op=op), ADD])
        return [each.title for each in analyze_with_advice(job).recommendations if each.id == "computing_calls"]

    assert advised("all_reduce") == []
    assert advised("gloo:sparse_all_reduce") == [
        "Avoid sparse gradients over gloo: its threads add them up in 0.3 ms of a 1 ms step (aten::add), and nothing "
        "computes beside that"
    ]
