"""The content of `overlapscope.whatif/1`: the present step, steps under other settings, and whether to change."""

from typing import Any, Literal

import msgspec

from overlapscope.whatif.parallelism import Kind

SCHEMA: Literal["overlapscope.whatif/1"] = "overlapscope.whatif/1"


class Baseline(msgspec.Struct, kw_only=True, frozen=True):
    """The present settings, measured and replayed."""

    knobs: dict[str, Any]
    measured_step_ns: int | None
    replayed_step_ns: int
    replay_error: float | None
    """The worst miss of a measured step, as a share of it; null where none was measured."""


class Scenario(msgspec.Struct, kw_only=True, frozen=True):
    """A step under other settings. Intervals are 90 %."""

    knobs: dict[str, Any]
    predicted_step_ns: int
    low_ns: int
    high_ns: int
    gain: float
    """1 - replayed / replayed with the present settings, or 1 - measured / measured where both were measured."""
    gain_low: float
    gain_high: float
    exposed_comm_ns: int
    memory_bytes: int
    """Of buckets beside the gradients themselves; of parameters that are gathered for longer than as recorded."""
    buckets: int
    """0 where nothing is reduced in buckets."""
    changes_numerics: bool
    hypothetical: bool
    """What no setting brings about: a faster link, no late ranks."""
    known_from: Literal["measured", "replay"]


class Bounds(msgspec.Struct, kw_only=True, frozen=True):
    """What no setting can beat, and the worst."""

    no_comm_ns: int
    perfect_overlap_ns: int
    no_overlap_ns: int


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """How much compute and communication slow each other."""

    slowdown: float
    low: float
    high: float
    identified: bool
    reason: str


class Assumed(msgspec.Struct, kw_only=True, frozen=True):
    """What nobody measured, and the step of the best scenario as it varies."""

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
    """A setting that was asked for and that nothing measured tells the effect of: worth trying, without a gain."""

    knobs: dict[str, Any]
    why: str
    apply: dict[str, str]
    """Code or variables by framework."""
    verify: str


class WhatIf(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.whatif/1`. Times are integer nanoseconds, missing is null."""

    schema_: Literal["overlapscope.whatif/1"] = SCHEMA
    kind: Kind = "ddp"
    """How the job splits its model over ranks: what can be replayed depends on it."""
    baseline: Baseline
    scenarios: list[Scenario]
    bounds: Bounds
    verdict: Literal["change", "no_change", "insufficient_data"]
    waiting: bool = False
    """Whether waiting for a late rank dominates: no setting is advised before what holds it is found."""
    best: Best
    flat_region: dict[str, list[Any]]
    """Values of a knob whose steps the noise does not tell from the best one's."""
    reasons: list[str]
    interference: Interval
    assumptions: list[Assumed]
    trials: list[Trial] = []
