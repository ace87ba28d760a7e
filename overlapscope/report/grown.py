"""What grew from one side to the other: parts of the step, causes and collectives, the largest first."""

from typing import NamedTuple

from overlapscope.analysis.attribution import EXPOSED, Attribution
from overlapscope.analysis.cause_table import cause_label
from overlapscope.analysis.compare import Comparison
from overlapscope.report.amounts import ms, signed_ms
from overlapscope.report.compare_text import collective_words
from overlapscope.report.sheet import Table

MOST = 3
WORTH = 0.05
"""A part that grew by less than this share of what grew the most is left out."""


class Grown(NamedTuple):
    """A part that grew, mean over ranks and steps."""

    name: str
    base_ns: int
    candidate_ns: int
    difference_ns: int


def grown_collectives(comparison: Comparison) -> list[Grown]:
    """Give the kinds of collective whose exposed time grew the most."""
    if comparison.attribution is None:
        return []
    rows = comparison.collectives
    shares = comparison.attribution.exposed_by_collective
    return _grown(
        shares, [p.name if p.collective is None else collective_words(rows[p.collective]) for p in shares.parts]
    )


def grown_causes(comparison: Comparison) -> list[Grown]:
    """Give the causes of exposed time that grew the most."""
    if comparison.attribution is None:
        return []
    shares = comparison.attribution.exposed_by_cause
    return _grown(shares, [cause_label(part.name) for part in shares.parts])


def grown_activities(comparison: Comparison) -> list[Grown]:
    """Give what of a step grew the most: compute, exposed communication, copies, idle."""
    if comparison.attribution is None:
        return []
    shares = comparison.attribution.step_time
    return _grown(shares, [part.name for part in shares.parts])


def grown_table(comparison: Comparison) -> Table:
    """Give all of these as a table: exposed time by collective and cause where it grew, else the parts of the step."""
    activities = grown_activities(comparison)
    rows = [("step", *_cells(each)) for each in activities]
    if any(each.name == EXPOSED for each in activities) or not activities:
        rows += [("exposed by", *_cells(each)) for each in grown_collectives(comparison)]
        rows += [("because", *_cells(each)) for each in grown_causes(comparison)]
    note = "Means over ranks and steps; parts that grew the most."
    head = ("what grew, ms", "", "base", "candidate", "difference")
    return Table(head=head, rows=tuple(rows), left=2, note=note)


def _grown(whole: Attribution, names: list[str]) -> list[Grown]:
    some = [
        Grown(name, part.base_ns, part.candidate_ns, part.difference_ns)
        for name, part in zip(names, whole.parts, strict=True)
        if part.difference_ns > 0
    ]
    most = max((each.difference_ns for each in some), default=0)
    return [each for each in some if each.difference_ns >= WORTH * most][:MOST]


def _cells(each: Grown) -> tuple[str, ...]:
    return each.name, ms(each.base_ns), ms(each.candidate_ns), signed_ms(each.difference_ns)
