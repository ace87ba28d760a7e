"""Measure how much compute slows beside communication: compare the same kernel beside a transfer and without one.

The same kernel is the n-th launch of a kernel name in each step, because launches of one name may have different
shapes. Steps differ a little in when communication runs, so that some kernels run beside a transfer in one step and
without one in another.
"""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import COMPUTE, NONE, Codes, Floats, Ints, Spans
from overlapscope.timeline.intervals import BusyTime, Intervals
from overlapscope.timeline.rows import factorize_rows, sort_order, values_in

FREE: Final = 0.05
"""Largest share of its time beside a transfer for a kernel to count as without one."""
BESIDE: Final = 0.95
"""Least share of its time beside a transfer for a kernel to count as beside one."""
LEAST_STEPS: Final = 3
"""With fewer steps, a kernel that was launched differently in one step cannot be recognised."""
LEAST_KERNELS: Final = 3
"""Least number of kernel names for a result."""
LEAST_COMPARED: Final = 0.1
"""Least share of the compute time beside transfers that the compared kernels must have, to represent the rest."""
SPREAD: Final = 1.645
"""Standard errors to each side of a 90 % interval."""


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """Time of compute beside transfers over the time of the same compute without: weighted by time, 90 % interval."""

    mean: float
    low: float
    high: float
    kernels: int
    """Number of kernel names that were compared."""
    compared_share: float
    """Share of all compute time beside transfers that was compared."""


def slowdown(spans: Spans, transfers: Intervals) -> Slowdown | None:
    """Compare kernels beside transfers with the same kernels in other steps; None with too little to compare.

    `transfers` is when a collective moved data on this rank, without wait time where that is known.
    """
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.end_ns > spans.start_ns) & (spans.step != NONE))
    if values_in(spans.step[rows]).size < LEAST_STEPS:
        return None
    spans = replace(spans, name=factorize_rows([spans.name])[0].astype(np.int32))  # codes differ in a run directory
    rows, launch = _launches(spans, rows)
    duration = (spans.end_ns - spans.start_ns)[rows].astype(np.float64)
    share = BusyTime(transfers).within(spans.start_ns[rows], spans.end_ns[rows]) / duration
    kernel, free_ns, beside_ns = _compared(spans.name[rows], launch, duration, share)
    names, place = np.unique(kernel, return_inverse=True)
    total = float((duration * share).sum())
    if names.size < LEAST_KERNELS or beside_ns.sum() < LEAST_COMPARED * total:
        return None
    free, beside = np.bincount(place, free_ns), np.bincount(place, beside_ns)
    mean = float(beside.sum() / free.sum())
    # The error comes from leaving out each kernel name in turn (jackknife, Efron and Stein 1981).
    without = (beside.sum() - beside) / (free.sum() - free)
    error = float(np.sqrt((names.size - 1) / names.size * ((without - without.mean()) ** 2).sum()))
    return Slowdown(
        mean=mean,
        low=mean - SPREAD * error,
        high=mean + SPREAD * error,
        kernels=int(names.size),
        compared_share=min(float(beside_ns.sum()) / total, 1.0),
    )


def _launches(spans: Spans, rows: Ints) -> tuple[Ints, Ints]:
    """Sort rows by name, launch number in the step, and step; return them with that launch number.

    For each kernel, steps in which it was launched another number of times than in most are left out: they did other
    work.
    """
    rows = rows[sort_order(spans.name[rows], spans.step[rows], spans.start_ns[rows])]
    name, step = spans.name[rows], spans.step[rows]
    begins = np.ones(rows.size, np.bool_)
    begins[1:] = (name[1:] != name[:-1]) | (step[1:] != step[:-1])
    group = np.cumsum(begins) - 1
    launch = np.arange(rows.size) - np.flatnonzero(begins)[group]
    count = np.bincount(group)
    keep = (count == _usual(name[begins], count))[group]
    rows, launch = rows[keep], launch[keep]
    order = sort_order(spans.name[rows], launch, spans.step[rows])
    return rows[order], launch[order]


def _usual(name: Codes, count: Ints) -> Ints:
    """Return for each step of a name the launch count that most steps of that name have; on a tie the smallest."""
    kind, first = factorize_rows([name, count])
    often = np.bincount(kind)
    best = first[sort_order(name[first], -often, count[first])]
    opens = np.ones(best.size, np.bool_)
    opens[1:] = name[best[1:]] != name[best[:-1]]
    best = best[opens]
    usual: Ints = count[best][np.searchsorted(name[best], name)]
    return usual


def _compared(name: Codes, launch: Ints, duration: Floats, share: Floats) -> tuple[Ints, Floats, Floats]:
    """Return name and both mean times of each launch that runs beside a transfer in one step and without in another."""
    begins = np.ones(name.size, np.bool_)
    begins[1:] = (name[1:] != name[:-1]) | (launch[1:] != launch[:-1])
    group = np.cumsum(begins) - 1
    sums = []
    for chosen in (share <= FREE, share >= BESIDE):
        count = np.bincount(group, chosen)
        with np.errstate(invalid="ignore"):
            sums.append((count, np.bincount(group, duration * chosen) / count))
    (free_count, free), (beside_count, beside) = sums
    both = (free_count > 0) & (beside_count > 0)
    # Weighted by how often each ran beside a transfer.
    weight = beside_count[both]
    return name[begins][both].astype(np.int64), free[both] * weight, beside[both] * weight
