"""A longest loss says what the rank that came last had done longer since the two ranks last waited for each other."""

from collections.abc import Sequence

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.graph.answers import LateBefore, LongestLoss
from overlapscope.report.text.critical_path import longest_loss_text
from tests.support.cpu_runs.cpu_steps import US, Call, Op, cpu_run


def loss(of_late: Sequence[Op], came: float) -> LongestLoss:
    """Return the longest loss where rank 0 computes until 300 us and then waits, and rank 1 does this and comes so
    late."""

    def step(_: int, rank: int) -> list[Op | Call]:
        before, begun = ([*of_late], came) if rank else ([Op("aten::mm", 10, 300)], 301.0)
        return [*before, Call(start=begun, end=came + 100), Op("aten::mul_", came + 105, 990)]

    found = analyze(cpu_run(step)).critical_path.longest_loss
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("of_late", "cause", "word"),
    [
        pytest.param([Op("aten::mm", 10, 599)], "peer_compute", "computed", id="it computed longer"),
        pytest.param([Op("aten::mm", 10, 150), Op("aten::mm", 440, 599)], "peer_host", "idled", id="it idled before"),
    ],
)
def test_what_made_the_last_rank_late_is_said_with_the_longest_loss(of_late: list[Op], cause: str, word: str) -> None:
    found = loss(of_late, 600)
    assert found.rank == 0
    assert isinstance(found.late, LateBefore)
    assert (found.late.rank, found.late.later_ns) == (1, 299 * US)
    assert found.late.longer_ns[cause] == pytest.approx(299 * US, rel=0.05)
    assert sum(found.late.longer_ns.values()) <= found.late.later_ns
    (said,) = [line for line in longest_loss_text(found).split("\n") if "came" in line]
    assert said.startswith(
        f"  Rank 1 came 0.299 ms later than rank 0: since they last waited for each other it {word} 0."
    )


def test_nobody_is_late_to_a_call_that_ranks_come_to_at_once() -> None:
    assert loss([Op("aten::mm", 10, 300)], 301).late is None
