"""The sheet, the charts and the text of a scaling study: efficiency first, then the losses, the largest first."""

from collections.abc import Iterator, Sequence
from typing import Final

from overlapscope.analysis.common.cause_table import cause_label
from overlapscope.analysis.common.wording import first_and_count, short
from overlapscope.analysis.compare.scaling import ScalePart, ScalePoint, Scaling
from overlapscope.report.formatting import ms, percent, signed_ms
from overlapscope.report.model import Chart, Series, Sheet, Table, render_text

MAX_PARTS: Final = 6
LEAST_SHARE: Final = 0.001
"""A loss of at least this share of the step has a row."""
MAX_CHARTS: Final = 4
"""Losses are drawn for this many of the largest world sizes."""
UNITS: Final = {"weak": "rank steps/s", "strong": "steps/s"}


def sheet_of_scaling(found: Scaling) -> Sheet:
    """Return the sheet of a scaling study."""
    first, last = found.points[0], found.points[-1]
    most = _largest(last.parts)
    lead = [
        f"{last.speedup:.2f} times the throughput of {first.world_size} ranks; a step takes {ms(last.step_ns)} ms "
        f"instead of {ms(last.ideal_ns)} ms."
    ]
    if most is not None:
        lead.append(f"Largest loss: {_name(most)}, {signed_ms(most.loss_ns)} ms a step.")
    rows = tuple(
        (str(each.world_size), ms(each.step_ns), ms(each.ideal_ns), f"{each.throughput:,.4g}", f"{each.speedup:.2f}",
         percent(each.efficiency), first_and_count([short(name) for name in each.runs], 2, ", "))
        for each in found.points
    )  # fmt: skip
    head = ("ranks", "step ms", "ideal ms", UNITS[found.mode], "speedup", "efficiency", "runs")
    return Sheet(
        title=f"{percent(last.efficiency)} {found.mode} scaling efficiency "
        f"from {first.world_size} to {last.world_size} ranks",
        lead=tuple(lead),
        tables=(
            Table(
                head=head, rows=rows, note="Means over ranks, complete steps and runs; a step is the rank's own window."
            ),
            *_losses(found),
        ),
        warnings=tuple(found.warnings),
        notes=(),
    )


def charts_of_scaling(found: Scaling) -> Iterator[Chart]:
    """Yield the chart of step time and ideal by world size, and charts of the losses of the largest sizes."""
    points = found.points
    last = points[-1]
    sizes = tuple(f"{each.world_size} ranks" for each in points)
    yield Chart(
        title="Step time by world size",
        words=f"{ms(last.step_ns)} ms at {last.world_size} ranks; {ms(last.ideal_ns)} ms would be ideal.",
        kind="grouped",
        axis="ms a step",
        categories=sizes,
        series=(
            Series(name="measured", values=tuple(each.step_ns / 1e6 for each in points)),
            Series(name="ideal", values=tuple(each.ideal_ns / 1e6 for each in points)),
        ),
    )
    for point in points[1:][-MAX_CHARTS:]:
        parts = _shown(point)
        most = _largest(parts)
        yield Chart(
            title=f"Losses at {point.world_size} ranks",
            words=f"Largest loss: {_name(most)}, {signed_ms(most.loss_ns)} ms." if most else "",
            kind="grouped",
            axis="ms a step, mean over ranks",
            categories=tuple(map(_name, parts)),
            series=(
                Series(name="measured", values=tuple(each.here_ns / 1e6 for each in parts)),
                Series(name="ideal", values=tuple(each.ideal_ns / 1e6 for each in parts)),
            ),
            section="why",
        )


def _losses(found: Scaling) -> Iterator[Table]:
    for point in found.points[1:]:
        yield Table(
            head=(f"loss at {point.world_size} ranks, ms a step", "ideal", "measured", "loss", "of the step"),
            rows=tuple(_rows(point)),
        )


def _rows(point: ScalePoint) -> Iterator[tuple[str, ...]]:
    shown = _shown(point)
    for part in shown:
        yield _name(part), ms(part.ideal_ns), ms(part.here_ns), signed_ms(part.loss_ns), percent(part.share)
    rest = [part for part in point.parts if part not in shown]
    if rest:
        sums = [sum(getattr(part, name) for part in rest) for name in ("ideal_ns", "here_ns", "loss_ns")]
        yield "other", ms(sums[0]), ms(sums[1]), signed_ms(sums[2]), percent(sums[2] / point.step_ns)
    share = percent(point.loss_ns / point.step_ns)
    yield "total", ms(point.ideal_ns), ms(point.step_ns), signed_ms(point.loss_ns), share


def _shown(point: ScalePoint) -> list[ScalePart]:
    return [part for part in point.parts if abs(part.share) >= LEAST_SHARE][:MAX_PARTS]


def _largest(parts: Sequence[ScalePart]) -> ScalePart | None:
    return next((part for part in parts if part.loss_ns > 0), None)


def _name(part: ScalePart) -> str:
    return f"exposed, {cause_label(part.name)}" if part.exposed else part.name


def render(found: Scaling) -> str:
    """Return the scaling study as text, ending in a newline."""
    return render_text(sheet_of_scaling(found))
