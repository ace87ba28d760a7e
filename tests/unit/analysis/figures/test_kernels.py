"""Kernels beside those of other ranks, against the same figures taken kernel by kernel."""

from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.per_rank.kernels import LARGER, UNLIKE, KernelTotals, compared, sum_kernels
from overlapscope.timeline.columns import COMPUTE, NONE
from tests.support.rank_rows import rank_timeline

KERNELS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from([NONE, 0, 1, 7, 100])),
    st.tuples(st.integers(1, 9), st.integers(0, 1000)),
    max_size=8,
)
Table = dict[tuple[str, int], tuple[int, int]]


def columns(table: Table) -> KernelTotals:
    blocks, count, total = (
        np.array([int(each[at]) for each in ((grid, *figures) for (_, grid), figures in table.items())], np.int64)
        for at in range(3)
    )
    return KernelTotals(name=tuple(name for name, _ in table), blocks=blocks, count=count, total_ns=total)


def usual(values: list[float]) -> float | None:
    return median_low(values) if len(values) > 1 else None


def by_name(table: Table, name: str) -> tuple[float, float] | None:
    """Return a block's time and a call's blocks of a rank's kernels of one name whose grids are known."""
    rows = [(grid, count, total) for (own, grid), (count, total) in table.items() if own == name and grid > 0]
    blocks = sum(grid * count for grid, count, _ in rows)
    return (sum(row[2] for row in rows) / blocks, blocks / sum(row[1] for row in rows)) if rows else None


@given(st.lists(KERNELS, max_size=5))
def test_ranks_are_compared_kernel_by_kernel(tables: list[Table]) -> None:
    found = compared({rank: columns(table) for rank, table in enumerate(tables)})
    assert found.keys() == {rank for rank, table in enumerate(tables) if table}
    for rank, its in found.items():
        compute = sum(total for _, total in tables[rank].values())
        weights, ratios, own_grid, known, larger = [], [], [], 0, 0
        for (name, grid), (count, total) in tables[rank].items():
            time = usual([each[name, grid][1] / each[name, grid][0] for each in tables if (name, grid) in each])
            others = [own_blocks for each in tables if (own_blocks := by_name(each, name))]
            speed, size = usual([each[0] for each in others]), usual([each[1] for each in others])
            larger += total if size is not None and grid > LARGER * size else 0
            if time is None and speed is not None and grid != NONE:
                time = speed * grid
            if time:
                weights.append(count * time)
                ratios.append(total / (count * time))
                own_grid.append(len([each for each in tables if (name, grid) in each]) < 2)
                known += total
        assert its.compute_ns == compute
        assert its.larger == pytest.approx(larger / compute if compute else 0)
        assert its.compared == pytest.approx(known / compute if compute and weights else 0)
        if weights:
            order = np.argsort(ratios, kind="stable")
            halfway = np.searchsorted(np.cumsum(np.array(weights)[order]), sum(weights) / 2)
            assert its.slowness == pytest.approx(float(np.array(ratios)[order][halfway]) or 1.0)
            pace = max(its.slowness, 1.0)
            usual_ns = [
                weight * ratio / pace if own and (ratio > UNLIKE * pace or ratio * UNLIKE < pace) else weight
                for weight, ratio, own in zip(weights, ratios, own_grid, strict=True)
            ]
            assert its.usual_ns == pytest.approx(sum(usual_ns) + (compute - known) / its.slowness)


def kernels(taken: dict[str, list[int]]) -> KernelTotals:
    """Return the totals of a rank whose kernels took so long each, by name; all have one grid."""
    work = [
        {"kind": COMPUTE, "name": name, "blocks": 7, "start_ns": at * 1000, "end_ns": at * 1000 + ns}
        for name, each in taken.items()
        for at, ns in enumerate(each)
    ]
    return sum_kernels(rank_timeline(work=work))


def test_larger_work_of_the_same_name_and_grid_is_work_and_a_slow_device_is_none() -> None:
    usual = {"gemm": [100] * 8, "norm": [10] * 8}
    more = {"gemm": [100] * 8 + [400], "norm": [10] * 8}
    slow = {"gemm": [150] * 8, "norm": [15] * 8}
    slow_with_more = {"gemm": [150] * 8 + [600], "norm": [15] * 8}
    found = compared(
        {rank: kernels(each) for rank, each in enumerate((usual, usual, usual, more, slow, slow_with_more))}
    )
    assert [each.usual_ns for each in found.values()] == pytest.approx([880, 880, 880, 1280, 880, 1280])


@pytest.mark.parametrize(("longest", "mixed"), [(149, False), (300, True)])
def test_a_kernel_is_mixed_where_much_of_its_time_is_in_calls_of_another_length(longest: int, *, mixed: bool) -> None:
    found = kernels({"gemm": [100] * 8 + [longest]}).mixed
    assert found is not None
    assert found.tolist() == [mixed]


def test_blocks_of_a_grid_of_its_own_that_take_unlike_longer_do_other_work() -> None:
    """As a product with the vocabulary: its grid is twice as large, and a block takes three times as long."""
    alike: Table = {("gemm", 100): (10, 1000), ("norm", 10): (10, 500)}
    head: Table = {**alike, ("gemm", 200): (1, 600)}
    found = compared({0: columns(alike), 1: columns(alike), 2: columns(head)})
    assert [found[rank].usual_ns for rank in range(3)] == pytest.approx([1500, 1500, 2100])
