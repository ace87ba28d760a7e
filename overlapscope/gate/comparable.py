"""Check that two sides are runs of one job, recorded the same way; else their difference is not caused by the code."""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from overlapscope.analysis.common.job_identity import RECORDING
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.comparison_findings import MAX_LISTED
from overlapscope.analysis.compare.measured_run import MeasuredRun

RANKS: Final = "ranks"
PRICE: Final = "price"
BLOCKING: Final = (
    "world_size", "device", "dtype", "parameters", "parallelism", f"{RECORDING}basis", f"{RECORDING}mode", RANKS, PRICE,
)  # fmt: skip
"""Keys that make runs not comparable where they differ, unless the policy allows it. Other differences are reported."""
BLOCKING_DRY_RUNS: Final = ("world_size", f"{RECORDING}basis")
"""The same for dry runs, of which all other differences are differences of the code."""
JOB: Final = BLOCKING[:5]


class Mismatch(msgspec.Struct, kw_only=True, frozen=True):
    """A key in which the runs differ."""

    key: str
    base: list[str]
    candidate: list[str]
    allowed: bool


def mismatches(
    base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun], comparison: Comparison, allowed: Collection[str]
) -> list[Mismatch]:
    """Return the differences that make runs not comparable, including those that the policy allows."""
    dry = all(run.structure for run in (*base, *candidate))
    found = [
        Mismatch(
            key=each.key,
            base=each.base[:MAX_LISTED],
            candidate=each.candidate[:MAX_LISTED],
            allowed=each.key in allowed,
        )
        for each in comparison.differences
        if each.key in (BLOCKING_DRY_RUNS if dry else BLOCKING)
    ]
    sizes = any(each.key == "world_size" for each in found)
    recorded = [
        sorted({rank_list(ranks) for run in side if (ranks := run.ranks or run.structure)})[:MAX_LISTED]
        for side in (base, candidate)
    ]
    compared = comparison.structure.ranks if comparison.structure is not None else comparison.ranks
    # Other ranks of one job do other work, so their figures cannot be compared.
    if not sizes and not compared and all(recorded):
        found.append(Mismatch(key=RANKS, base=recorded[0], candidate=recorded[1], allowed=RANKS in allowed))
    return found


def unknown_keys(base: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> list[str]:
    """Return the keys of the job that only one side has recorded, so that it is not known whether they differ."""
    known = [[any(key in run.identity for run in side) for key in JOB] for side in (base, candidate)]
    return [key for key, ours, theirs in zip(JOB, *known, strict=True) if ours != theirs]
