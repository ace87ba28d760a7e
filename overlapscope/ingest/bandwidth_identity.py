"""Which collective a bandwidth table is of, and over how many ranks, where nothing but its figures tells.

The tests print algbw and busbw, whose quotient is fixed by operation and ranks; `count`, which is the whole buffer for
some operations and one rank's share for others; the reduction and the root only where the operation has them; and
`N/A` for the in-place check of operations that cannot run in place (the `*GetCollByteCount`, `*RunTest` and `*GetBw`
functions of nccl-tests' src/). An answer is given only when one operation fits all lines.
"""

import math
from collections.abc import Sequence

from overlapscope.ingest.bandwidth_rows import REDUCTIONS, Row, Timing, agrees
from overlapscope.timeline.volume import bus_factor
from overlapscope.values import dataclass

MAX_RANKS = 1 << 20
_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a table is of; None where it cannot be known."""

    op: str | None
    ranks: int | None
    warnings: tuple[str, ...] = ()


def identify(rows: Sequence[Row], told_op: str | None, told_ranks: int | None, *, cpu_time: bool = False) -> Identity:
    """Name operation and ranks of a table's lines: as told, else as the figures leave no doubt, and check them.

    Where most lines contradict what was told, neither is given. With `cpu_time` the times are not those of algbw.
    """
    warnings = []
    unequal = 0 if cpu_time else sum(agrees(row, timing) is False for row in rows for timing in row.timings)
    if unequal:
        warnings.append(f"algbw is not size / time in {unequal} figures")
    quotients = [each for row in rows for timing in row.timings if (each := _quotient(row, timing, cpu_time))]
    ranks = told_ranks
    shares = _shares(rows)
    if ranks is None and shares is not None and shares > 1:
        ranks = shares
    op = told_op or _only_fit(rows, quotients, shares, ranks)
    if ranks is None and op == "all_reduce":
        ranks = _ranks_of_all_reduce(quotients)
    if op is not None and ranks is not None and quotients:
        factor = bus_factor(op, ranks)
        bad = sum(not _holds(factor, each) for each in quotients)
        if bad:
            warnings.append(
                f"busbw contradicts {op} on {ranks} ranks (algbw x {factor:g}) in {bad} of {len(quotients)} figures"
            )
        if 2 * bad > len(quotients):
            op, ranks = None, None
    return Identity(op=op, ranks=ranks, warnings=tuple(warnings))


def _quotient(row: Row, timing: Timing, cpu_time: bool) -> tuple[float, float] | None:
    """Give the least and the most that busbw / algbw can be; None where it is not known at all."""
    algbw, busbw = timing.algbw_gbs, timing.busbw_gbs
    if algbw is None or busbw is None or not algbw.value:
        return None
    low, high = algbw.low, algbw.high
    if not cpu_time and agrees(row, timing) and timing.time_us is not None and timing.time_us.low:
        # Size over time often tells algbw better than its two decimals do.
        low = max(low, row.size_bytes / timing.time_us.high / 1000)
        high = min(high, row.size_bytes / timing.time_us.low / 1000)
    return busbw.low / high, busbw.high / low if low else math.inf


def _holds(factor: float, quotient: tuple[float, float]) -> bool:
    return quotient[0] * (1 - _SLACK) <= factor <= quotient[1] * (1 + _SLACK)


def _shares(rows: Sequence[Row]) -> int | None:
    """Give into how many shares of `count` elements each buffer falls; None when lines differ or do not tell."""
    shares = set()
    for row in rows:
        share = row.count * row.item_bytes if row.count and row.item_bytes else 0
        if row.size_bytes and share:
            shares.add(row.size_bytes // share if row.size_bytes % share == 0 else 0)
    return shares.pop() if len(shares) == 1 and 0 not in shares else None


def _ranks_of_all_reduce(quotients: Sequence[tuple[float, float]]) -> int | None:
    """Solve 2 (n - 1) / n for the one n that every quotient allows."""
    if not quotients:
        return None
    low = max(each[0] for each in quotients)
    high = min(each[1] for each in quotients)
    if not 0 < low <= high < 2:
        return None
    first = max(2, math.floor(2 / (2 - low)) - 1)
    fitting = [n for n in range(first, first + 4) if all(_holds(bus_factor("all_reduce", n), q) for q in quotients)]
    return fitting[0] if len(fitting) == 1 and fitting[0] <= MAX_RANKS else None


def _only_fit(
    rows: Sequence[Row], quotients: Sequence[tuple[float, float]], shares: int | None, ranks: int | None
) -> str | None:
    reduces = {row.redop in REDUCTIONS for row in rows}
    rooted = {row.root is not None and row.root >= 0 for row in rows}
    if not quotients or shares is None or len(reduces) != 1 or len(rooted) != 1:
        return None
    fits = [
        op
        for op in _candidates(reduces.pop(), rooted.pop(), shares, _in_place_checked(rows))
        if _fits(op, quotients, ranks)
    ]
    return fits[0] if len(fits) == 1 else None


def _candidates(reduces: bool, rooted: bool, shares: int, in_place_checked: bool | None) -> list[str]:
    if shares == 1:
        if rooted:
            return ["reduce"] if reduces else ["broadcast"]
        if not reduces:
            return []
        both = [("all_reduce", True), ("send_recv", False)]
    elif rooted:
        return [] if reduces else ["gather", "scatter"]
    elif reduces:
        return ["reduce_scatter"]
    else:
        both = [("all_gather", True), ("all_to_all", False)]
    return [op for op, checks in both if in_place_checked in (None, checks)]


def _in_place_checked(rows: Sequence[Row]) -> bool | None:
    """Whether in-place results were compared; None when no result was, or when the lines differ."""
    seen = {
        row.in_place.checked
        for row in rows
        if row.in_place is not None and row.out_of_place is not None and row.out_of_place.checked
    }
    return seen.pop() if len(seen) == 1 else None


def _fits(op: str, quotients: Sequence[tuple[float, float]], ranks: int | None) -> bool:
    if ranks is not None:
        return all(_holds(bus_factor(op, ranks), each) for each in quotients)
    if op != "all_reduce":  # without ranks, only operations whose factor is 1 come here
        return all(_holds(1.0, each) for each in quotients)
    low = max(each[0] for each in quotients)
    high = min(each[1] for each in quotients)
    return low <= high and high >= 1 - _SLACK and low < 2
