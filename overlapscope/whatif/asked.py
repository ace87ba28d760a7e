"""Settings that are replayed where somebody asks for them: other steps than the job's own, shown and never advised."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from overlapscope.errors import UsageError
from overlapscope.whatif.answer import Case, scenarios
from overlapscope.whatif.buckets import MIB
from overlapscope.whatif.ddp_step import Settings
from overlapscope.whatif.scenario import Scenario, WhatIf
from overlapscope.whatif.sharding import STATE_BYTES, Sharding, assumed, sharding_of
from overlapscope.whatif.workload import Workload

MOST_PIECES: Final = 5_000
"""Pieces of one step: more would be replayed for minutes."""
NEAR: Final = 0.002
"""A share of the step below which nothing is said to be gained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for."""

    zero_stages: tuple[int, ...] = ()
    partitions_mb: tuple[float, ...] = ()
    priority: bool = False

    def __bool__(self) -> bool:
        return bool(self.zero_stages or self.partitions_mb or self.priority)


NOTHING: Final = Asked()


def with_asked(told: WhatIf, case: Case, asked: Asked, *, optimizer: str | None = None) -> WhatIf:
    """Add the scenarios that were asked for, and what they rest on; `optimizer` is None where it is not known.

    Raises UsageError where the workload has no room for them.
    """
    if not asked:
        return told
    rows: list[Scenario] = []
    notes: list[str] = []
    workload = case.workload()
    if asked.zero_stages:
        rows += _sharded(case, workload, [sharding_of(each, optimizer or "adam") for each in asked.zero_stages])
        notes += _of_sharding(workload, optimizer)
    if asked.partitions_mb or asked.priority:
        settings = _scheduled(case.baseline, workload, asked)
        found = scenarios(case, settings)
        base, rows_here = found[0], found[1:]
        rows += rows_here
        notes += _of_order(base, rows_here)
    return msgspec.structs.replace(told, scenarios=[*told.scenarios, *rows], reasons=[*told.reasons, *notes])


def _sharded(case: Case, workload: Workload, stages: Sequence[Sharding]) -> list[Scenario]:
    """Give a row for each stage, whose interval spans what its collectives may cost."""
    if workload.world_size < 2:
        raise UsageError("--zero-stage: one rank has nothing to share with")
    if workload.placed:
        raise UsageError("--zero-stage: the workload has other collectives than its gradients'")
    found = []
    for stage in stages:
        settings = [replace(case.baseline, sharding=each) for each in stage.range()]
        least, usual, most = scenarios(case, settings)[1:]
        found.append(
            msgspec.structs.replace(
                usual,
                low_ns=min(least.low_ns, usual.low_ns),
                high_ns=max(most.high_ns, usual.high_ns),
                gain_low=min(most.gain_low, usual.gain_low),
                gain_high=max(least.gain_high, usual.gain_high),
            )
        )
    return found


def _of_sharding(workload: Workload, optimizer: str | None) -> list[str]:
    notes = []
    untold = assumed(workload)
    if untold:
        ops = " and ".join(each.replace("_", "-") for each in untold)
        notes.append(
            f"zero_stage: bytes are exact; {ops} were not measured, and are taken to take shares of an all-reduce "
            "(assumed: the intervals span them)"
        )
    states = "its optimizer is not known, and taken to be Adam" if optimizer is None else f"with {optimizer}"
    notes.append(
        f"zero_stage: memory is what a rank has less of ({states}, {STATE_BYTES[optimizer or 'adam']} bytes a "
        "parameter, 4 more for parameters of 16 bits); gathering after the optimizer is hidden behind nothing"
    )
    return notes


def _scheduled(base: Settings, workload: Workload, asked: Asked) -> list[Settings]:
    if asked.priority and base.accumulation > 1 and not base.no_sync:
        raise UsageError("--priority: every pass of a step reduces gradients here; only one may (no_sync)")
    if asked.priority and workload.placed:
        raise UsageError("--priority: the workload has other collectives than its gradients'")
    total = float(workload.gradients.sizes_bytes.sum())
    for each in asked.partitions_mb:
        if total / (each * MIB) > MOST_PIECES:
            raise UsageError(f"--partition-mb {each:g}: makes {total / (each * MIB):.0f} pieces; {MOST_PIECES} at most")
    found = [replace(base, partition_mb=each) for each in asked.partitions_mb]
    if asked.priority:
        found += [replace(base, priority=True, partition_mb=each) for each in (None, *asked.partitions_mb)]
    return found


def _of_order(base: Scenario, rows: Sequence[Scenario]) -> list[str]:
    """Say what order can gain at all."""
    notes = []
    if any(each.knobs.get("priority") is None for each in rows):
        notes.append(
            "partition_mb: DistributedDataParallel waits for all buckets before its optimizer, so that sending them in "
            "pieces gains nothing by itself; it is what lets others overtake (--priority)"
        )
    ordered = [each for each in rows if each.knobs.get("priority")]
    if ordered:
        best = max(ordered, key=lambda each: each.gain)
        said = (
            "it would gain nothing here: the next forward finds nothing that it could overtake"
            if best.gain <= NEAR
            else f"at most {best.gain:.1%}, where the next forward begins before all is reduced"
        )
        notes.append(f"priority: no setting of DistributedDataParallel, but a scheduler like ByteScheduler; {said}")
    return notes
