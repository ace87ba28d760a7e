"""Attribute the difference of two sides to parts that add up to it exactly, to the nanosecond.

Medians do not add up, means do. So the total of a side is here the mean over ranks and complete steps of each run, then
over its runs; the metrics are medians and differ a little. Parts are rounded to integers by the largest remainders.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from fractions import Fraction
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import CAUSES, EXPOSED_WAIT
from overlapscope.analysis.job_step.step_table import StepTable
from overlapscope.timeline.columns import NONE, Ints

REMAINDER = "not attributed"
REST = "rest: medians need not add up"
"""What the medians of a step's parts lack of the median step."""
COMPUTE, EXPOSED, COPY, IDLE = "compute", "exposed communication", "copies", "idle"
START, OUTSIDE = "start of recording", "outside the rank's own step"
IDLE_OR_COPIES = "idle or copies"
"""Some recordings hold no copies and show them as idle time; then both are one part on both sides."""
Parts = dict[str, Fraction]
Sides = tuple[float | None, float | None]
Key = TypeVar("Key", bound=Hashable)


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
    """Attribute the mean step time to compute (overlapped or not), exposed communication, copies and idle time.

    It is the step of the job, with what the ranks' own windows lack of it; by longest windows, that of the ranks.
    """
    with_copies = all(_knows_copies(table) for table in (*base, *candidate))
    ours, theirs = (
        _mean_parts([_activities(table, with_copies=with_copies) for table in s]) for s in (base, candidate)
    )
    return attribution(ours, theirs, _step_time(base), _step_time(candidate))


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
    ]
    return _of_parts(parts, round(base_whole), round(candidate_whole))


def divided(whole_ns: int, sums: Mapping[Key, int]) -> dict[Key, int]:
    """Divide a time by the shares of some sums, exactly; no part where the sums are 0."""
    total = sum(sums.values())
    if not total:
        return {}
    names = {str(at): key for at, key in enumerate(sums)}
    exact = {name: Fraction(sums[key] * whole_ns, total) for name, key in names.items()}
    found = rounded(list(names), exact, Fraction(whole_ns))
    return {key: found[name] for name, key in names.items()}


def divided_by_cause(exposed_ns: int, wait_ns: int | None, sums: Mapping[Key, int], waits: Set[Key]) -> dict[Key, int]:
    """Divide exposed time by the shares of its causes, of which `waits` add up to its part `wait_ns`, if that is known.

    So the causes agree with both figures. Medians may be of different steps: where that part is larger than the whole,
    the shares alone divide it.
    """
    others = {key: ns for key, ns in sums.items() if key not in waits}
    if wait_ns is None or wait_ns > exposed_ns or (exposed_ns > wait_ns and not any(others.values())):
        return divided(exposed_ns, sums)
    found = divided(wait_ns, {key: ns for key, ns in sums.items() if key in waits})
    found |= divided(exposed_ns - wait_ns, others)
    return {key: found.get(key, 0) for key in sums}


def scaled(found: Attribution, totals: Sides, waits: Sides = (None, None)) -> Attribution:
    """Divide other totals of both sides by the shares of an attribution's parts; a total that is None stays.

    `waits` are the parts of the totals that are `exposed_wait_ns`, where the parts are causes.
    """
    late = {at for at, part in enumerate(found.parts) if part.name in EXPOSED_WAIT}
    sides = []
    for side, total, wait in zip(("base_ns", "candidate_ns"), totals, waits, strict=True):
        sums = {at: getattr(part, side) for at, part in enumerate(found.parts)}
        own = (
            sums if total is None else divided_by_cause(round(total), None if wait is None else round(wait), sums, late)
        )
        sides.append([own.get(at, 0) for at in sums])
    return _of_parts(
        [replace(part, base_ns=ours, candidate_ns=theirs, difference_ns=theirs - ours)
         for part, ours, theirs in zip(found.parts, *sides, strict=True)],
        sum(sides[0]), sum(sides[1]),
    )  # fmt: skip


def of_values(values: Mapping[str, tuple[int, int]], base_ns: int, candidate_ns: int) -> Attribution:
    """Return an attribution with the parts as they are; what they lack of the totals is a part named REST."""
    rest = tuple(
        total - sum(each[side] for each in values.values()) for side, total in enumerate((base_ns, candidate_ns))
    )
    return _of_parts(
        [
            Part(name=name, base_ns=own, candidate_ns=its, difference_ns=its - own)
            for name, (own, its) in {**values, REST: rest}.items()
        ],
        base_ns,
        candidate_ns,
    )


def _of_parts(parts: Sequence[Part], base_ns: int, candidate_ns: int) -> Attribution:
    """Return the attribution of parts that add up; parts that are 0 on both sides are left out."""
    return Attribution(
        base_ns=base_ns,
        candidate_ns=candidate_ns,
        difference_ns=candidate_ns - base_ns,
        parts=sorted(
            (part for part in parts if part.base_ns or part.candidate_ns),
            key=lambda part: (-abs(part.difference_ns), -part.candidate_ns, part.name),
        ),
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


def _step_time(runs: Sequence[StepTable]) -> Fraction:
    return sum((sum(_lacking(table).values(), mean_of(table, table.figures["window_ns"])) for table in runs),
               Fraction(0)) / len(runs)  # fmt: skip


def _lacking(table: StepTable) -> Parts:
    if table.windows is None:
        return {}
    job = table.job
    return {START: mean_of(table, job.start_of_recording_ns), OUTSIDE: mean_of(table, job.outside_ns)}


def mean_of(table: StepTable, matrix: Ints) -> Fraction:
    """Return the exact mean over all ranks and completely recorded steps."""
    return Fraction(int(matrix[table.recorded].sum()), int(table.recorded.sum()))


def _knows_copies(table: StepTable) -> bool:
    return not bool((table.figures["copy_only_ns"][table.recorded] == NONE).any())


def _activities(table: StepTable, *, with_copies: bool) -> Parts:
    def mean(name: str) -> Fraction:
        return mean_of(table, table.figures[name])

    parts = {COMPUTE: mean("overlapped_ns") + mean("compute_only_ns"), EXPOSED: mean("exposed_comm_ns")}
    parts |= _lacking(table)
    if with_copies:
        return parts | {COPY: mean("copy_only_ns"), IDLE: mean("idle_ns")}
    copies = table.figures["copy_only_ns"]
    return parts | {IDLE_OR_COPIES: mean("idle_ns") + mean_of(table, np.where(copies == NONE, 0, copies))}


def _causes(table: StepTable) -> Parts:
    return {cause: mean_of(table, table.causes[cause]) for cause in CAUSES}
