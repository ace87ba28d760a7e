"""Kernels beside those of other ranks, against the same figures taken kernel by kernel."""

from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.per_rank.kernels import LARGER, KernelTotals, compared
from overlapscope.timeline.columns import NONE

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
        weights, ratios, known, larger = [], [], 0, 0
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
                known += total
        assert its.compute_ns == compute
        assert its.larger == pytest.approx(larger / compute if compute else 0)
        assert its.compared == pytest.approx(known / compute if compute and weights else 0)
        if weights:
            order = np.argsort(ratios, kind="stable")
            halfway = np.searchsorted(np.cumsum(np.array(weights)[order]), sum(weights) / 2)
            assert its.slowness == pytest.approx(float(np.array(ratios)[order][halfway]) or 1.0)
            assert its.usual_ns == pytest.approx(sum(weights) + (compute - known) / its.slowness)
