"""What each rank's kernels tell of its device and of its work: slowness, and work at the usual speed.

A kernel of one name and one grid does the same wherever it runs, so ranks compare by it, whatever groups they are in;
one whose grid no other rank has, by its time a block. A rank whose kernels all take longer has a slow device; one that
runs more of them, or larger ones, has more work. Grids do not tell everything: a persistent kernel's is the device's,
however much it is given, so that it seems slow; then the others tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.order import order_of
from overlapscope.timeline.run import RankTimeline

FEWEST_RANKS: Final = 2
"""A kernel has a usual time where so many ranks run it."""
LARGER: Final = 1.02
"""A kernel has more work than the others' of its name from this factor of their grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One rank's compute beside the others'."""

    compute_ns: int
    slowness: float
    """What its kernels take, as a multiple of what the same ones usually take: the middle one, by time."""
    evenness: float
    """Share, by time, of those that are slowed down at least half as much as all together."""
    compared: float
    """Share of the compute time in kernels that other ranks run, too."""
    larger: float
    """Share of the compute time in kernels that have larger grids than the others' of their name."""
    usual_ns: float
    """What its kernels would take at the usual speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One rank's kernels, by name and grid."""

    name: tuple[str, ...]
    blocks: Ints
    count: Ints
    total_ns: Ints


def work_of(ranks: Mapping[int, RankTimeline]) -> dict[int, Work]:
    """Compare the kernels of all ranks that have any."""
    return compared({rank: kernels_of(timeline) for rank, timeline in ranks.items()})


def compared(tables: Mapping[int, Kernels]) -> dict[int, Work]:
    """Compare the kernels of all ranks that have any."""
    exact: dict[tuple[str, int], list[float]] = {}
    by_block: dict[str, list[float]] = {}
    grids: dict[str, list[float]] = {}
    for table in tables.values():
        for name, blocks, count, total in _rows(table):
            exact.setdefault((name, blocks), []).append(total / count)
        for name, (grid, calls, time) in _by_name(table).items():
            by_block.setdefault(name, []).append(time / grid)
            grids.setdefault(name, []).append(grid / calls)
    times = {key: _usual(each) for key, each in exact.items() if len(each) >= FEWEST_RANKS}
    speeds = {name: _usual(each) for name, each in by_block.items() if len(each) >= FEWEST_RANKS}
    sizes = {name: _usual(each) for name, each in grids.items() if len(each) >= FEWEST_RANKS}
    return {rank: _compared(table, times, speeds, sizes) for rank, table in tables.items() if table.name}


def _usual(values: list[float]) -> float:
    """Give the median, of an even number the lower one: of two ranks, the better."""
    return sorted(values)[(len(values) - 1) // 2]


def kernels_of(timeline: RankTimeline) -> Kernels:
    """Sum up the kernels of a rank."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    grid = spans.blocks[rows]
    order = rows[order_of(spans.name[rows], np.where(grid == NONE, -1, grid))]
    name, blocks = spans.name[order], spans.blocks[order]
    opens = np.flatnonzero((np.diff(name, prepend=-2) != 0) | (np.diff(blocks, prepend=NONE + 1) != 0))
    nothing = np.zeros(0, np.int64)
    return Kernels(
        name=tuple(timeline.names[code] if code >= 0 else "" for code in name[opens].tolist()),
        blocks=blocks[opens],
        count=np.diff(np.append(opens, order.size)),
        total_ns=np.add.reduceat(spans.end_ns[order] - spans.start_ns[order], opens) if order.size else nothing,
    )


def _rows(table: Kernels) -> list[tuple[str, int, int, int]]:
    return list(zip(table.name, table.blocks.tolist(), table.count.tolist(), table.total_ns.tolist(), strict=True))


def _by_name(table: Kernels) -> dict[str, tuple[float, int, int]]:
    """Give blocks, calls and time of all kernels of a name whose grids are known."""
    found: dict[str, tuple[float, int, int]] = {}
    for name, blocks, count, total in _rows(table):
        if blocks > 0:
            before = found.get(name, (0.0, 0, 0))
            found[name] = (before[0] + blocks * count, before[1] + count, before[2] + total)
    return found


def _compared(
    table: Kernels, times: Mapping[tuple[str, int], float], speeds: Mapping[str, float], sizes: Mapping[str, float]
) -> Work:
    taken = table.total_ns.astype(np.float64)
    expected = np.array(
        [
            count * times.get((name, blocks), speeds.get(name, np.nan) * blocks if blocks != NONE else np.nan)
            for name, blocks, count, _ in _rows(table)
        ]
    )
    known = np.isfinite(expected) & (expected > 0)
    compute = float(taken.sum())
    larger = np.array(
        [
            blocks > LARGER * sizes.get(name, np.inf)
            for name, blocks in zip(table.name, table.blocks.tolist(), strict=True)
        ]
    )
    share = float(taken[larger].sum() / compute) if compute else 0.0
    if not known.any():
        return Work(compute_ns=round(compute), slowness=1.0, evenness=0.0, compared=0.0, larger=share, usual_ns=compute)
    ratios, weights = taken[known] / expected[known], expected[known]
    order = np.argsort(ratios)
    # Kernels of 0 ns, as counted by a coarse clock, tell nothing of the speed.
    slowness = float(ratios[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]) or 1.0
    return Work(
        compute_ns=round(compute),
        slowness=slowness,
        evenness=float(weights[ratios >= 1 + (taken[known].sum() / weights.sum() - 1) / 2].sum() / weights.sum()),
        compared=float(taken[known].sum() / compute) if compute else 0.0,
        larger=share,
        usual_ns=float(weights.sum() + taken[~known].sum() / slowness),
    )
