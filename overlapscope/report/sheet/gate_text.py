"""Render a gate result or a calibration as text: one screen, the verdict first."""

from overlapscope.analysis.common.wording import short
from overlapscope.display import list_some
from overlapscope.gate.calibrate import NoiseFloor, noise_bound
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import amount, count
from overlapscope.report.model import Sheet, Table, render_text
from overlapscope.report.sheet.gate import label, sheet_of_gate

SIDES = (1, 3)
"""Numbers of runs a side for which a calibration states the smallest detectable difference."""


def render(gate: Gate) -> str:
    """Return the whole text, ending in a newline."""
    return render_text(sheet_of_gate(gate))


def render_noise_floor(floor: NoiseFloor, alpha: float, gating: tuple[str, ...]) -> str:
    """Return the noise of the gating metrics, and the smallest differences that are detectable with it.

    `alpha` is the significance level, shared by the `gating` metrics (Bonferroni).
    """
    rows = []
    for each in floor.metrics:
        if each.name in gating:
            detectable = [
                amount(noise_bound(each.deviation, each.runs - 1, runs, runs, alpha / len(gating)), each.unit)
                for runs in SIDES
            ]
            median, deviation = amount(each.median, each.unit), amount(each.deviation, each.unit)
            rows.append((label(each.name), median, deviation, *detectable))
    head = ("ms a step", "median", "deviation", *(f"detectable with {runs} a side" for runs in SIDES))
    note = "Unchanged code stays below these differences; a loss of twice as much is detected in nine of ten cases."
    names = list_some([short(name) for name in floor.runs], 4)
    return render_text(
        Sheet(
            title=f"How much runs of unchanged code differ, from {count(len(floor.runs), 'run')}",
            lead=(names,),
            tables=(Table(head=head, rows=tuple(rows), note=note),),
            warnings=(),
            notes=(),
        )
    )
