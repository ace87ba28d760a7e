"""A gate result, or a calibration, as text for people: one screen, the verdict first."""

from overlapscope.analysis.wording import short
from overlapscope.display import listed
from overlapscope.gate.calibrate import NoiseFloor, least_told
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import amount, count
from overlapscope.report.model import Sheet, Table, text_of
from overlapscope.report.sheet.gate import label, sheet_of_gate

SIDES = (1, 3)
"""Runs a side for which a calibration says what can be told."""


def render(gate: Gate) -> str:
    """Return the whole text, ending in a newline."""
    return text_of(sheet_of_gate(gate))


def render_floor(floor: NoiseFloor, alpha: float, gating: tuple[str, ...]) -> str:
    """Return the noise of the metrics that gate, and the smallest differences that will be told with it."""
    rows = []
    for each in floor.metrics:
        if each.name in gating:
            told = [
                amount(least_told(each.deviation, each.runs - 1, runs, runs, alpha / len(gating)), each.unit)
                for runs in SIDES
            ]
            rows.append((label(each.name), amount(each.median, each.unit), amount(each.deviation, each.unit), *told))
    head = ("ms a step", "median", "deviation", *(f"told with {runs} a side" for runs in SIDES))
    note = "Unchanged code stays below what is told; of a true loss of twice as much, nine of ten are caught."
    names = listed([short(name) for name in floor.runs], 4)
    return text_of(
        Sheet(
            title=f"How much runs of unchanged code differ, from {count(len(floor.runs), 'run')}",
            lead=(names,),
            tables=(Table(head=head, rows=tuple(rows), note=note),),
            warnings=(),
            notes=(),
        )
    )
