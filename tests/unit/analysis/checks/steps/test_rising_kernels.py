"""Kernels that take longer from step to step on all ranks alike are named; other rises are not."""

from collections.abc import Sequence

import pytest

from overlapscope.analysis.checks.steps.rising_kernels import rising_kernels
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
STEP_NS, RANKS = 100 * MS, 2
SLOWLY = (1.0, 1.03, 1.06, 1.09, 1.12, 1.15)


def found(
    factors: Sequence[float],
    *,
    only: str | None = None,
    on: int | None = None,
    blocks: int | None = 64,
    more: int = 0,
    count: int = RANKS,
    takes: tuple[float, float] = (40.0, 8.0),
) -> list[str]:
    """Return what is said of ranks of which a product and an addition take `takes` ms, times a factor in each
    step: only one of them, or only on one rank; and with so many `more` blocks in each step."""
    ranks = {}
    for rank in range(count):
        work = []
        for step, factor in enumerate(factors):
            begin = step * STEP_NS
            for name, taken in zip(("gemm", "add"), takes, strict=True):
                longer = factor if only in (None, name) and on in (None, rank) else 1.0
                end = begin + round(taken * longer * MS)
                row = {"kind": COMPUTE, "name": name, "start_ns": begin, "end_ns": end, "step": step}
                work.append(row if blocks is None else {**row, "blocks": blocks + more * step})
                begin = end
        ranks[rank] = rank_timeline(rank, work=work)
    run = Run(world_size=count, ranks=ranks)
    computed = {}
    for rank, each in ranks.items():
        taken = each.spans.end_ns - each.spans.start_ns
        computed[rank] = {step: int(taken[each.spans.step == step].sum()) for step in range(len(factors))}
    return [each.title for each in rising_kernels(run, computed)]


def test_a_slow_rise_of_all_kernels_is_named_with_the_first_and_the_last_step() -> None:
    (title,) = found(SLOWLY)
    assert title == (
        "the same kernels take longer from step to step, on all 2 ranks alike: 48.000 ms in step 0, 55.200 ms in step "
        "5 (15.0 % more), as when clocks fall with heat or at a power limit"
    )


def test_of_many_ranks_it_says_how_many_were_read() -> None:
    assert (
        "step to step, on all 16 ranks alike (kernels of 8 of them were read): 48.000 ms" in found(SLOWLY, count=16)[0]
    )


def test_where_grids_are_not_recorded_longer_batches_are_not_excluded() -> None:
    assert found(SLOWLY, blocks=None)[0].endswith("or batches grow: sizes of kernels are not recorded")


@pytest.mark.parametrize(
    "titles",
    [
        pytest.param(found(SLOWLY[:4]), id="few steps"),
        pytest.param(found([1, 1.01, 1.02, 1.03, 1.04]), id="less than 5 %"),
        pytest.param(found([1, 1.03, 1.0, 1.09, 1.12, 1.15]), id="not from step to step"),
        pytest.param(found([1, 1, 1, 1.15, 1.15, 1.15]), id="at once"),
        pytest.param(found(SLOWLY, on=1), id="one rank"),
        pytest.param(found(SLOWLY, takes=(0.0, 0.0)), id="kernels without a duration"),
        pytest.param(found(SLOWLY, only="gemm", more=1), id="larger grids"),
        pytest.param(found([1, 1.2, 1.4, 1.6, 1.8, 2.0], only="add"), id="one kind of kernels, as of a longer context"),
    ],
)
def test_other_rises_are_not(titles: list[str]) -> None:
    assert titles == []
