"""Attribute the difference of two sides to parts that add up to it exactly, to the nanosecond.

Medians do not add up, means do. So the total of a side is here the mean over ranks and complete steps of each run, then
over its runs; the metrics are medians and differ a little. Parts are rounded to integers by the largest remainders.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec
import numpy as np

from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.step_table import StepTable
from overlapscope.timeline.columns import NONE, Ints

REMAINDER = "not attributed"
COMPUTE, EXPOSED, COPY, IDLE = "compute", "exposed communication", "copies", "idle"
IDLE_OR_COPIES = "idle or copies"
"""Some recordings hold no copies and show them as idle time; then both are one part on both sides."""
Parts = dict[str, Fraction]


class Part(msgspec.Struct, kw_only=True, frozen=True):
    """One part of an attribution, mean over ranks and complete steps."""

    name: str
    base_ns: int
    candidate_ns: int
    difference_ns: int
    collective: int | None = None
    """Row in `collectives` of the comparison, where the part is a collective."""


class Attribution(msgspec.Struct, kw_only=True, frozen=True):
    """A total and its parts: their `base_ns`, `candidate_ns` and `difference_ns` add up to those of the total."""

    base_ns: int
    candidate_ns: int
    difference_ns: int
    parts: list[Part]


def attribute_step_time(base: Sequence[StepTable], candidate: Sequence[StepTable]) -> Attribution:
    """Attribute the mean step time to compute (overlapped or not), exposed communication, copies and idle time."""
    with_copies = all(_knows_copies(table) for table in (*base, *candidate))
    ours, theirs = (
        _mean_parts([_activities(table, with_copies=with_copies) for table in s]) for s in (base, candidate)
    )
    return attribution(ours, theirs, _whole(base, "window_ns"), _whole(candidate, "window_ns"))


def attribute_exposed(base: Sequence[StepTable], candidate: Sequence[StepTable], whole: Part) -> Attribution:
    """Attribute exposed communication to its causes; `whole` is its part of the step time."""
    ours, theirs = (_mean_parts([_causes(table) for table in side]) for side in (base, candidate))
    return attribution(ours, theirs, Fraction(whole.base_ns), Fraction(whole.candidate_ns))


def attribution(
    base: Mapping[str, Fraction], candidate: Mapping[str, Fraction], base_whole: Fraction, candidate_whole: Fraction
) -> Attribution:
    """Round both sides and subtract; the largest difference comes first, parts that are 0 on both sides are left out.

    Where the parts do not add up to the whole, the rest is a part of its own (`REMAINDER`).
    """
    names = list(dict.fromkeys([*base, *candidate]))
    ours, theirs = rounded(names, base, base_whole), rounded(names, candidate, candidate_whole)
    parts = [
        Part(name=name, base_ns=ours[name], candidate_ns=theirs[name], difference_ns=theirs[name] - ours[name])
        for name in (*names, REMAINDER)
        if ours[name] or theirs[name]
    ]
    whole = round(base_whole), round(candidate_whole)
    return Attribution(
        base_ns=whole[0],
        candidate_ns=whole[1],
        difference_ns=whole[1] - whole[0],
        parts=sorted(parts, key=lambda part: (-abs(part.difference_ns), -part.candidate_ns, part.name)),
    )


def rounded(names: Sequence[str], parts: Mapping[str, Fraction], whole: Fraction) -> dict[str, int]:
    """Round parts to integers that add up to the rounded whole; each differs from its part by less than 1 ns.

    What then still lacks is the remainder.
    """
    exact = {name: parts.get(name, Fraction(0)) for name in names}
    found = {name: int(value // 1) for name, value in exact.items()}
    left = round(whole) - sum(found.values())
    inexact = sorted((name for name in names if exact[name] % 1), key=lambda name: -(exact[name] % 1))
    for name in inexact[: max(left, 0)]:
        found[name] += 1
    return found | {REMAINDER: round(whole) - sum(found.values())}


def _mean_parts(runs: Sequence[Parts]) -> Parts:
    names = list(dict.fromkeys(name for parts in runs for name in parts))
    return {name: sum((parts.get(name, Fraction(0)) for parts in runs), Fraction(0)) / len(runs) for name in names}


def _whole(runs: Sequence[StepTable], figure: str) -> Fraction:
    return sum((mean_of(table, table.figures[figure]) for table in runs), Fraction(0)) / len(runs)


def mean_of(table: StepTable, matrix: Ints) -> Fraction:
    """Return the exact mean over all ranks and completely recorded steps."""
    return Fraction(int(matrix[table.recorded].sum()), int(table.recorded.sum()))


def _knows_copies(table: StepTable) -> bool:
    return not bool((table.figures["copy_only_ns"][table.recorded] == NONE).any())


def _activities(table: StepTable, *, with_copies: bool) -> Parts:
    def mean(name: str) -> Fraction:
        return mean_of(table, table.figures[name])

    parts = {COMPUTE: mean("overlapped_ns") + mean("compute_only_ns"), EXPOSED: mean("exposed_comm_ns")}
    if with_copies:
        return parts | {COPY: mean("copy_only_ns"), IDLE: mean("idle_ns")}
    copies = table.figures["copy_only_ns"]
    return parts | {IDLE_OR_COPIES: mean("idle_ns") + mean_of(table, np.where(copies == NONE, 0, copies))}


def _causes(table: StepTable) -> Parts:
    return {cause: mean_of(table, table.causes[cause]) for cause in CAUSES}
