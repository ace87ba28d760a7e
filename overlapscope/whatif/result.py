"""The result types of `overlapscope.whatif/1`: the present step, steps under other settings, and whether to change."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.whatif.parallelism import Parallelism

WAITS_FIRST: Final = (
    "no setting of communication is recommended before ranks wait less for others; `overlapscope analyze` says whether "
    "one is a straggler"
)
"""Said where waiting dominates; whether one rank makes the others wait is tested elsewhere."""
CAP: Final = "bucket_cap_mb"
STRAGGLER: Final = "straggler_removed"
"""Its value is the rank, or ranks with `+` between them, of which the excess is removed."""
DEFAULT_CAP_MB: Final = 25.0
SCHEMA: Literal["overlapscope.whatif/1"] = "overlapscope.whatif/1"


class Baseline(msgspec.Struct, kw_only=True, frozen=True):
    """The present settings: the measured step and its replay."""

    knobs: dict[str, Any]
    measured_step_ns: int | None
    replayed_step_ns: int
    replay_error: float | None
    """Relative error of the replay of the worst measured step; null where no step was measured."""


class Scenario(msgspec.Struct, kw_only=True, frozen=True):
    """The predicted step under other settings. Intervals are 90 %."""

    knobs: dict[str, Any]
    predicted_step_ns: int
    low_ns: int
    high_ns: int
    gain: float
    """1 - step / present step: of two replays, or of two measured steps where both were measured."""
    gain_low: float
    gain_high: float
    exposed_comm_ns: int
    memory_bytes: int
    """Extra memory: buckets that are copies of the gradients, parameters that stay gathered for longer than
    recorded."""
    buckets: int
    """Number of buckets; 0 where gradients are not reduced in buckets."""
    changes_numerics: bool
    hypothetical: bool
    """Whether no setting can do it, such as a faster link or no late ranks."""
    known_from: Literal["measured", "replay"]


class Bounds(msgspec.Struct, kw_only=True, frozen=True):
    """The shortest and the longest step that any overlap can give."""

    no_comm_ns: int
    perfect_overlap_ns: int
    no_overlap_ns: int
    known_from: Literal["replay", "recorded"] = "replay"
    """`recorded`: no replay holds, and these are sums of the parts of the recorded step, with all waiting as
    recorded."""


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """How many times as long compute takes beside communication, with a 90 % interval."""

    slowdown: float
    low: float
    high: float
    identified: bool
    reason: str


class Assumed(msgspec.Struct, kw_only=True, frozen=True):
    """An assumed value, and the step of the best scenario at both ends of its range."""

    name: str
    value: float
    low: float
    high: float
    known_from: str
    step_low_ns: int
    step_high_ns: int


class Best(msgspec.Struct, kw_only=True, frozen=True):
    """The settings with the shortest predicted step."""

    knobs: dict[str, Any]


class Trial(msgspec.Struct, kw_only=True, frozen=True):
    """A requested setting whose effect cannot be predicted from measurements: worth trying, without a gain."""

    knobs: dict[str, Any]
    why: str
    apply: dict[str, str]
    """Code or environment variables, by framework."""
    verify: str


class WhatIf(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.whatif/1`. Times are integer nanoseconds, missing is null."""

    schema_: Literal["overlapscope.whatif/1"] = SCHEMA
    kind: Parallelism = "ddp"
    """How the job distributes its model over ranks; it decides what can be replayed."""
    baseline: Baseline
    scenarios: list[Scenario]
    bounds: Bounds
    verdict: Literal["change", "no_change", "insufficient_data"]
    waiting: bool = False
    """Whether waiting for other ranks dominates, which comes before settings of communication."""
    best: Best
    flat_region: dict[str, list[Any]]
    """Values of a knob whose steps differ from the best one by less than the noise."""
    equally_good: dict[str, list[float]] = {}
    """Smallest and largest value of a knob, without a worse one between, that are as good as the recommended one."""
    reasons: list[str]
    interference: Interval
    assumptions: list[Assumed]
    trials: list[Trial] = []


def with_recorded_exposed(rows: Sequence[Scenario], step: StepMedians | None) -> list[Scenario]:
    """Return the scenarios with the exposed time that was recorded: the headline's for the present settings, which come
    first, and for the others as many times that as in their replay, or, where that replay has none, so much more: at
    most their step. Without a recorded step they stay as they are."""
    if step is None:
        return list(rows)
    replayed_ns = rows[0].exposed_comm_ns
    times = step.exposed_comm_ns / replayed_ns if replayed_ns else 1.0
    more_ns = 0 if replayed_ns else step.exposed_comm_ns
    others = [
        replace(each, exposed_comm_ns=min(round(each.exposed_comm_ns * times + more_ns), round(each.predicted_step_ns)))
        for each in rows[1:]
    ]
    return [replace(rows[0], exposed_comm_ns=step.exposed_comm_ns), *others]


def recorded_bounds(step: StepMedians, measured_ns: float) -> Bounds:
    """Return the bounds of a step that took `measured_ns`, by the parts of the recorded step alone: all but its exposed
    communication; at least as long as its communication takes; and its overlapped communication once more."""
    times, comm_ns = measured_ns / step.step_ns, step.exposed_comm_ns + step.overlapped_ns
    no_comm_ns = step.step_ns - step.exposed_comm_ns
    return Bounds(
        no_comm_ns=round(times * no_comm_ns), perfect_overlap_ns=round(times * max(no_comm_ns, comm_ns)),
        no_overlap_ns=round(times * (step.step_ns + step.overlapped_ns)), known_from="recorded",
    )  # fmt: skip


def around(bounds: Bounds, measured_ns: float | None) -> Bounds:
    """Return bounds that hold of the measured step, which some overlap did give; it may suffer more interference, and
    more lateness, than bounds count."""
    if measured_ns is None:
        return bounds
    measured = round(measured_ns)
    shortest = min(bounds.no_comm_ns, measured)
    return replace(
        bounds, no_comm_ns=shortest, perfect_overlap_ns=max(min(bounds.perfect_overlap_ns, measured), shortest),
        no_overlap_ns=max(bounds.no_overlap_ns, measured),
    )  # fmt: skip


def knob_words(name: str, value: object) -> str:
    """Return a setting as Python writes it; a number of ranks is a factor, and who is no straggler any more a rank."""
    if name == "ranks":
        return f"ranks x{value}"
    if name == STRAGGLER:
        several = "+" in str(value)
        return f"straggler removed: rank{'s' * several} {str(value).replace('+', ', ')}"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def cap_of(knobs: Mapping[str, Any]) -> float:
    """Return the bucket cap of settings in MiB; torch's default (None) is 25 after a first bucket of 1."""
    cap = knobs.get(CAP)
    return DEFAULT_CAP_MB if cap is None else float(cap)


def largest_gain(found: WhatIf) -> Scenario | None:
    """Return the scenario that surely gains most, where the verdict is to change no setting: it is hypothetical, or
    changes numerics; None where none surely gains, and where the replay does not fit the recording."""
    if found.verdict != "no_change":
        return None
    others = [each for each in found.scenarios if each.gain_low > 0 and (each.hypothetical or each.changes_numerics)]
    return max(others, key=lambda each: each.gain, default=None)


def settings_replayed(found: WhatIf) -> bool:
    """Return whether a setting other than the present ones was replayed, not hypotheticals alone."""
    return any(not each.hypothetical and each.knobs != found.baseline.knobs for each in found.scenarios)


def equally_good(
    scenarios: Sequence[Scenario], best: Scenario, flat_region: Mapping[str, Sequence[Any]]
) -> dict[str, list[float]]:
    """Return the smallest and the largest bucket cap in MiB, without a worse one between, that are as good as the best;
    empty where no other is."""
    if CAP not in best.knobs:
        return {}
    near = {cap_of({CAP: each}) for each in flat_region.get(CAP, ())}
    tried = sorted({cap_of(each.knobs) for each in scenarios if CAP in each.knobs})
    low = high = tried.index(cap_of(best.knobs))
    while low > 0 and tried[low - 1] in near:
        low -= 1
    while high + 1 < len(tried) and tried[high + 1] in near:
        high += 1
    return {CAP: [tried[low], tried[high]]} if high > low else {}
