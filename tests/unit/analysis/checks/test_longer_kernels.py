"""A device that computes longer than its peers in each step with as many kernels: which of them say why."""

import pytest

from overlapscope.analysis.checks.longer_kernels import longer_kernels
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
STEP_NS, STEPS, RANKS = 100 * MS, 3, 4


def run_of(lookup_ms: float, *, more: int = 0, step: int | None = None) -> Run:
    """Return ranks that look up embeddings in 4 kernels of 2 ms a step, rank 1 in kernels of `lookup_ms` (only in
    `step`), and `more` of them; and compute a product."""
    ranks = {}
    for rank in range(RANKS):
        work = []
        for at in range(STEPS):
            slow = rank == 1 and step in (None, at)
            pieces = [("lookup", lookup_ms if slow else 2.0)] * (4 + (more if rank == 1 else 0))
            begin = at * STEP_NS
            for name, taken in [*pieces, ("gemm", 40.0)]:
                end = begin + round(taken * MS)
                work.append({"kind": COMPUTE, "name": name, "start_ns": begin, "end_ns": end, "step": at})
                begin = end
        ranks[rank] = rank_timeline(rank, work=work)
    return Run(world_size=RANKS, ranks=ranks)


def found(run: Run, *named: int, step_ns: int | None = STEP_NS) -> list[str]:
    computed = {}
    for rank, each in run.ranks.items():
        spans = each.spans
        taken = spans.end_ns - spans.start_ns
        computed[rank] = {step: int(taken[spans.step == step].sum()) for step in range(STEPS)}
    return [each.title for each in longer_kernels(run, computed, step_ns, named)]


def test_the_kernels_that_take_longer_are_named_with_what_they_take_on_the_peers() -> None:
    assert found(run_of(3.0)) == [
        "rank 1 computes 4.000 ms a step longer than its peers with as many kernels: 4.000 ms more in lookup (3.000 ms "
        "each, on its peers 2.000 ms)"
    ]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_of(2.5), id="less than 3 % of a step"),
        pytest.param(run_of(3.0, more=1), id="more kernels"),
        pytest.param(run_of(3.0, step=1), id="in one step"),
        pytest.param(run_of(2.0), id="equal"),
    ],
)
def test_nothing_is_said_of_less_or_of_other_work(run: Run) -> None:
    assert found(run) == []


def test_a_rank_that_is_named_as_late_is_not_named_twice() -> None:
    assert found(run_of(3.0), 1) == []


def test_without_steps_nothing_is_said() -> None:
    assert found(run_of(3.0), step_ns=None) == []
