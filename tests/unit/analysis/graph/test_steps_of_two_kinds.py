"""Where half of the steps communicate, the path and the longest loss are of one that does; a loss of next to nothing is
none."""

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import US, Call, Op, cpu_run


def job(*, every: int = 1, sent_us: float = 100) -> Run:
    """Return a job that sums over ranks in every n-th step, between two operations."""
    until = 500 + sent_us

    def step(number: int, rank: int) -> list[Op | Call]:
        if number % every:
            return [Op("aten::mm", 0, 500), Op("aten::add", 500, 999)]
        return [Op("aten::mm", 0, 500), Call(start=500, end=until), Op("aten::add", until, 999)]

    return cpu_run(step)


@pytest.mark.parametrize("every", [2, 3])
def test_a_step_that_communicates_stands_for_those_that_do(every: int) -> None:
    analysis = analyze(job(every=every))
    found = analysis.critical_path
    assert found.median_step is not None
    assert found.median_step % every == 0
    assert found.longest_loss is not None
    assert found.longest_loss.step == found.median_step
    assert found.longest_loss.end_ns - found.longest_loss.start_ns == 100 * US


@pytest.mark.parametrize(("sent_us", "lost"), [(5, False), (20, True)])
def test_less_than_a_hundredth_of_a_step_is_no_loss(sent_us: float, *, lost: bool) -> None:
    found = analyze(job(sent_us=sent_us)).critical_path
    assert found.median_step is not None
    assert (found.longest_loss is not None) == lost
