"""Compare runs of one job at several world sizes (`overlapscope.scaling/1`): throughput, efficiency, and its losses.

Compared with the smallest size b, a step at size n would ideally take the same time (weak scaling: each rank keeps its
work) or b/n of it (strong scaling: the ranks share a fixed amount of work). The additional time is the loss. It is
attributed to compute, each cause of exposed communication, copies and idle time, each compared with its own ideal. So
the parts add up to the loss, and their shares of the step to 1 - efficiency. Steps are means over ranks, complete steps
and runs, since only means add up, and of the ranks' own windows, which follow each other: throughput is theirs.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.common.job_identity import differences
from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.attribution import EXPOSED, Part, attribute_exposed, attribute_step_time
from overlapscope.errors import InputError, UsageError

SCHEMA: Literal["overlapscope.scaling/1"] = "overlapscope.scaling/1"
Mode = Literal["weak", "strong"]
SAME_WORK = 0.7
"""With compute per rank below this share of the smallest size's, the work per rank shrinks: it is not weak scaling."""


class ScalePart(msgspec.Struct, kw_only=True, frozen=True):
    """One part of a step and its loss, mean over ranks and steps."""

    name: str
    """`compute`, `copies`, `idle` (or both as one), or a cause of exposed communication."""
    exposed: bool
    """Whether it is a cause of exposed communication."""
    ideal_ns: int
    here_ns: int
    loss_ns: int
    """Negative where this part takes less time than its ideal."""
    share: float
    """Loss over the step time at this size: the efficiency lost to this part."""


class ScalePoint(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one world size."""

    world_size: int
    runs: list[str]
    step_ns: int
    ideal_ns: int
    """The sum of the parts' ideals."""
    throughput: float
    """Weak scaling: rank-steps per second of all ranks together. Strong scaling: steps per second."""
    speedup: float
    """Throughput over that of the smallest size."""
    efficiency: float
    """ideal_ns / step_ns."""
    loss_ns: int
    parts: list[ScalePart]
    """Parts, the largest loss first."""


class Scaling(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.scaling/1`."""

    schema_: Literal["overlapscope.scaling/1"] = SCHEMA
    mode: Mode
    points: list[ScalePoint]
    """By world size; the first one is the smallest, the reference of the others."""
    warnings: list[str]


def scaling(runs: Sequence[MeasuredRun], mode: Mode = "weak") -> Scaling:
    """Compare runs at two or more world sizes.

    Raises UsageError for fewer sizes; InputError for a run of unknown size or without complete steps.
    """
    by_size: dict[int, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.world_size is None or run.world_size < 1:
            raise InputError(f"{run.name}: its world size is not known, so it cannot be compared with the others")
        if not run.steps.recorded.any():
            raise InputError(f"{run.name}: has no complete step, so its throughput is not known")
        by_size[run.world_size].append(run)
    if len(by_size) < 2:
        raise UsageError("--scale needs runs of one job at two or more world sizes; these all have the same size")
    sizes = sorted(by_size)
    points = [_point(by_size, sizes[0], size, mode) for size in sizes]
    return Scaling(mode=mode, points=points, warnings=_warnings(by_size, points, mode))


def _point(by_size: dict[int, list[MeasuredRun]], base: int, size: int, mode: Mode) -> ScalePoint:
    shrink = Fraction(base, size) if mode == "strong" else Fraction(1)
    chosen = common_steps(by_size[base], by_size[size])
    ours, theirs = ([replace(table, windows=None) for table in side] for side in chosen.tables)
    whole = attribute_step_time(ours, theirs)
    nothing = Part(name=EXPOSED, base_ns=0, candidate_ns=0, difference_ns=0)
    exposed = next((part for part in whole.parts if part.name == EXPOSED), nothing)
    found = [(part, False) for part in whole.parts if part.name != EXPOSED]
    found += [(part, True) for part in attribute_exposed(ours, theirs, exposed).parts]
    step = whole.candidate_ns
    parts = []
    for part, is_exposed in found:
        ideal = round(part.base_ns * shrink)
        loss = part.candidate_ns - ideal
        parts.append(
            ScalePart(
                name=part.name, exposed=is_exposed, ideal_ns=ideal, here_ns=part.candidate_ns, loss_ns=loss,
                share=loss / step,
            )
        )  # fmt: skip
    ideal_ns = sum(part.ideal_ns for part in parts)
    at_base = Fraction(whole.base_ns)
    work = Fraction(size, base) if mode == "weak" else Fraction(1)
    return ScalePoint(
        world_size=size,
        runs=[run.name for run in by_size[size]],
        step_ns=step,
        ideal_ns=ideal_ns,
        throughput=(size if mode == "weak" else 1) * 1e9 / step,
        speedup=float(work * at_base / step),
        efficiency=ideal_ns / step,
        loss_ns=step - ideal_ns,
        parts=sorted(parts, key=lambda part: (-part.loss_ns, part.name)),
    )


def _warnings(by_size: dict[int, list[MeasuredRun]], points: Sequence[ScalePoint], mode: Mode) -> list[str]:
    found = []
    compute = [next((p.here_ns for p in point.parts if p.name == "compute"), 0) for point in points]
    last = points[-1]
    if mode == "weak" and compute[0] and compute[-1] < SAME_WORK * compute[0]:
        found.append(
            f"a rank computes {compute[-1] / compute[0]:.2f} times as long at {last.world_size} ranks as at "
            f"{points[0].world_size}: if the ranks share a fixed amount of work, use --scaling strong"
        )
    sides = [[run.identity for run in by_size[size]] for size in sorted(by_size)]
    keys = sorted(
        {each.key for side in sides[1:] for each in differences(sides[0], side)} - {"world_size", "parallelism"}
    )
    if keys:
        found.append(f"the runs differ in more than their world size: {', '.join(keys[:8])}")
    for size, side in sorted(by_size.items()):
        lost = max(len(run.missing_ranks) for run in side)
        if lost:
            found.append(f"{lost} of {size} ranks are missing: the means are over the others")
    return found
