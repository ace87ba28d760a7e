"""Curves of how long a collective takes for its size: through measured points, or points that a formula assumes.

Inside the range of the points the curve is monotone in the logarithms of size and time: straight, or a cubic in wide
gaps. Times never fall with size (isotonic). Outside the range the result is an extrapolation and labelled so. Points of
different algorithms or protocols are never joined smoothly: the curve has a corner at such a switch, as the library
has. `table_curve` and `other_curves` make curves from a measured table: nccl-tests' output, or a CSV.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE, Flags, Floats
from overlapscope.timeline.facts import Facts

MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = "measured", "interpolated", "extrapolated", "assumed"
CORNER: Final = 0.15
"""A point is reported where the curve through its neighbours misses it by more than this share."""
CLOSE: Final = 16
"""Largest factor between its neighbours' sizes for such a report; a sparse table allows none."""
LARGE_BYTES: Final = 1_000_000
"""Errors are judged from this size on, where bandwidth counts; latency dominates smaller sizes."""
WIDE_GAP: Final = float(np.log(16))
"""Width of a gap from which on the curve is a full cubic. The information in a bend shrinks with the square of the gap,
but the noise of the slopes does not: between close points the curve is nearly straight."""
OTHERS: Final = ("reduce_scatter", "all_gather")
"""Operations of steps other than those of DistributedDataParallel."""


class Curve(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time of one operation in one group by size. Use `curve` to make one.

    One entry a point: `sizes_bytes` increase strictly, `times_ns` never fall, `measured` is whether it was measured.
    """

    op: str
    ranks: int | None
    sizes_bytes: Floats
    times_ns: Floats
    measured: Flags
    choice: tuple[str, ...] = ()
    """Algorithm and protocol of each point, empty where they are not known."""
    source: str = ""
    slopes_before: Floats
    """Slope of log(time) over log(size), just left of each point."""
    slopes_after: Floats
    """The same just right of each point; different only where the algorithm switches."""
    missed: Floats
    """Relative error of the curve through the other points at each interior point; NaN for the ends."""

    def at(self, sizes_bytes: npt.ArrayLike) -> Floats:
        """Return the time in ns of each size."""
        x = np.log(np.maximum(np.asarray(sizes_bytes, np.float64), 1.0))
        known, times = np.log(self.sizes_bytes), np.log(self.times_ns)
        within = _between(x, known, times, self.slopes_before, self.slopes_after)
        # Beyond the largest point the bandwidth is constant; below the smallest point the time is.
        found: Floats = np.exp(within + np.maximum(x - known[-1], 0))
        return found

    def known_from(self, size_bytes: float) -> str:
        """Return how the time of a size is known: measured, interpolated, extrapolated or assumed."""
        place = int(np.searchsorted(self.sizes_bytes, size_bytes))
        here = place < self.sizes_bytes.size and self.sizes_bytes[place] == size_bytes
        around = self.measured[max(place - 1, 0) : place + 1]
        if here:
            return MEASURED if self.measured[place] else ASSUMED
        if not around.all():
            return ASSUMED
        return INTERPOLATED if 0 < place < self.sizes_bytes.size else EXTRAPOLATED

    def error(self, size_bytes: float) -> float:
        """Return the relative error that the time of a size may have.

        Half of the error at the neighbouring points when these are left out, because the gap is then twice as wide.
        Outside the range, where there is no such test, the worst error of the large sizes.
        """
        missed = np.abs(self.missed)
        place = int(np.searchsorted(self.sizes_bytes, size_bytes))
        around = missed[max(place - 1, 0) : place + 1]
        if place < self.sizes_bytes.size and self.sizes_bytes[place] == size_bytes:
            return 0.0
        if 0 < place < self.sizes_bytes.size and not np.isnan(around).all():
            return float(np.nanmax(around)) / 2
        large = missed[(self.sizes_bytes >= LARGE_BYTES) & ~np.isnan(missed)]
        return float(large.max()) if large.size else CORNER

    def corners(self) -> tuple[str, ...]:
        """Return a note for each large size that the points close to it do not predict: plateaus and jumps."""
        span = self.sizes_bytes[2:] / self.sizes_bytes[:-2]
        close = [False, *(span <= CLOSE).tolist(), False] if self.sizes_bytes.size > 2 else []
        return tuple(
            f"{self.op} at {int(size)} bytes takes {time / 1e6:.3f} ms, {abs(each) * 100:.0f} % "
            f"{'less' if each > 0 else 'more'} than the points around it predict: a plateau or a switch; "
            "sizes between measured points near it are uncertain"
            for size, time, each, near in zip(self.sizes_bytes, self.times_ns, self.missed, close, strict=False)
            if size >= LARGE_BYTES and abs(each) > CORNER and near
        )


def curve(
    op: str,
    sizes_bytes: npt.ArrayLike,
    times_ns: npt.ArrayLike,
    *,
    ranks: int | None = None,
    measured: npt.ArrayLike | bool = True,
    choice: Sequence[str] = (),
    source: str = "",
) -> Curve:
    """Return the curve through points; several of one size become their median. Raises ValueError without a usable one.

    `choice` is the algorithm and protocol of each point. Points without size or time are left out.
    """
    sizes, times = np.asarray(sizes_bytes, np.float64), np.asarray(times_ns, np.float64)
    flags = np.broadcast_to(np.asarray(measured, np.bool_), sizes.shape)
    good = (sizes > 0) & (times > 0) & np.isfinite(sizes) & np.isfinite(times)
    if not good.any():
        raise ValueError(f"no measured time of {op} can be used")
    names = np.array(list(choice) or [""] * sizes.size)[good]
    unique, first, inverse = np.unique(sizes[good], return_index=True, return_inverse=True)
    middle = np.array([np.median(times[good][inverse == place]) for place in range(unique.size)])
    named = names[first].tolist() if choice else []
    times = np.exp(isotonic(np.log(middle)))
    x, y = np.log(unique), np.log(times)
    before, after = _monotone_slopes(x, y, _switches(named, unique.size))
    return Curve(
        op=op,
        ranks=ranks,
        sizes_bytes=unique,
        times_ns=times,
        measured=flags[good][first],
        choice=tuple(named),
        source=source,
        slopes_before=before,
        slopes_after=after,
        missed=_left_out(x, y, named),
    )


def isotonic(values: Floats) -> Floats:
    """Return the nearest values (least squares) that never fall: pool adjacent violators (Ayer et al. 1955)."""
    level: list[float] = []
    count: list[int] = []
    for value in values.tolist():
        level.append(value)
        count.append(1)
        while len(level) > 1 and level[-2] > level[-1]:
            number = count[-2] + count[-1]
            level[-2:] = [(level[-2] * count[-2] + level[-1] * count[-1]) / number]
            count[-2:] = [number]
    return np.repeat(level, count)


def _switches(choice: Sequence[str], points: int) -> Flags:
    """Return for each gap between points whether the algorithm or protocol switches in it."""
    if not choice:
        return np.zeros(max(points - 1, 0), np.bool_)
    return np.array([a != b for a, b in pairwise(choice)], np.bool_)


def _left_out(x: Floats, y: Floats, choice: Sequence[str]) -> Floats:
    """Return the relative error of the curve through the other points at each point."""
    missed = np.full(x.size, np.nan)
    for place in range(1, x.size - 1):
        # The curve between two points depends on them and on the next ones on either side.
        near = [each for each in range(max(place - 3, 0), min(place + 4, x.size)) if each != place]
        others, times, kept = x[near], y[near], [choice[each] for each in near] if choice else []
        slopes = _monotone_slopes(others, times, _switches(kept, others.size))
        missed[place] = np.expm1(_between(x[place : place + 1], others, times, *slopes)[0] - y[place])
    return missed


def _between(x: Floats, known: Floats, times: Floats, before: Floats, after: Floats) -> Floats:
    """Return the curve with these slopes between known points; constant beyond the ends."""
    straight: Floats = np.interp(x, known, times)
    if known.size < 2:
        return straight
    right = np.clip(np.searchsorted(known, x, side="right"), 1, known.size - 1)
    left = right - 1
    width = known[right] - known[left]
    t = np.clip((x - known[left]) / width, 0, 1)
    cubic = times[left] * (1 + 2 * t) * (1 - t) ** 2 + times[right] * t**2 * (3 - 2 * t)
    cubic += width * (after[left] * t * (1 - t) ** 2 - before[right] * t**2 * (1 - t))
    bend = np.minimum(width / WIDE_GAP, 1) ** 2
    found: Floats = straight + bend * (cubic - straight)
    return found


def _monotone_slopes(x: Floats, y: Floats, switch: Flags) -> tuple[Floats, Floats]:
    """Return slopes left and right of each point that keep a cubic between points monotone.

    Weighted harmonic means of the neighbouring segments' slopes (Fritsch and Butland 1984); a segment across which the
    algorithm switches is a straight line and does not bend its neighbours.
    """
    if x.size < 2:
        return np.zeros(x.size), np.zeros(x.size)
    width = np.diff(x)
    secant = np.diff(y) / width
    before, after = np.empty(x.size), np.empty(x.size)
    before[0], after[-1] = secant[0], secant[-1]
    after[0] = _end_slope(width, secant) if not switch[:2].any() else secant[0]
    before[-1] = _end_slope(width[::-1], secant[::-1]) if not switch[-2:].any() else secant[-1]
    for place in range(1, x.size - 1):
        left, right = secant[place - 1], secant[place]
        if switch[place - 1] or switch[place]:
            before[place], after[place] = left, right
        elif left * right <= 0:
            before[place] = after[place] = 0.0
        else:
            near, far = 2 * width[place] + width[place - 1], width[place] + 2 * width[place - 1]
            before[place] = after[place] = (near + far) / (near / left + far / right)
    return before, after


def _end_slope(width: Floats, secant: Floats) -> float:
    """Return the slope at an end from the two segments next to it, kept within what is monotone."""
    if secant.size < 2:
        return float(secant[0])
    slope = ((2 * width[0] + width[1]) * secant[0] - width[0] * secant[1]) / (width[0] + width[1])
    if slope * secant[0] <= 0:
        return 0.0
    return float(min(slope, 3 * secant[0]))


def table_curve(tables: Facts, file: str, ranks: int) -> tuple[Curve, list[str]]:
    """Return the curve of a table's all-reduces over `ranks` ranks, with notes for the user.

    A table without a number of ranks is taken to be for `ranks`. Raises InputError where it holds no such all-reduce.
    """
    rows = tables.measurements
    wanted = _of(tables, "all_reduce")
    exact = wanted & (rows.ranks == ranks)
    unspecified = wanted & (rows.ranks == NONE)
    if not exact.any() and not unspecified.any():
        if rows.op.size and (rows.op < 0).all():
            raise InputError(
                f"{file}: the measured operation is not stated; name the file after it, such as all_reduce.txt"
            )
        others = sorted({int(each) for each in rows.ranks[wanted]})
        held = f"its all-reduces are over {', '.join(map(str, others))} ranks" if others else "it holds no all-reduce"
        raise InputError(f"{file}: {held}, and the plan is for {ranks}; measure one over {ranks}, or give a formula")
    chosen = exact if exact.any() else unspecified
    notes = [] if exact.any() else [f"{file} does not state over how many ranks it was measured; assumed {ranks}"]
    names = [
        "/".join(filter(None, (tables.name(a), tables.name(p))))
        for a, p in zip(rows.algorithm[chosen].tolist(), rows.protocol[chosen].tolist(), strict=True)
    ]
    made = curve(
        "all_reduce", rows.bytes[chosen], rows.time_ns[chosen], ranks=ranks,
        choice=names if all(names) else (), source=file,
    )  # fmt: skip
    return made, notes


def other_curves(tables: Facts, ranks: int) -> tuple[Curve, ...]:
    """Return the curves of reduce-scatter and all-gather that a table holds for exactly `ranks` ranks."""
    rows = tables.measurements
    chosen = {op: _of(tables, op) & (rows.ranks == ranks) for op in OTHERS}
    return tuple(
        curve(op, rows.bytes[which], rows.time_ns[which], ranks=ranks, source="the table")
        for op, which in chosen.items()
        if which.any()
    )


def _of(tables: Facts, op: str) -> Flags:
    rows = tables.measurements
    named = np.array([tables.name(code) == op for code in rows.op.tolist()], np.bool_)
    found: Flags = named & (rows.bytes > 0) & (rows.time_ns > 0)
    return found
