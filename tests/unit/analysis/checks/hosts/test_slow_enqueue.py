"""Calls that only begin a collective and take long are named, with the rank that loses most."""

from collections.abc import Sequence

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Call, Op, cpu_run


def run(lasts: Sequence[float], name: str = "c10d::allreduce_", calls: int = 1) -> Run:
    """Return two ranks that begin collectives in calls that last so many us on each."""

    def step(_: int, rank: int) -> list[Op]:
        return [Op("aten::mm", 0, 10), *(Op(name, 20 + 300 * at, 20 + 300 * at + lasts[rank]) for at in range(calls)),
                Op("aten::mul_", 980, 990)]  # fmt: skip

    return cpu_run(step)


def titles(job: Run) -> list[str]:
    return [each.title for each in analyze(job).findings if each.id == "slow_enqueue"]


def test_what_calls_last_beyond_the_usual_is_named_with_the_rank_that_loses_most() -> None:
    assert titles(run((260, 290), calls=3)) == [
        "hosts stand in calls that only begin a collective (c10d::allreduce_): 0.225 ms of a step in the mean, "
        "0.270 ms on rank 1, beyond 0.2 ms a call; perhaps the threads that transfer take their core"
    ]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        pytest.param(run((230, 230)), True, id="3 % of a step"),
        pytest.param(run((230, 228)), False, id="less"),
        pytest.param(run((200, 200), calls=3), False, id="as long as is usual"),
        pytest.param(run((900, 900), "c10d::barrier"), False, id="a barrier may block"),
        pytest.param(run((900, 900), "aten::mm"), False, id="compute"),
    ],
)
def test_little_of_it_and_other_operations_are_not_named(job: Run, *, named: bool) -> None:
    assert bool(titles(job)) == named


def test_a_copy_inside_of_the_call_is_no_standing_still() -> None:
    def job(copies_us: float) -> Run:
        inside = [Op("aten::clone", 30, 30 + copies_us), Op("aten::copy_", 31, 29 + copies_us)]
        return cpu_run(
            lambda *_: [Op("aten::mm", 0, 10), Op("c10d::_reduce_scatter_base_", 20, 320), *inside,
                        Op("aten::mul_", 980, 990)]
        )  # fmt: skip

    assert titles(job(60)), "240 us of its own"
    assert not titles(job(80))


def test_a_path_says_in_which_call_a_host_stood() -> None:
    """From the end of the collective on, which it began at 10 us, until 900 us, as the next operation follows."""
    sent = Call(start=10, end=400, called_by="aten::as_strided")
    job = cpu_run(lambda *_: [Op("aten::mm", 0, 10), sent, Op("c10d::allreduce_", 10, 900), Op("aten::mul_", 920, 990)])
    assert "host in c10d::allreduce_ 0.520 ms" in critical_path_text(analyze(job).critical_path)
