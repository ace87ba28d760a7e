"""A replayed setting as a recommendation."""

from typing import Literal

from overlapscope.advice.given import VERIFY
from overlapscope.analysis.analyze import Recommendation
from overlapscope.whatif.scenario import Scenario, WhatIf


def of_scenario(
    told: WhatIf,
    row: Scenario,
    name: str,
    title: str,
    verdict: str,
    *,
    apply: dict[str, str] | None = None,
    memory_bytes: int | None = None,
) -> Recommendation:
    """Give the recommendation of a scenario, its gain in nanoseconds of the present step."""
    measured = told.baseline.measured_step_ns or told.baseline.replayed_step_ns
    confidence: Literal["mixed", "assumed"] = "mixed" if told.interference.identified else "assumed"
    gains = (row.gain, row.gain_low, row.gain_high) if verdict != "no_change" else (None, None, None)
    gain, low, high = (None if each is None else round(each * measured) for each in gains)
    return Recommendation(
        id=name,
        title=title,
        verdict=verdict,
        predicted_gain_ns=gain,
        gain_low_ns=low,
        gain_high_ns=high,
        confidence=confidence,
        memory_bytes=memory_bytes,
        changes_numerics=row.changes_numerics,
        apply=apply or {},
        verify=VERIFY,
        evidence={
            "step_ns": measured,
            "predicted_step_ns": row.predicted_step_ns,
            "exposed_comm_ns": row.exposed_comm_ns,
            **({"buckets": row.buckets} if row.buckets else {}),
            "replay_error": told.baseline.replay_error,
        },
        measured=["the present step, its gradients and transfers"] if told.baseline.measured_step_ns else [],
        assumed=[each.name.replace("_", " ") for each in told.assumptions],
    )
