"""Settings that are replayed only on request: ZeRO stages, pieces of buckets, priority, channels. Never recommended."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import percent_text
from overlapscope.errors import UsageError
from overlapscope.whatif.ddp.buckets import MIB
from overlapscope.whatif.ddp.ddp_predict import DdpCase, predict_settings
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.zero import STATE_BYTES, Sharding, sharding_of, unmeasured_operations
from overlapscope.whatif.result import Scenario, WhatIf
from overlapscope.whatif.workload.workload import Workload, curve_of

MOST_PIECES: Final = 5_000
"""Limit on the pieces of all passes of one step: more would take minutes to replay."""
NO_GAIN: Final = 0.002
"""A gain below this share of the step is reported as none."""


class RequestedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the user requested."""

    zero_stages: tuple[int, ...] = ()
    partitions_mb: tuple[float, ...] = ()
    priority: bool = False
    channels: tuple[int, ...] = ()
    """Numbers of channels, of those that the workload has a table for."""

    def __bool__(self) -> bool:
        return self != NOTHING


NOTHING: Final = RequestedSettings()


def unsupported_ddp_options(workload: Workload, base: Settings) -> dict[str, str]:
    """Return the options that do not apply to a workload of DistributedDataParallel, and why."""
    found = {}
    if workload.placed:
        found = dict.fromkeys(
            ("--zero-stage", "--priority"), "the workload also has collectives that are not of gradients"
        )
    if workload.world_size < 2:
        found["--zero-stage"] = "there is only one rank, so nothing can be sharded"
    if base.accumulation > 1 and not base.no_sync:
        found["--priority"] = "every pass of a step reduces gradients here; only one may (no_sync)"
    return found


def _refuse(option: str, unsupported: Mapping[str, str]) -> None:
    if option in unsupported:
        raise UsageError(f"{option}: {unsupported[option]}")


def with_requested(result: WhatIf, case: DdpCase, asked: RequestedSettings, *, optimizer: str | None = None) -> WhatIf:
    """Return the result with the requested scenarios added, and with notes on what they assume.

    `optimizer` is None where it is not known. Raises UsageError where a setting does not apply to the workload.
    """
    if not asked:
        return result
    rows: list[Scenario] = []
    notes: list[str] = []
    workload = case.workload()
    if asked.zero_stages:
        rows += _sharded_scenarios(
            case, workload, [sharding_of(each, optimizer or "adam") for each in asked.zero_stages]
        )
        notes += _sharding_notes(workload, optimizer)
    if asked.partitions_mb or asked.priority:
        settings = _ordered_settings(case.baseline, workload, asked)
        ordered = predict_settings(case, settings)[1:]
        rows += ordered
        notes += _order_notes(ordered)
    if asked.channels:
        if not curve_of(workload, "all_reduce", workload.world_size).measured.all():
            raise UsageError(
                "--channels: the present all-reduces are priced by a formula; give a measured table: collectives.file"
            )
        rows += predict_settings(case, [replace(case.baseline, channels=each) for each in asked.channels])[1:]
        notes.append(
            "channels: transfer times are from the tables; how much they slow compute is assumed to stay the same"
        )
    return replace(result, scenarios=[*result.scenarios, *rows], reasons=[*result.reasons, *notes])


def _sharded_scenarios(case: DdpCase, workload: Workload, stages: Sequence[Sharding]) -> list[Scenario]:
    """Return a scenario for each stage; its interval spans the range of costs of its collectives."""
    _refuse("--zero-stage", unsupported_ddp_options(workload, case.baseline))
    found = []
    for stage in stages:
        settings = [replace(case.baseline, sharding=each) for each in stage.range()]
        least, usual, most = predict_settings(case, settings)[1:]
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


def _sharding_notes(workload: Workload, optimizer: str | None) -> list[str]:
    not_measured = " and ".join(each.replace("_", "-") for each in unmeasured_operations(workload))
    notes = (
        [f"zero_stage: bytes are exact; {not_measured} are assumed to take shares of an all-reduce"]
        if not_measured
        else []
    )
    known = f"with {optimizer}" if optimizer is not None else "with Adam, as its optimizer is not known"
    state_bytes = STATE_BYTES[optimizer or "adam"]
    notes.append(f"zero_stage: memory of a rank {known}: {state_bytes} bytes a parameter, 4 more for those of 16 bits")
    return notes


def _ordered_settings(base: Settings, workload: Workload, asked: RequestedSettings) -> list[Settings]:
    if asked.priority:
        _refuse("--priority", unsupported_ddp_options(workload, base))
    total = float(workload.gradients.sizes_bytes.sum()) * (1 if base.no_sync else base.accumulation)
    for each in asked.partitions_mb:
        if total / (each * MIB) > MOST_PIECES:
            raise UsageError(
                f"--partition-mb {each:g}: makes {total / (each * MIB):.0f} pieces; at most {MOST_PIECES} are allowed"
            )
    found = [replace(base, partition_mb=each) for each in asked.partitions_mb]
    if asked.priority:
        found += [replace(base, priority=True, partition_mb=each) for each in (None, *asked.partitions_mb)]
    return found


def _order_notes(rows: Sequence[Scenario]) -> list[str]:
    """Return notes on how much sending order can gain."""
    ordered = [each for each in rows if each.knobs.get("priority")]
    notes = []
    if len(ordered) < len(rows):
        notes.append("partition_mb: pieces alone gain nothing: DDP's optimizer waits for all buckets, in any order")
    if ordered:
        most = max(each.gain for each in ordered)
        gain = (
            f"the gain is at most {percent_text(most)}" if most > NO_GAIN else "no gain: no transfer can be overtaken"
        )
        notes.append(f"priority: not a setting of DDP, it needs a scheduler like ByteScheduler; {gain}")
    return notes
