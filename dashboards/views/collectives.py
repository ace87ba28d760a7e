"""Bandwidth and duration of collectives: points, curves and tables, from an analysis."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.checks.links.possible_bandwidth import BandwidthCurve as Benchmark
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.operation_times import OpTime
from overlapscope.report.formatting import NOT_APPLICABLE, count, ms, percent, size
from overlapscope.report.text.analysis import place
from overlapscope.whatif.cost.curves import CLOSE
from overlapscope.whatif.cost.recorded_curves import RecordedCurve

MAX_SERIES: Final = 8
MAX_BENCHMARKS: Final = 4
MAX_KINDS: Final = 200
CURVE_POINTS: Final = 64
MOST_TICKS: Final = 9
AXIS_MARGIN: Final = 1.2
"""Least margin of the size axis, in powers of two."""
LOG10_2: Final = 0.30102999566398120


class MeasuredPoints(msgspec.Struct, frozen=True, kw_only=True):
    """Measured kinds of call of one curve."""

    sizes_bytes: tuple[int, ...]
    busbw_gbs: tuple[float, ...]
    best_gbs: tuple[float | None, ...]
    """Bus bandwidth of the fastest tenth of transfers, if five or more were matched."""
    words: tuple[str, ...]


class BandwidthLine(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth by size; NaN separates pieces."""

    sizes_bytes: tuple[float, ...]
    busbw_gbs: tuple[float, ...]


class MeasuredCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on groups of one size: measured points and the curve through them."""

    name: str
    matched: MeasuredPoints
    bounds: MeasuredPoints
    """Calls whose transfer time may include wait time, so they may have been faster."""
    line: BandwidthLine | None
    """The curve between sizes that are close enough to interpolate."""
    guess: BandwidthLine | None
    """The curve between sizes that are not."""


class SizeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """Ticks of a logarithmic size axis, and its ends as powers of ten."""

    at: list[float]
    words: list[str]
    decades: list[float]


class KindTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of kinds of call, without empty columns."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


def series(curves: Sequence[RecordedCurve]) -> tuple[MeasuredCurve, ...]:
    """Return the curves to draw: those of the first MAX_SERIES operations."""
    return tuple(_series(each) for each in curves[:MAX_SERIES])


def series_name(curve: RecordedCurve) -> str:
    """Return the name of an operation with the size of its group."""
    dimension = f" ({curve.dimension})" if curve.dimension else ""
    return f"{curve.op} on {count(curve.ranks, 'rank')}{dimension}"


def matching_benchmarks(
    benchmarks: Sequence[Benchmark], curves: Sequence[RecordedCurve]
) -> tuple[tuple[str, BandwidthLine], ...]:
    """Return the run's benchmark tables for operations and group sizes that it recorded."""
    wanted = {(each.op, each.ranks) for each in curves}
    chosen = [each for each in benchmarks if any(each.op == op and each.ranks in (ranks, None) for op, ranks in wanted)]
    return tuple(
        (
            f"{each.op}, {each.source}",
            BandwidthLine(sizes_bytes=tuple(map(float, each.sizes)), busbw_gbs=each.busbw_gbs),
        )
        for each in chosen
    )


def size_axis(sizes_bytes: Sequence[float]) -> SizeAxis:
    """Return at most MOST_TICKS ticks of a logarithmic size axis: powers of two in binary units."""
    least, most = (float(np.log2(max(each, 1))) for each in (min(sizes_bytes), max(sizes_bytes)))
    room = max(AXIS_MARGIN, 0.05 * (most - least))
    first, last = int(np.ceil(least - room)), int(np.floor(most + room))
    powers = range(first, last + 1, -(-(last - first + 1) // MOST_TICKS))
    low, high = ((least - room) * LOG10_2, (most + room) * LOG10_2)
    return SizeAxis(at=[2.0**each for each in powers], words=[size(2**each) for each in powers], decades=[low, high])


def point_rows(
    found: Sequence[MeasuredCurve], benchmarks: Sequence[tuple[str, BandwidthLine]]
) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each point: operation, size, source, bandwidth, bandwidth of the fastest tenth."""
    rows = []
    for each in found:
        for points, known in ((each.matched, "measured"), (each.bounds, "bound: includes wait time")):
            estimate = "matched" if points is each.matched else "upper_bound"
            rows += [
                (each.name, size(volume), known, gbs(busbw, estimate), gbs(best))
                for volume, busbw, best in zip(points.sizes_bytes, points.busbw_gbs, points.best_gbs, strict=True)
            ]
    for name, line in benchmarks:
        rows += [
            (name, size(round(volume)), "table", gbs(busbw), NOT_APPLICABLE)
            for volume, busbw in zip(line.sizes_bytes, line.busbw_gbs, strict=True)
        ]
    return rows


def op_name(each: OpTime) -> str:
    """Return the name of an operation and its group."""
    named = f"group {short(each.group)}" if each.group else "an unnamed group"
    return f"{each.op}, {named}" + (f" of {each.group_size}" if each.group_size else "")


def lead(times: Sequence[OpTime], what: str) -> str:
    """Return a sentence on how much of the time in collectives is wait time."""
    total = sum(each.total_ns for each in times)
    waited, unsplit = sum(each.wait_ns for each in times), sum(each.unsplit_ns for each in times)
    if not total:
        return ""
    longest = times[0]
    known = total - unsplit
    wait = (
        f"{ms(waited)} of {ms(known)} ms in matched collectives is wait time ({percent(waited / known)})"
        if known
        else ""
    )
    rest = f"{ms(unsplit)} ms could not be separated into transfer and wait time" if unsplit else ""
    most = f"the longest operation is {op_name(longest)}"
    words = "; ".join(each for each in (wait, rest, most) if each)
    return f"Per {what} and rank, on average: {words}."


def kinds(rows: Sequence[CollectiveRow]) -> KindTable:
    """Return the kinds of call, the longest first."""
    shown = rows[:MAX_KINDS]
    columns: list[tuple[str, list[str]]] = [
        ("operation", [each.op for each in shown]),
        ("group", [short(each.group) if each.group else "" for each in shown]),
        ("ranks", [_or(each.group_size) for each in shown]),
        ("type", [each.dtype or "" for each in shown]),
        ("place", [place(each) for each in shown]),
        ("algorithm", [each.algorithm or "" for each in shown]),
        ("protocol", [each.protocol or "" for each in shown]),
        ("size", [size(each.bytes) if each.bytes is not None else NOT_APPLICABLE for each in shown]),
        ("calls", [f"{each.count:,}" for each in shown]),
        ("transfer ms", [_transfer(each) for each in shown]),
        ("best tenth ms", [ms(each.baseline_ns) for each in shown]),
        ("wait", [percent(each.wait_fraction) for each in shown]),
        ("exposed ms, total", [ms(each.exposed_ns) for each in shown]),
        ("algbw GB/s", [gbs(each.algbw_gbs, each.estimate) for each in shown]),
        ("busbw GB/s", [gbs(each.busbw_gbs, each.estimate) for each in shown]),
    ]
    known = [(name, cells) for name, cells in columns if set(cells) - {"", NOT_APPLICABLE}]
    return KindTable(
        head=tuple(name for name, _ in known),
        rows=tuple(zip(*(cells for _, cells in known), strict=True)),
        left_out=len(rows) - len(shown),
    )


def count_word_columns(found: KindTable) -> int:
    """Return how many of the first columns are text."""
    wordy = {"operation", "group", "type", "place", "algorithm", "protocol"}
    return next((at for at, name in enumerate(found.head) if name not in wordy | {"ranks"}), len(found.head))


def gbs(value: float | None, estimate: str = "matched") -> str:
    """Return a bandwidth with three significant digits; with ≥ where it is a lower bound."""
    if value is None:
        return NOT_APPLICABLE
    shown = f"{value:,.0f}" if value >= 1_000 else f"{value:#.3g}".rstrip(".")
    return shown if estimate == "matched" else f"≥ {shown}"


def is_algorithm_unknown(rows: Sequence[CollectiveRow]) -> bool:
    """Return whether no algorithm is known of any kind of call."""
    return not any(row.algorithm or row.protocol for row in rows)


def _series(each: RecordedCurve) -> MeasuredCurve:
    matched = [row for row in each.rows if row.estimate == "matched"]
    bounds = [row for row in each.rows if row.estimate != "matched"]
    return MeasuredCurve(name=series_name(each), matched=_points(matched), bounds=_points(bounds),
                  line=_line(each, far=False), guess=_line(each, far=True))  # fmt: skip


def _line(each: RecordedCurve, *, far: bool) -> BandwidthLine | None:
    """Return the curve between neighbouring sizes that are (or are not) far apart; None where there is none."""
    if each.curve is None:
        return None
    known = each.curve.sizes_bytes
    steps = max(CURVE_POINTS // known.size, 8)
    pieces = [
        np.append(np.geomspace(left, right, steps), np.nan)
        for left, right in pairwise(known.tolist())
        if (right > CLOSE * left) == far
    ]
    if not pieces:
        return None
    sizes = np.concatenate(pieces)
    return BandwidthLine(sizes_bytes=tuple(sizes.tolist()), busbw_gbs=tuple(each.busbw_gbs(sizes).tolist()))


def _points(rows: Sequence[CollectiveRow]) -> MeasuredPoints:
    return MeasuredPoints(
        sizes_bytes=tuple(row.bytes or 0 for row in rows),
        busbw_gbs=tuple(row.busbw_gbs or 0 for row in rows),
        best_gbs=tuple(_best(row) for row in rows),
        words=tuple(_words(row) for row in rows),
    )


def _best(row: CollectiveRow) -> float | None:
    if not row.baseline_ns or not row.transfer_ns_median or row.busbw_gbs is None:
        return None
    return row.busbw_gbs * row.transfer_ns_median / row.baseline_ns


def _words(row: CollectiveRow) -> str:
    chosen = " ".join(filter(None, (row.algorithm, row.protocol)))
    parts = [size(row.bytes), f"{ms(row.transfer_ns_median)} ms", count(row.count, "call"), place(row), chosen]
    return ", ".join(filter(None, parts))


def _transfer(row: CollectiveRow) -> str:
    shown = ms(row.transfer_ns_median)
    return shown if row.estimate == "matched" or row.transfer_ns_median is None else f"≤ {shown}"


def _or(value: int | None) -> str:
    return NOT_APPLICABLE if value is None else str(value)
