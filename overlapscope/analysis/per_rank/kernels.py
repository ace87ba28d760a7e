"""Compare the compute of the ranks by their kernels: slowness of the device, and amount of work at the usual speed.

A kernel with the same name and grid does the same work on every rank, so ranks of any groups can be compared by it; a
kernel whose grid no other rank has is compared by its time per block. A rank whose kernels all take longer has a slow
device; a rank that runs more or larger kernels has more work. The grid is not always the work: a persistent kernel's
grid is fixed by the device, so more work makes it seem slow; the other kernels then decide.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Codes, Flags, Floats, Ints, size
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

FEWEST_RANKS: Final = 2
"""A kernel has a usual time where at least this many ranks run it."""
MANY_LAUNCHES: Final = 10
MORE_GRIDS: Final = 1.2
"""A kernel that is launched so often and has this many times as many grids as launches in a step has others in each
step. Where ..."""
OWN_GRIDS: Final = 0.4
"""... this share of its launches have a grid of their own, they differ between layers, too, as sizes of batches do not:
such grids are no measure of its work."""
UNLIKE: Final = 1.5
"""A call takes unlike long from this factor of the median of its kernel's calls on the rank, up or down. A choice:
beside communication one takes up to 1.3 times as long."""
MIXED: Final = 0.1
"""A kernel does unlike work in its calls where this share of its time is in such ones. A choice."""
LARGER: Final = 1.02
"""A kernel is larger than those of its name on other ranks above this factor of their grid."""


class RankCompute(msgspec.Struct, frozen=True, kw_only=True):
    """The compute of one rank compared with the other ranks."""

    compute_ns: int
    slowness: float
    """Time of its kernels over the usual time of the same kernels; the median, weighted by time."""
    evenness: float
    """Share, by time, of kernels that are slowed down at least half as much as all kernels in total."""
    compared: float
    """Share of the compute time in kernels that other ranks run too."""
    larger: float
    """Share of the compute time in kernels with larger grids than those of their name on other ranks."""
    usual_ns: float
    """Time that its kernels would take at the usual speed. Of those that do unlike work in their calls, as large and
    small matrix products of one name and grid, the usual time is not known: they are as slow as the others. Nor is it
    of those with a grid of their own whose blocks take much longer or shorter than others': these do other work."""
    sized: float = 1.0
    """Share of the compute time in kernels whose grids may measure their work: not those that have others in each
    step."""


class KernelTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one rank by name and grid, in the order of their first spans."""

    name: tuple[str, ...]
    blocks: Ints
    count: Ints
    total_ns: Ints
    alike: bool = True
    """Whether one of the same name and grid does the same work on every rank; not so where compute is a union of host
    operations, as in CPU runs."""
    steps: int = 1
    """That were recorded; 1 without marks."""
    mixed: Flags | None = None
    """Which of them do unlike work in their calls, by how long these take; None where that is not known."""


def compared(tables: Mapping[int, KernelTotals]) -> dict[int, RankCompute]:
    """Compare the kernels of all ranks that have any."""
    usual = _Usual.of([table for table in tables.values() if table.name and table.alike])
    return {rank: _compared(table, usual) for rank, table in tables.items() if table.name}


class _Usual(msgspec.Struct, frozen=True, kw_only=True):
    """The usual time of each kernel over the ranks that run it; NaN where too few do."""

    names: NameTable
    blocks: Ints
    """All grid sizes, ascending; the number of a kernel is made of its name's code and its grid's position here."""
    kernels: Ints
    """Numbers of kernels, ascending."""
    times_ns: Floats
    """For each of `kernels`, the usual time of a call."""
    speeds_ns: Floats
    """For each code of a name, the usual time of a block."""
    sizes: Floats
    """For each code of a name, the usual number of blocks of a call."""

    @classmethod
    def of(cls, tables: Sequence[KernelTotals]) -> Self:
        """Compute the usual times from the kernels of all ranks."""
        names = NameTable()
        nothing = [np.zeros(0, np.int64)]
        name = np.concatenate([names.encode(table.name).astype(np.int64) for table in tables] or nothing)
        grid, count, total = (
            np.concatenate([getattr(table, column) for table in tables] or nothing)
            for column in ("blocks", "count", "total_ns")
        )
        rank = np.repeat(np.arange(len(tables)), [len(table.name) for table in tables])
        blocks, at = np.unique(grid, return_inverse=True)
        kernels, kernel = np.unique(name * blocks.size + at, return_inverse=True)
        known = grid > 0
        of_rank, named = np.unique(rank[known] * len(names) + name[known], return_inverse=True)
        work, calls, time = (
            np.bincount(named, weights=values, minlength=of_rank.size)
            for values in (grid[known].astype(np.float64) * count[known], count[known], total[known])
        )
        by_name = of_rank % max(len(names), 1)
        return cls(
            names=names,
            blocks=blocks,
            kernels=kernels,
            times_ns=_usual(total / count, kernel, kernels.size),
            speeds_ns=_usual(time / work, by_name, len(names)),
            sizes=_usual(work / calls, by_name, len(names)),
        )

    def expected_ns(self, table: KernelTotals, name: Codes) -> tuple[Floats, Flags]:
        """Return the usual time of a rank's kernels, by name and grid, else by blocks (NaN where neither is known); and
        of which no other rank has the grid."""
        grid = np.searchsorted(self.blocks, table.blocks)
        times = self.times_ns[np.searchsorted(self.kernels, name * np.int64(self.blocks.size) + grid)]
        by_block = np.where(table.blocks == NONE, np.nan, self.speeds_ns[name] * table.blocks)
        own_grid: Flags = np.isnan(times)
        expected: Floats = table.count.astype(np.float64) * np.where(own_grid, by_block, times)
        return expected, own_grid


def _usual(values: Floats, key: Ints, keys: int) -> Floats:
    """Return the median of each key's values; of an even number the lower one, so of two ranks the faster."""
    order = np.lexsort((values, key))
    many = np.bincount(key, minlength=keys)
    first = np.cumsum(many) - many
    found: Floats = np.full(keys, np.nan)
    enough = many >= FEWEST_RANKS
    found[enough] = values[order[(first + (many - 1) // 2)[enough]]]
    return found


def sum_kernels(timeline: RankTimeline) -> KernelTotals:
    """Return the number and total time of each of a rank's kernels."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    grid = spans.blocks[rows]
    order = rows[sort_order(spans.name[rows], np.where(grid == NONE, -1, grid))]
    name, blocks = spans.name[order], spans.blocks[order]
    opens = np.flatnonzero((np.diff(name, prepend=-2) != 0) | (np.diff(blocks, prepend=NONE + 1) != 0))
    count = np.diff(np.append(opens, order.size))
    taken = spans.end_ns[order] - spans.start_ns[order]
    total = np.add.reduceat(taken, opens) if order.size else np.zeros(0, np.int64)
    # Not by code: a run directory has other codes, and the rounding of float sums depends on the order.
    first = np.argsort(order[opens])
    return KernelTotals(
        name=tuple(timeline.names[code] if code >= 0 else "" for code in name[opens[first]].tolist()),
        blocks=blocks[opens[first]],
        count=count[first],
        total_ns=total[first],
        alike=timeline.has_device,
        steps=max(size(timeline.steps), 1),
        mixed=_are_mixed(taken, opens, count)[first],
    )


def _are_mixed(taken: Ints, opens: Ints, count: Ints) -> Flags:
    """Return which kernels have calls that take unlike long; `opens` is the first row of each, `count` how many."""
    kernel = np.repeat(np.arange(opens.size), count)
    middle = taken[sort_order(kernel, taken)][opens + (count - 1) // 2] if opens.size else opens
    usual = middle[kernel]
    unlike = (taken > UNLIKE * usual) | (taken * UNLIKE < usual)
    of_all, of_unlike = (np.bincount(kernel, each, opens.size) for each in (taken, taken * unlike))
    mixed: Flags = of_unlike > MIXED * of_all
    return mixed


def _compared(table: KernelTotals, usual: _Usual) -> RankCompute:
    taken = table.total_ns.astype(np.float64)
    compute = float(taken.sum())
    if not table.alike:
        return RankCompute(
            compute_ns=round(compute), slowness=1.0, evenness=0.0, compared=0.0, larger=0.0, usual_ns=compute
        )
    name = usual.names.encode(table.name)
    expected, own_grid = usual.expected_ns(table, name)
    known = np.isfinite(expected) & (expected > 0)
    sizes = usual.sizes[name]
    sized = _sized(table, name)
    larger = table.blocks > LARGER * np.where(np.isnan(sizes), np.inf, sizes)
    share = float(taken[larger].sum() / compute) if compute else 0.0
    if not known.any():
        return RankCompute(
            compute_ns=round(compute),
            slowness=1.0,
            evenness=0.0,
            compared=0.0,
            larger=share,
            usual_ns=compute,
            sized=sized,
        )
    ratios, weights = taken[known] / expected[known], expected[known]
    slowness = _slowness(ratios, weights)
    mixed = np.zeros(known.size, np.bool_) if table.mixed is None else known & table.mixed
    even = known & ~mixed
    # Equal devices differ by some percent: to be a little faster is no more work.
    pace = max(_slowness(taken[even] / expected[even], expected[even]) if even.any() else slowness, 1.0)
    unlike = (taken > UNLIKE * pace * expected) | (taken * UNLIKE < pace * expected)
    mixed |= even & own_grid & unlike
    even &= ~mixed
    return RankCompute(
        compute_ns=round(compute),
        slowness=slowness,
        evenness=float(weights[ratios >= 1 + (taken[known].sum() / weights.sum() - 1) / 2].sum() / weights.sum()),
        compared=float(taken[known].sum() / compute) if compute else 0.0,
        larger=share,
        usual_ns=float(expected[even].sum() + taken[mixed].sum() / pace + taken[~known].sum() / slowness),
        sized=sized,
    )


def _slowness(ratios: Floats, weights: Floats) -> float:
    """Return the median of ratios of times, weighted; 1 where it is 0: kernels of 0 ns, as measured by a coarse clock,
    say nothing about the speed."""
    order = np.argsort(ratios)
    return float(ratios[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]) or 1.0


def _sized(table: KernelTotals, name: Codes) -> float:
    """Return the share of a rank's compute time in kernels whose grids may measure their work."""
    launches, grids, taken = (
        np.bincount(name, weights=values)
        for values in (table.count, (table.blocks != NONE).astype(np.int64), table.total_ns)
    )
    others = (grids > MORE_GRIDS * launches / table.steps) & (grids > OWN_GRIDS * launches)
    varies = (launches >= MANY_LAUNCHES) & others
    return 1 - float(taken[varies].sum() / taken.sum()) if taken.sum() else 1.0
