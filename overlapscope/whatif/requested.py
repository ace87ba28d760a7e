"""Settings that are replayed where somebody asks for them: other steps than the job's own, shown and never advised."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.whatif.buckets import MIB
from overlapscope.whatif.ddp_predict import Case, scenarios
from overlapscope.whatif.ddp_step import Settings
from overlapscope.whatif.result import Scenario, WhatIf
from overlapscope.whatif.workload import Workload, curve_of
from overlapscope.whatif.zero import STATE_BYTES, Sharding, assumed, sharding_of

MOST_PIECES: Final = 5_000
"""Pieces of all passes of one step: more would be replayed for minutes."""
NEAR: Final = 0.002
"""A share of the step below which nothing is said to be gained."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    zero_stages: tuple[int, ...] = ()
    partitions_mb: tuple[float, ...] = ()
    priority: bool = False
    channels: tuple[int, ...] = ()
    """Of those that the workload has a table for."""

    def __bool__(self) -> bool:
        return self != NOTHING


NOTHING: Final = Asked()


def unfit(workload: Workload, base: Settings) -> dict[str, str]:
    """Return the options that a workload of DistributedDataParallel has no room for, and why."""
    found = {}
    if workload.placed:
        found = dict.fromkeys(("--zero-stage", "--priority"), "the workload has other collectives than its gradients'")
    if workload.world_size < 2:
        found["--zero-stage"] = "one rank has nothing to share with"
    if base.accumulation > 1 and not base.no_sync:
        found["--priority"] = "every pass of a step reduces gradients here; only one may (no_sync)"
    return found


def _refuse(option: str, unfitting: Mapping[str, str]) -> None:
    if option in unfitting:
        raise UsageError(f"{option}: {unfitting[option]}")


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
        ordered = scenarios(case, settings)[1:]
        rows += ordered
        notes += _of_order(ordered)
    if asked.channels:
        if not curve_of(workload, "all_reduce", workload.world_size).measured.all():
            raise UsageError("--channels: the present all-reduces are a formula's; give their table: collectives.file")
        rows += scenarios(case, [replace(case.baseline, channels=each) for each in asked.channels])[1:]
        notes.append("channels: transfers as the tables measured them; how much they slow compute is taken to stay")
    return replace(told, scenarios=[*told.scenarios, *rows], reasons=[*told.reasons, *notes])


def _sharded(case: Case, workload: Workload, stages: Sequence[Sharding]) -> list[Scenario]:
    """Return a row for each stage, whose interval spans what its collectives may cost."""
    _refuse("--zero-stage", unfit(workload, case.baseline))
    found = []
    for stage in stages:
        settings = [replace(case.baseline, sharding=each) for each in stage.range()]
        least, usual, most = scenarios(case, settings)[1:]
        found.append(
            replace(
                usual,
                low_ns=min(least.low_ns, usual.low_ns),
                high_ns=max(most.high_ns, usual.high_ns),
                gain_low=min(most.gain_low, usual.gain_low),
                gain_high=max(least.gain_high, usual.gain_high),
            )
        )
    return found


def _of_sharding(workload: Workload, optimizer: str | None) -> list[str]:
    untold = " and ".join(each.replace("_", "-") for each in assumed(workload))
    notes = [f"zero_stage: bytes are exact; {untold} are assumed to take shares of an all-reduce"] if untold else []
    known = f"with {optimizer}" if optimizer is not None else "with Adam, as its optimizer is not known"
    state_bytes = STATE_BYTES[optimizer or "adam"]
    notes.append(f"zero_stage: memory of a rank {known}: {state_bytes} bytes a parameter, 4 more for those of 16 bits")
    return notes


def _scheduled(base: Settings, workload: Workload, asked: Asked) -> list[Settings]:
    if asked.priority:
        _refuse("--priority", unfit(workload, base))
    total = float(workload.gradients.sizes_bytes.sum()) * (1 if base.no_sync else base.accumulation)
    for each in asked.partitions_mb:
        if total / (each * MIB) > MOST_PIECES:
            raise UsageError(f"--partition-mb {each:g}: makes {total / (each * MIB):.0f} pieces; {MOST_PIECES} at most")
    found = [replace(base, partition_mb=each) for each in asked.partitions_mb]
    if asked.priority:
        found += [replace(base, priority=True, partition_mb=each) for each in (None, *asked.partitions_mb)]
    return found


def _of_order(rows: Sequence[Scenario]) -> list[str]:
    """Say what order can gain at all."""
    ordered = [each for each in rows if each.knobs.get("priority")]
    notes = []
    if len(ordered) < len(rows):
        notes.append(
            "partition_mb: pieces gain nothing by themselves: DDP's optimizer waits for all buckets, in any order"
        )
    if ordered:
        most = max(each.gain for each in ordered)
        said = f"at most {most:.1%} are gained" if most > NEAR else "nothing is gained: no transfer can be overtaken"
        notes.append(f"priority: no setting of DDP, but a scheduler like ByteScheduler; {said}")
    return notes
